#!/usr/bin/env python3
"""Refuses Kubernetes objects that a platform team would: tests/lint/manifests.py < rendered.yaml

Each container has an image by tag (not latest) or digest, requests of CPU and memory and a limit of memory,
runs as somebody else than root with a root that it cannot write, and gets no privilege. No CPU limit is asked
for: a rank that is throttled holds up all others.
"""

import re
import sys

import yaml

IMAGE = re.compile(r"[^@]+(@sha256:[0-9a-f]{64}|:(?!latest$)[A-Za-z0-9_][A-Za-z0-9_.-]*)")


def wrong_with_container(pod, container):
    resources = container.get("resources", {})
    own = container.get("securityContext", {})
    shared = pod.get("securityContext", {})
    if not IMAGE.fullmatch(container.get("image", "")):
        yield f"image {container.get('image')!r} has neither tag nor digest"
    for kind, what in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
        if what not in resources.get(kind, {}):
            yield f"resources.{kind}.{what} is missing"
    if not own.get("runAsNonRoot", shared.get("runAsNonRoot", False)):
        yield "runAsNonRoot is not true"
    if own.get("runAsUser", shared.get("runAsUser", 0)) == 0:
        yield "runAsUser is 0, or left to the image"
    if own.get("allowPrivilegeEscalation", True) or own.get("privileged", False):
        yield "it may gain privileges"
    if not own.get("readOnlyRootFilesystem", False):
        yield "its root can be written"
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "it keeps capabilities"


def main():
    failed = containers = 0
    for item in yaml.safe_load_all(sys.stdin):
        pod = ((item or {}).get("spec") or {}).get("template", {}).get("spec")
        if pod is None:
            continue
        where = f"{item['kind']} {item['metadata']['name']}"
        if pod.get("hostNetwork") or pod.get("hostPID") or pod.get("hostIPC"):
            print(f"{where}: shares a name space of its node")
            failed += 1
        for container in pod.get("initContainers", []) + pod["containers"]:
            containers += 1
            for rule in wrong_with_container(pod, container):
                print(f"{where}, container {container['name']}: {rule}")
                failed += 1
    if containers == 0:
        print("no container")
        failed += 1
    sys.exit(1 if failed else 0)


main()
