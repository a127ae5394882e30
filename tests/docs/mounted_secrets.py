#!/usr/bin/env python3
"""Whether secrets have what pods want of them: mounted_secrets.py RENDERED SECRET...

Each file that an argument of a container names below where its pod mounts a secret has to be in that secret, as a
certificate, a key or a token, and so has the one file of a secret that is mounted alone; of a StatefulSet for
the name of each of its pods. Prints what is not.
"""

import base64
import re
import sys

import yaml


def objects(path):
    with open(path, encoding="utf-8") as file:
        return [one for one in yaml.safe_load_all(file) if one]


def wanted_of(workload):
    """(secret, file) of every pod."""
    pod, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    (container,) = pod["containers"]
    arguments = " ".join(container["args"])
    for mount in container["volumeMounts"]:
        if mount["name"] not in secrets:
            continue
        alone = [mount["subPathExpr"]] if "subPathExpr" in mount else re.findall(mount["mountPath"] + r"/(\S+)", arguments)
        for file in alone:
            for number in range(workload["spec"]["replicas"]):
                yield secrets[mount["name"]], file.replace("$(POD_NAME)", f"{name}-{number}")


def main():
    secrets = {one["metadata"]["name"]: one for path in sys.argv[2:] for one in objects(path)}
    workloads = [one for one in objects(sys.argv[1]) if one["kind"] == "StatefulSet"]
    namespaces = {one["metadata"]["namespace"] for one in [*workloads, *secrets.values()]}
    wanted = [one for workload in workloads for one in wanted_of(workload)]
    errors = [f"{secret}: no {file}" for secret, file in wanted if not re.match(
        rb"phx_" if file.startswith("token-") else rb"-----BEGIN ",
        base64.b64decode(secrets.get(secret, {}).get("data", {}).get(file, "")))]
    errors += [] if wanted else ["no pod wants certificates"]
    errors += [] if len(namespaces) == 1 else [f"several namespaces: {sorted(namespaces)}"]
    print(*errors, sep="\n", end="\n" if errors else "")
    sys.exit(1 if errors else 0)


main()
