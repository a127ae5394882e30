#!/usr/bin/env python3
"""Whether secrets have what pods want of them: mounted_secrets.py RENDERED SECRET...

Each file below /etc/phalanx/tls that an argument of a container names has to be in the secret that its pod
mounts there, as a certificate or a key; of a Statefulset for the name of each of its pods. Prints what is not.
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
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "tls"]
    arguments = " ".join(argument for container in pod["containers"] for argument in container.get("args", []))
    for file in re.findall(r"/etc/phalanx/tls/(\S+)", arguments):
        for number in range(workload["spec"]["replicas"]):
            yield secrets[0], file.replace("$(POD_NAME)", f"{name}-{number}")


def main():
    secrets = {one["metadata"]["name"]: one for path in sys.argv[2:] for one in objects(path)}
    workloads = [one for one in objects(sys.argv[1]) if one["kind"] == "StatefulSet"]
    namespaces = {one["metadata"]["namespace"] for one in [*workloads, *secrets.values()]}
    wanted = [one for workload in workloads for one in wanted_of(workload)]
    errors = [f"{secret}: no {file}" for secret, file in wanted if b"-----BEGIN " not in
              base64.b64decode(secrets.get(secret, {}).get("data", {}).get(file, ""))]
    errors += [] if wanted else ["no pod wants certificates"]
    errors += [] if len(namespaces) == 1 else [f"several namespaces: {sorted(namespaces)}"]
    print(*errors, sep="\n", end="\n" if errors else "")
    sys.exit(1 if errors else 0)


main()
