"""Certificates as cert-manager makes them of objects of its kinds: keys, names and usages are what each says, tls.crt has those
between it and the authority, ca.crt the authority."""

import ipaddress
import pathlib
import shutil
import tempfile

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
    """Fills a folder of each secret below `secrets` that is not there yet and whose issuer is; what it has filled."""
    issuers = {one["metadata"]["name"]: one["spec"] for one in items if one["kind"] == "Issuer"}
    filled = []

    def made(spec):
        issuer = issuers.get(spec["issuerRef"]["name"])
        if issuer is None or (secrets / spec["secretName"]).exists():
            return False
        if "selfSigned" in issuer:
            make(spec, None, secrets)
        elif (secrets / issuer["ca"]["secretName"]).exists():
            make(spec, secrets / issuer["ca"]["secretName"], secrets)
        else:
            return False
        filled.append(spec["secretName"])
        return True

    while any([made(one["spec"]) for one in items if one["kind"] == "Certificate"]):
        pass
    return filled


def make(spec, authority, secrets):
    """`authority`: the folder of its certificate and key; none: it signs itself."""
    folder, key = secrets / spec["secretName"], spec["privateKey"]
    assert (key["algorithm"], key["size"], key["encoding"]) == ("ECDSA", 256, "PKCS8"), key
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        request, wanted, done = (pathlib.Path(work) / one for one in ("request", "extensions", "certificate"))
        run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", folder / "tls.key")
        run("openssl", "req", "-new", "-key", folder / "tls.key", "-subj", f"/CN={spec['commonName']}", "-out", request)
        wanted.write_text(extensions_of(spec), encoding="utf-8")
        days = int(spec["duration"].removesuffix("h")) // 24
        sign = ["openssl", "x509", "-req", "-in", request, "-days", days, "-extfile", wanted, "-out", done]
        if authority is None:
            run(*sign, "-signkey", folder / "tls.key")
        else:
            serial = run("openssl", "rand", "-hex", "16").strip()
            run(*sign, "-CA", authority / "tls.crt", "-CAkey", authority / "tls.key", "-set_serial", f"0x{serial}")
        shutil.copy(done, folder / "tls.crt")
        shutil.copy(done if authority is None else authority / "ca.crt", folder / "ca.crt")
