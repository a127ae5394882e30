#!/usr/bin/env python3
"""What podman plays of rendered manifests: pods.py FOLDER < rendered.yaml

Writes FOLDER/NAME.yaml for each StatefulSet of one replica, and prints "pod NAME", and "volume NAME GROUP" of
each claim. What the cluster does and podman 4.3 does not is done here: the first pod of a StatefulSet and its
claims are named as there, but a pod that a Service of its own name stands before gets that name; variables in
arguments are put in their place; the pod's address, of which all ranks are in one pod, is loopback; a secret is
the folder FOLDER/secrets/NAME, of files that the pod's group reads; probes and volumes are left to the caller.
"""

import pathlib
import sys

import yaml


def container_of(container, pod_name):
    """With variables in arguments put in their place, and without ports that this machine would open."""
    container = dict(container, image="localhost/" + container["image"].split(":")[0] + ":test")
    for key in ("startupProbe", "livenessProbe", "readinessProbe", "ports"):
        container.pop(key, None)
    fields = {"metadata.name": pod_name, "status.podIP": "127.0.0.1"}
    container["env"] = [{"name": one["name"], "value": one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]}
                        for one in container.get("env", [])]
    for one in container["env"]:
        container["args"] = [argument.replace(f"$({one['name']})", one["value"]) for argument in container["args"]]
    return container


def volume_of(volume, folder):
    """Secrets of podman are of one value each, and root's alone."""
    if "secret" not in volume:
        return volume
    return {"name": volume["name"], "hostPath": {"path": str(folder / "secrets" / volume["secret"]["secretName"]), "type": "Directory"}}


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    items = [one for one in yaml.safe_load_all(sys.stdin) if one]
    services = {one["metadata"]["name"]: one["spec"].get("clusterIP") for one in items if one["kind"] == "Service"}
    claims = set()
    for item in items:
        if item["kind"] != "StatefulSet":
            continue
        assert item["spec"]["replicas"] == 1, item["metadata"]["name"]
        name = item["metadata"]["name"]
        pod_name = name if services.get(name, "None") != "None" else name + "-0"
        template = item["spec"]["template"]
        spec = dict(template["spec"], containers=[container_of(one, pod_name) for one in template["spec"]["containers"]])
        spec.pop("serviceAccountName")
        group = spec["securityContext"]["fsGroup"]
        own = [one["metadata"]["name"] for one in item["spec"].get("volumeClaimTemplates", [])]
        spec["volumes"] = [volume_of(one, folder) for one in spec["volumes"]] + [
            {"name": one, "persistentVolumeClaim": {"claimName": f"{one}-{name}-0"}} for one in own]
        claims |= {(one["persistentVolumeClaim"]["claimName"], group) for one in spec["volumes"]
                   if "persistentVolumeClaim" in one}
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec,
               "metadata": {"name": pod_name, "labels": template["metadata"]["labels"]}}
        path = folder / (pod_name + ".yaml")
        path.write_text(yaml.safe_dump(pod), encoding="utf-8")
        print("pod", pod_name)
    for name, group in sorted(claims):
        print("volume", name, group)


main()
