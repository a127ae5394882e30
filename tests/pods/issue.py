"""Certificates as cert-manager makes them of objects of its kinds: keys, names and usages are what each says, tls.crt has those
between it and the authority, ca.crt the authority."""

import ipaddress

from pods.pod import run

USAGES = {"cert sign": "keyCertSign", "crl sign": "cRLSign", "digital signature": "digitalSignature"}
EXTENDED = {"server auth": "serverAuth", "client auth": "clientAuth"}


def extensions_of(spec):
    """As openssl has them."""
    names = [f"DNS:{one}" for one in spec.get("dnsNames", [])]
    names += [f"IP:{ipaddress.ip_address(one)}" for one in spec.get("ipAddresses", [])]
    names += [f"URI:{one}" for one in spec.get("uris", [])]
    lines = [f"basicConstraints=critical,CA:{'TRUE' if spec.get('isCA') else 'FALSE'}",
             f"keyUsage=critical,{','.join(USAGES[one] for one in spec['usages'] if one in USAGES)}",
             "subjectKeyIdentifier=hash"]
    extended = [EXTENDED[one] for one in spec["usages"] if one in EXTENDED]
    lines += [f"extendedKeyUsage={','.join(extended)}"] if extended else []
    lines += [f"subjectAltName={','.join(names)}"] if names else []
    return "\n".join(lines) + "\n"


def issue(items, secrets):
    """Fills a folder of each secret below `secrets`."""
    issuers = {one["metadata"]["name"]: one["spec"] for one in items if one["kind"] == "Issuer"}
    waiting = [one["spec"] for one in items if one["kind"] == "Certificate"]
    while waiting:
        spec = next(one for one in waiting if "selfSigned" in issuers[one["issuerRef"]["name"]]
                    or (secrets / issuers[one["issuerRef"]["name"]]["ca"]["secretName"] / "tls.crt").exists())
        waiting.remove(spec)
        folder, key = secrets / spec["secretName"], spec["privateKey"]
        assert (key["algorithm"], key["size"], key["encoding"]) == ("ECDSA", 256, "PKCS8"), key
        folder.mkdir(parents=True)
        made, request, wanted = folder / "tls.crt", folder / "request", folder / "extensions"
        run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", folder / "tls.key")
        run("openssl", "req", "-new", "-key", folder / "tls.key", "-subj", f"/CN={spec['commonName']}", "-out", request)
        wanted.write_text(extensions_of(spec), encoding="utf-8")
        hours = int(spec["duration"].removesuffix("h"))
        sign = ["openssl", "x509", "-req", "-in", request, "-days", hours // 24, "-extfile", wanted, "-out", made]
        issuer = issuers[spec["issuerRef"]["name"]]
        if "selfSigned" in issuer:
            run(*sign, "-signkey", folder / "tls.key")
            (folder / "ca.crt").write_bytes(made.read_bytes())
        else:
            authority = secrets / issuer["ca"]["secretName"]
            serial = run("openssl", "rand", "-hex", "16").strip()
            run(*sign, "-CA", authority / "tls.crt", "-CAkey", authority / "tls.key", "-set_serial", f"0x{serial}")
            (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        request.unlink()
        wanted.unlink()
