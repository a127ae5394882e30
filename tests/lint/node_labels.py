#!/usr/bin/env python3
"""The script of the component node-labels, against a server that answers as the cluster's API does, over TLS:
node_labels.py SCRIPT. Says what is missing and skips where openssl, curl or jq are not here; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it fails."""

import http.server
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

LABELS = {"kubernetes.io/hostname": "gpu-3", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "phalanx/pool": "",
          "topology.kubernetes.io/zone": "b", "xnvidia.com/gpu.product": "other"}
KEYS = r"^(topology\.kubernetes\.io/.*|nvidia\.com/gpu\.(product|memory)|phalanx/.*)$"
ZONE = "topology.kubernetes.io/zone"
FLAGS = ["--label=nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3", "--label=phalanx/pool=",
         "--label=topology.kubernetes.io/zone=b"]
OWN = {"phalanx/failure-domain": "rack-7"}
DOMAIN = "--label=phalanx/failure-domain="
# What a node has beside LABELS, which of its labels is its failure domain, which keys are taken, and what comes of it.
CASES = [({}, ZONE, KEYS, [*FLAGS, DOMAIN + "b"]), ({}, "", KEYS, FLAGS), ({}, "topology.kubernetes.io/rack", KEYS, FLAGS),
         (OWN, ZONE, KEYS, [*FLAGS, DOMAIN + "rack-7"]), (OWN, "", "^none$", [DOMAIN + "rack-7"]), ({}, ZONE, "^none$", [DOMAIN + "b"]),
         ({ZONE: ""}, ZONE, "^none$", [])]

class Api(http.server.BaseHTTPRequestHandler):
    more = {}  # labels of the node

    def do_GET(self):
        allowed = self.headers["Authorization"] == "Bearer secret-token"
        known = self.path == "/api/v1/nodes/gpu-3"
        body = json.dumps({"kind": "Node", "metadata": {"name": "gpu-3", "labels": {**LABELS, **self.more}}}).encode()
        self.send_response(401 if not allowed else 200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "1", "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", folder + "/key", "-out", folder + "/ca.crt"], check=True, capture_output=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder + "/ca.crt", folder + "/key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return "https://127.0.0.1:%d" % server.server_address[1]


def main():
    missing = [tool for tool in ("openssl", "curl", "jq") if shutil.which(tool) is None]
    if missing:
        print("skipped: no", ", ".join(missing), "here")
        sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))
    with tempfile.TemporaryDirectory() as folder:
        api = serve(folder)

        def run(token, node, domain=ZONE, keys=KEYS):
            with open(folder + "/token", "w") as file:
                file.write(token)
            return subprocess.run(["sh", sys.argv[1], folder + "/labels"], capture_output=True, text=True, timeout=60,
                                  env={"PATH": os.environ["PATH"], "SERVICE_ACCOUNT": folder, "KUBERNETES_API": api,
                                       "NODE_NAME": node, "NODE_LABELS": keys, "FAILURE_DOMAIN": domain})

        for token, node in (("another", "gpu-3"), ("secret-token", "gone")):
            refused = run(token, node)
            assert refused.returncode != 0 and not os.path.exists(folder + "/labels"), (token, node, refused)
        for Api.more, domain, keys, flags in CASES:
            done = run("secret-token", "gpu-3", domain, keys)
            assert done.returncode == 0, done
            with open(folder + "/labels") as file:
                found = file.read().splitlines()
            assert sorted(found) == sorted(flags), (Api.more, domain, keys, found)


main()
