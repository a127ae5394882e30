#!/usr/bin/env python3
"""Certificates that cert-manager makes are those that pods mount: issued.py < RENDERED

Each file of a certificate that a pod mounts, or a monitor of Prometheus names, is of a secret that a Certificate fills, and has
the usage that its flag needs; each issuer is there; who calls the coordinator by its service finds that name. Prints what is not, with 3.
"""

import sys

import yaml

MADE = ("tls.crt", "tls.key", "ca.crt")
# By the file that a flag names.
SERVED = ("coordinator.pem", "node-phalanx-worker.pem")
SIGNS = ("ca-key.pem",)


def mounted(items):
    """(whose, secret, key, file) of what pods and monitors want of secrets."""
    for one in items:
        where, spec = f"{one['kind']} {one['metadata']['name']}", one.get("spec", {})
        for volume in spec.get("template", {}).get("spec", {}).get("volumes", []):
            for secret in [volume["secret"]] if "secret" in volume else [each["secret"] for each in volume.get("projected", {}).get("sources", [])]:
                for item in secret.get("items", []):
                    yield where, secret.get("secretName") or secret["name"], item["key"], item["path"]
        for endpoint in spec.get("endpoints", []) + spec.get("podMetricsEndpoints", []):
            tls = endpoint["tlsConfig"]
            for secret in (tls["ca"]["secret"], tls["cert"]["secret"], tls["keySecret"]):
                yield where, secret["name"], secret["key"], "monitor"


def wrong_with(items):
    certificates = {one["spec"]["secretName"]: one for one in items if one["kind"] == "Certificate"}
    issuers = {one["metadata"]["name"]: one["spec"] for one in items if one["kind"] == "Issuer"}
    for name, spec in issuers.items():
        if "ca" in spec and spec["ca"]["secretName"] not in certificates:
            yield f"Issuer {name}", f"nothing makes {spec['ca']['secretName']}"
    for one in certificates.values():
        spec, where = one["spec"], f"Certificate {one['metadata']['name']}"
        if spec["issuerRef"]["name"] not in issuers:
            yield where, f"there is no issuer {spec['issuerRef']['name']}"
        authority = bool(spec.get("isCA"))
        if authority != ("cert sign" in spec["usages"]) or authority != ("crl sign" in spec["usages"]):
            yield where, "is an authority and does not sign, or the other way round"
        if authority and spec["privateKey"]["rotationPolicy"] != "Never":
            yield where, "an authority with another key: nothing that it has signed holds on"
    wanted = list(mounted(items))
    if not any(key in MADE for _, _, key, _ in wanted):
        yield "nothing", "no pod mounts a certificate that is made"
    for where, secret, key, file in wanted:
        if key not in MADE:
            continue
        spec = certificates.get(secret, {}).get("spec")
        if spec is None:
            yield where, f"nothing makes {secret}"
        elif file in SERVED and "server auth" not in spec["usages"]:
            yield where, f"{file} is not for servers"
        elif file in SIGNS and not spec.get("isCA"):
            yield where, f"{file} signs nothing"
        elif file == "monitor" and ("client auth" not in spec["usages"] or not any(uri.startswith("phalanx:viewer/") for uri in spec.get("uris", []))):
            yield where, f"{secret} is not a viewer's"
        elif file == "coordinator.pem" and not {"phalanx-coordinator", "phalanx-coordinator-0", "phalanx-coordinator-1", "localhost"} <= set(spec["dnsNames"]):
            yield where, f"{file} lacks a name at which it is called"
        elif file == "node-phalanx-worker.pem" and "phalanx-worker" not in spec["dnsNames"]:
            yield where, f"{file} lacks the name that monitors ask for"


def main():
    found = list(wrong_with([one for one in yaml.safe_load_all(sys.stdin) if one]))
    for where, rule in found:
        print(f"{where}: {rule}")
    sys.exit(3 if found else 0)


main()
