#!/usr/bin/env python3
"""A cluster that the real kubectl talks to, whose pods are processes (pod.py):

    cluster.py FOLDER PROGRAMS NODES

Serves the part of Kubernetes' API that the commands of docs/kubernetes.md need at 127.0.0.1:8080, where kubectl looks for
a cluster by itself, until it is ended; with it go its pods, and what it has mounted at FOLDER. Objects are held to the
published schemas, strictly. Pods of StatefulSets start once what they mount is there, are probed, reach services by
their names, and start again when they end; nodes are names, of which an affinity gives each pod one of its
own. `exec`, `cp` and `port-forward` go into the pods, evictions keep to budgets.

What it has not: DaemonSets run nothing, NetworkPolicies hold nobody, what a StatefulSet says cannot be changed, sizes
of volumes and requests of resources count for nothing. Needs root. Mounts and processes are in namespaces that it makes
itself; the network is the caller's, where kubectl is, and has to be one that has nothing else in it (`unshare --net`), since a
bridge stays there. Exit code 77: this process may not make what pods are in, or a tool is missing.
"""

import base64
import concurrent.futures
import copy
import datetime
import http.server
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.parse
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from pods import pod as pods  # noqa: E402
from pods import spdy  # noqa: E402

INSIDE = "--inside"
ADDRESS = ("127.0.0.1", 8080)
DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Of each group's version: plural, kind, whether it is of a namespace.
RESOURCES = {
    "v1": (("namespaces", "Namespace", False), ("nodes", "Node", False), ("pods", "Pod", True), ("services", "Service", True),
           ("serviceaccounts", "ServiceAccount", True), ("secrets", "Secret", True), ("configmaps", "ConfigMap", True),
           ("persistentvolumeclaims", "PersistentVolumeClaim", True)),
    "apps/v1": (("statefulsets", "StatefulSet", True), ("daemonsets", "DaemonSet", True)),
    "networking.k8s.io/v1": (("networkpolicies", "NetworkPolicy", True),),
    "policy/v1": (("poddisruptionbudgets", "PodDisruptionBudget", True),),
    "rbac.authorization.k8s.io/v1": (("clusterroles", "ClusterRole", False), ("clusterrolebindings", "ClusterRoleBinding", False)),
}
KINDS = {plural: (version, kind, of_namespace) for version, rows in RESOURCES.items() for plural, kind, of_namespace in rows}
SHORT = {"namespaces": "ns", "nodes": "no", "pods": "po", "services": "svc", "serviceaccounts": "sa", "configmaps": "cm",
         "persistentvolumeclaims": "pvc", "statefulsets": "sts", "daemonsets": "ds", "networkpolicies": "netpol", "poddisruptionbudgets": "pdb"}
STEP = 0.2  # seconds between looks at pods
REST_MAX = 60  # seconds until a pod that ends is started again: 2, 4, 8, ...
NOT_HERE = 77  # the exit code where it cannot be


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
                       "message": message}


def chosen_by(labels, selector):
    """Of `a=b,c=d`."""
    return all(labels.get(one.partition("=")[0]) == one.partition("=")[2].lstrip("=") for one in selector.split(",") if one)


def merged(old, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        new[key] = merged(new.get(key), value)
        if value is None:
            del new[key]
    return new


def hold_to_schema(item):
    import kubernetes_validate  # of a folder that is on the path by now
    try:
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as wrong:
        raise Refused(400, "BadRequest", f"{wrong.message} at {'.'.join(map(str, wrong.path))}") from wrong


class Running:
    """A pod of a StatefulSet, from when it is wanted: its object, and its processes once it has started."""

    def __init__(self, owner, ordinal, node):
        template, name = owner["spec"]["template"], f"{owner['metadata']['name']}-{ordinal}"
        self.owner, self.ordinal, self.node, self.process = owner, ordinal, node, None
        self.started = self.ready = self.ending = False
        self.ends, self.rests_until = 0, 0.0
        self.uid, self.name, self.waits_for = str(uuid.uuid4()), name, "a node"
        self.labels = {**template["metadata"]["labels"], "statefulset.kubernetes.io/pod-name": name}

    def rest(self, waits_for):
        """Longer each time; meanwhile it is not started."""
        self.ends += 1
        self.rests_until, self.waits_for = time.monotonic() + min(2 ** self.ends, REST_MAX), waits_for

    def object(self):
        owner = self.owner
        up = bool(self.process)
        ready = {"type": "Ready", "status": str(self.ready), "message": f"waits for {self.waits_for}" if self.waits_for else ""}
        container = {"name": self.owner["spec"]["template"]["spec"]["containers"][0]["name"], "ready": self.ready, "restartCount": 0, "image": "", "imageID": "",
                     "state": {"running": {}} if up else {"waiting": {"reason": "ContainerCreating", "message": f"waits for {self.waits_for}"}}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": self.name, "namespace": owner["metadata"]["namespace"], "uid": self.uid, "labels": self.labels,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner["metadata"]["name"],
                                 "uid": owner["metadata"]["uid"], "controller": True}]},
            "spec": {**owner["spec"]["template"]["spec"], **({"nodeName": self.node} if self.node else {})},
            "status": {"phase": "Running" if up else "Pending", "podIP": self.process.address if up else "",
                       "conditions": [ready], "containerStatuses": [container]}}


class Cluster:
    """Thread-safe. One thread (`control`) starts and probes pods."""

    def __init__(self, place, programs, nodes):
        self.place, self.programs = place, programs
        self.changed = threading.Condition(threading.RLock())
        self.objects, self.running, self.version = {}, {}, 0  # by (plural, namespace, name); by (namespace, name)
        for number in range(nodes):
            self.put("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}", "labels": {}}, "spec": {}})

    # Objects.

    def put(self, plural, namespace, item):
        with self.changed:
            self.version += 1
            said = item["metadata"]
            said.setdefault("uid", str(uuid.uuid4()))
            said.setdefault("creationTimestamp", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))
            said["resourceVersion"] = str(self.version)
            if namespace:
                said["namespace"] = namespace
            if item["kind"] == "StatefulSet":
                item["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
                said["generation"] = said.get("generation", 0) + 1
            self.objects[plural, namespace, said["name"]] = item
            self.changed.notify_all()
        if plural == "secrets":
            self.write_secret(item)
        return item

    def write_secret(self, item):
        folder = self.place / "secrets" / item["metadata"]["name"]
        folder.mkdir(parents=True, exist_ok=True)
        with self.changed:
            for file in folder.iterdir():
                file.unlink()
            for name, text in item.get("data", {}).items():
                (folder / name).write_bytes(base64.b64decode(text))
            for one in self.running.values():
                if one.process:
                    one.process.take_secrets()

    def create(self, plural, namespace, item):
        hold_to_schema(item)
        with self.changed:
            if namespace and ("namespaces", "", namespace) not in self.objects:
                raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
            if (plural, namespace, item["metadata"]["name"]) in self.objects:
                raise Refused(409, "AlreadyExists", f'{plural} "{item["metadata"]["name"]}" already exists')
            return self.put(plural, namespace, item)

    def get(self, plural, namespace, name):
        with self.changed:
            found = self.running.get((namespace, name)) if plural == "pods" else self.objects.get((plural, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            return found.object() if plural == "pods" else self.with_status(found)

    def list(self, plural, namespace, query):
        with self.changed:
            found = ([one.object() for one in self.running.values()] if plural == "pods" else
                     [self.with_status(one) for (kind, *_), one in self.objects.items() if kind == plural])
        field, _, value = query.get("fieldSelector", "").partition("=")
        where = {"": None, "metadata.name": ("metadata", "name"), "spec.nodeName": ("spec", "nodeName")}[field]
        return [one for one in found if namespace in ("", one["metadata"].get("namespace", "")) and
                chosen_by(one["metadata"].get("labels", {}), query.get("labelSelector", "")) and
                (where is None or one[where[0]].get(where[1]) == value)]

    def change(self, plural, namespace, name, patch):
        with self.changed:
            old = self.objects.get((plural, namespace, name))
            if old is None:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            applied = patch.get("metadata", {}).get("annotations", {}).get(APPLIED)
            new = json.loads(applied) if applied else merged(old, patch)
            if applied:
                # What the patch comes to: all lists that it would merge are in there.
                new["metadata"] = {**old["metadata"], **new["metadata"], "annotations": {APPLIED: applied}}
            hold_to_schema(new)
            if old["kind"] == "StatefulSet" and old["spec"] != {"updateStrategy": old["spec"]["updateStrategy"], **new["spec"]}:
                raise Refused(422, "Invalid", f'StatefulSet "{name}" is invalid: spec: Forbidden: this cluster cannot change it')
            return self.put(plural, namespace, new)

    def with_status(self, item):
        if item["kind"] != "StatefulSet":
            return item
        said = item["metadata"]
        own = [one for one in self.running.values() if one.owner["metadata"]["uid"] == said["uid"]]
        ready = sum(one.ready for one in own)
        return {**item, "status": {"observedGeneration": said["generation"], "replicas": len(own), "readyReplicas": ready, "updatedReplicas": len(own),
                                   "currentReplicas": len(own), "currentRevision": "1", "updateRevision": "1"}}

    def delete(self, plural, namespace, name):
        self.get(plural, namespace, name)
        if plural == "pods":
            self.end(namespace, name)
        elif plural == "namespaces":
            with self.changed:
                self.objects = {key: one for key, one in self.objects.items() if name not in (key[1], key[2] if key[0] == "namespaces" else "")}
                pods_there = [key for key in self.running if key[0] == name]
            with concurrent.futures.ThreadPoolExecutor() as threads:
                list(threads.map(lambda key: self.end(*key), pods_there))
            pods.run("rm", "-rf", self.place / "claims", self.place / "secrets")
        else:
            raise Refused(405, "MethodNotAllowed", f"this cluster deletes no {plural}")

    def end(self, namespace, name, check=lambda one: None):
        """As a deletion does, once `check` has nothing against it; the pod is gone when it returns, whoever ended it."""
        with self.changed:
            one = self.running.get((namespace, name))
            if one is None:
                return
            check(one)
            if one.ending:
                self.changed.wait_for(lambda: self.running.get((namespace, name)) is not one)
                return
            one.ending, one.ready = True, False
            self.changed.notify_all()
        try:
            if one.process:
                one.process.delete()
        finally:
            with self.changed:
                del self.running[namespace, name]
                self.changed.notify_all()

    def evict(self, namespace, name):
        self.get("pods", namespace, name)
        self.end(namespace, name, self.hold_to_budgets)

    def hold_to_budgets(self, one):
        """Of the pods that are wanted, there or not, so many others may be without one that is ready."""
        namespace = one.owner["metadata"]["namespace"]
        for (kind, of, _), budget in self.objects.items():
            if kind != "poddisruptionbudgets" or of != namespace:
                continue
            selector = budget["spec"]["selector"]["matchLabels"].items()
            if not selector <= one.labels.items():
                continue
            wanted = sum(item["spec"].get("replicas", 1) for (plural, where, _), item in self.objects.items() if plural == "statefulsets" and
                         where == namespace and selector <= item["spec"]["template"]["metadata"]["labels"].items())
            ready = sum(other.ready for (where, _), other in self.running.items()
                        if where == namespace and other is not one and selector <= other.labels.items())
            if wanted - 1 - ready >= budget["spec"]["maxUnavailable"]:
                raise Refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")

    # Pods.

    def control(self):
        while True:
            self.go_round()
            with self.changed:
                self.changed.notify_all()
                self.changed.wait(STEP)

    def go_round(self):
        with self.changed:
            self.want()
            for one in self.running.values():
                if not one.process and not one.ending and one.rests_until <= time.monotonic():
                    self.start(one)
            probed = [one for one in self.running.values() if one.process and not one.ending]
        for one in probed:
            self.look_at(one)

    def want(self):
        for (kind, namespace, name), item in self.objects.items():
            for ordinal in range(item["spec"].get("replicas", 1)) if kind == "statefulsets" else ():
                if (namespace, f"{name}-{ordinal}") not in self.running:
                    self.running[namespace, f"{name}-{ordinal}"] = Running(item, ordinal, None)

    def node_for(self, one):
        """Alone on it where an affinity keeps it, or one that is there, from others."""
        def apart(pod):
            return "podAntiAffinity" in pod.owner["spec"]["template"]["spec"].get("affinity", {})
        for (kind, _, name), node in self.objects.items():
            there = [pod for pod in self.running.values() if pod.node == name]
            if kind == "nodes" and not node["spec"].get("unschedulable") and not (there and any(map(apart, [one, *there]))):
                return name
        return None

    def missing(self, one):
        """What the pod waits for, or nothing."""
        spec, namespace = one.owner["spec"]["template"]["spec"], one.owner["metadata"]["namespace"]
        one.node = one.node or self.node_for(one)
        if one.node is None:
            return "a node"
        if ("serviceaccounts", namespace, spec["serviceAccountName"]) not in self.objects:
            return f"the service account {spec['serviceAccountName']}"
        if ("services", namespace, one.owner["spec"]["serviceName"]) not in self.objects:
            return f"the service {one.owner['spec']['serviceName']}"
        alone = {mount["name"]: mount["subPathExpr"].replace("$(POD_NAME)", one.name)
                 for mount in spec["containers"][0]["volumeMounts"] if "subPathExpr" in mount}
        for volume in spec["volumes"]:
            secret, claim = volume.get("secret", {}).get("secretName"), volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and ("persistentvolumeclaims", namespace, claim) not in self.objects:
                return f"the claim {claim}"
            there = self.objects.get(("secrets", namespace, secret), {}).get("data", {})
            if secret and (not there or alone.get(volume["name"], next(iter(there))) not in there):
                return f"the secret {secret}, or a file of it"
        others = self.services(namespace)
        calls = [service for service in others if any(f"={service}:" in argument for argument in spec["containers"][0]["args"])]
        return "" if all(others[service] for service in calls) else "the service that it calls"

    def services(self, namespace):
        """{name: address of a pod behind it, or nothing}, also with the namespace behind the name."""
        found = {}
        for (kind, of, name), item in self.objects.items():
            if kind == "services" and of == namespace and item["spec"].get("clusterIP") != "None":
                behind = [one.process.address for one in self.running.values() if one.process and item["spec"]["selector"].items() <= one.labels.items()]
                found[name] = found[f"{name}.{namespace}.svc"] = behind[0] if behind else ""
        return found

    def start(self, one):
        """Where it has what it waits for."""
        try:
            one.waits_for = self.missing(one)
            if one.waits_for:
                return
            hosts = {name: address for name, address in self.services(one.owner["metadata"]["namespace"]).items() if address}
            one.process = pods.Pod(self.place, self.programs, DEPS, one.owner, one.ordinal, hosts)
            print(f"{one.name} starts on {one.node}, {one.process.address}", flush=True)
        except Exception as wrong:  # the other pods go on
            traceback.print_exc()
            one.rest(f"a start that works: {wrong!r}")

    def look_at(self, one):
        try:
            if not one.process.alive():
                self.take_end(one)
                return
            started = one.started or one.process.probe("startupProbe")
            ready = started and one.process.probe("readinessProbe")
            waits_for = ""
        except OSError:  # it ends meanwhile
            return
        except Exception as wrong:  # the other pods go on
            traceback.print_exc()
            started, ready, waits_for = one.started, False, f"a probe that works: {wrong!r}"
        with self.changed:
            one.started, one.ready, one.waits_for = started, ready and not one.ending, waits_for

    def take_end(self, one):
        with self.changed:
            if one.ending:
                return
            print(f"{one.name} has ended: {one.process.tail()}", flush=True)
            process, one.process, one.started, one.ready = one.process, None, False, False
            one.rest("its next start, some seconds behind an end")
            process.leave()

    def started_pod(self, namespace, name):
        with self.changed:
            self.get("pods", namespace, name)
            process = self.running[namespace, name].process
            if process is None or not process.alive():
                raise Refused(409, "Conflict", f"pod {name} does not run")
            return process


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster = None

    def log_message(self, *_):
        pass

    def answer(self, code, item):
        body = json.dumps(item).encode()
        self.send_response(code)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def handle_any(self):
        path, _, query = self.path.partition("?")
        self.many = urllib.parse.parse_qs(query, keep_blank_values=True)
        self.query = {key: values[0] for key, values in self.many.items()}
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        try:
            self.serve([urllib.parse.unquote(one) for one in path.strip("/").split("/")], body)
        except Refused as refused:
            self.answer(refused.status["code"], refused.status)
        except (BrokenPipeError, ConnectionError):
            self.close_connection = True
        except Exception:  # whoever asked hears of it, and so does the log
            traceback.print_exc()
            self.answer(500, Refused(500, "InternalError", traceback.format_exc()).status)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any

    def serve(self, path, body):
        if (found := described(path)) is not None:
            self.answer(200, found)
            return
        version, rest = ("v1", path[2:]) if path[0] == "api" else ("/".join(path[1:3]), path[3:])
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, part = (*rest, None, None, None)[:3]
        if KINDS.get(plural, ("",))[0] != version:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        method = self.command
        if part in ("exec", "portforward") and plural == "pods":
            self.stream(self.cluster.started_pod(namespace, name), part)
        elif part == "eviction" and method == "POST":
            self.cluster.evict(namespace, name)
            self.answer(201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        elif part:
            raise Refused(404, "NotFound", f"this cluster has no {plural}/{part}")
        elif method == "GET" and name:
            self.answer(200, self.cluster.get(plural, namespace, name))
        elif method == "GET" and self.query.get("watch") in ("true", "1"):
            self.watch(plural, namespace)
        elif method == "GET":
            self.answer(200, {"kind": KINDS[plural][1] + "List", "apiVersion": version, "metadata": {"resourceVersion": str(self.cluster.version)},
                              "items": self.cluster.list(plural, namespace, self.query)})
        elif method == "POST":
            self.answer(201, self.cluster.create(plural, namespace, body))
        elif method == "PATCH":
            self.answer(200, self.cluster.change(plural, namespace, name, body))
        else:
            self.cluster.delete(plural, namespace, name)
            self.answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def watch(self, plural, namespace):
        """Of objects that change, until the other side has enough."""
        if "sendInitialEvents" in self.query:
            raise Refused(422, "Invalid", "this cluster begins no watch with a list")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        seen, end = {}, time.monotonic() + int(self.query.get("timeoutSeconds", "300"))
        while time.monotonic() < end:
            with self.cluster.changed:
                now = {one["metadata"]["uid"]: copy.deepcopy(one) for one in self.cluster.list(plural, namespace, self.query)}
                for key, one in now.items():
                    if seen.get(key) != one:
                        self.wfile.write(json.dumps({"type": "MODIFIED" if key in seen else "ADDED", "object": one}).encode() + b"\n")
                for key in seen.keys() - now.keys():
                    self.wfile.write(json.dumps({"type": "DELETED", "object": seen[key]}).encode() + b"\n")
                seen = now
                self.wfile.flush()
                self.cluster.changed.wait(1)

    def stream(self, pod, part):
        if self.headers.get("Upgrade", "").upper() != "SPDY/3.1":
            raise Refused(400, "BadRequest", "this cluster speaks SPDY/3.1 alone")
        offered = {one.strip() for text in self.headers.get_all("X-Stream-Protocol-Version", []) for one in text.split(",")}
        protocol = "v4.channel.k8s.io" if part == "exec" else "portforward.k8s.io"
        if protocol not in offered:
            raise Refused(403, "Forbidden", f"not {protocol}")
        self.send_response(101)
        for name, value in (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", protocol)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        connection = spdy.Connection(self.rfile, self.connection)
        if part == "exec":
            execute(connection, pod, self.many["command"],
                    {"error", *(one for one in ("stdin", "stdout", "stderr") if self.query.get(one) in ("true", "1"))})
        else:
            forward(connection, pod)


def execute(connection, pod, command, wanted):
    """Streams of a command in the pod, and how it ended."""
    streams, process, pumps = {}, None, []

    def pump(file, stream):
        while data := os.read(file.fileno(), 1 << 16):
            connection.send(stream, data)
        connection.send(stream, last=True)

    def finish():
        for thread in pumps:
            thread.join()
        code, status = process.wait(), {"metadata": {}, "status": "Success"}
        if code != 0:
            status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": f"command terminated with exit code {code}",
                      "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        connection.send(streams["error"], json.dumps(status).encode())
        connection.send(streams["error"], last=True)

    try:
        for stream, said, last in connection.events():
            if last is None:
                streams[said["streamtype"]] = stream
                if process is None and wanted <= streams.keys():
                    process = subprocess.Popen(pod.inside(*command), stdin=subprocess.PIPE if "stdin" in wanted else subprocess.DEVNULL,
                                               stdout=subprocess.PIPE if "stdout" in wanted else subprocess.DEVNULL,
                                               stderr=subprocess.PIPE if "stderr" in wanted else subprocess.DEVNULL)
                    pumps = [threading.Thread(target=pump, args=(getattr(process, one), streams[one]), daemon=True)
                             for one in ("stdout", "stderr") if one in wanted]
                    for thread in (*pumps, threading.Thread(target=finish, daemon=True)):
                        thread.start()
            elif process and stream == streams.get("stdin"):
                try:
                    process.stdin.write(said)
                    process.stdin.flush()
                    if last:
                        process.stdin.close()
                except (BrokenPipeError, ValueError):  # it reads no more
                    continue
    finally:
        if process and process.poll() is None:
            process.kill()


def forward(connection, pod):
    """Connections to ports of the pod, each two streams: what is wrong with it, and what goes through."""
    errors, sockets = {}, {}  # streams by request; by stream

    def back(opened, stream, error):
        try:
            while data := opened.recv(1 << 16):
                connection.send(stream, data)
        except OSError:
            pass
        for one in (stream, error):
            connection.send(one, last=True)

    try:
        for stream, said, last in connection.events():
            if last is None and said["streamtype"] == "error":
                errors[said["requestid"]] = stream
            elif last is None:
                error = errors.pop(said["requestid"])
                try:
                    sockets[stream] = opened = socket.create_connection((pod.address, int(said["port"])), timeout=20)
                    opened.settimeout(None)
                except OSError as wrong:
                    connection.send(error, str(wrong).encode())
                    for one in (error, stream):
                        connection.send(one, last=True)
                    continue
                threading.Thread(target=back, args=(opened, stream, error), daemon=True).start()
            elif stream in sockets:
                try:
                    sockets[stream].sendall(said)
                    if last:
                        sockets[stream].shutdown(socket.SHUT_WR)
                except OSError:  # the pod has closed it
                    continue
    finally:
        for one in sockets.values():
            one.close()


def described(path):
    """What kubectl asks before it asks for objects: versions, kinds, and that the server looks at fields itself."""
    def listed(version):
        rows = [{"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": of_namespace,
                 "shortNames": [SHORT[plural]] if plural in SHORT else [],
                 "verbs": ["create", "delete", "get", "list", "patch", "watch"]} for plural, kind, of_namespace in RESOURCES[version]]
        if version == "v1":
            rows.append({"name": "pods/eviction", "singularName": "", "kind": "Eviction", "namespaced": True, "group": "policy", "version": "v1",
                         "verbs": ["create"]})
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": rows}

    def group(version):
        name, number = version.split("/")
        said = {"groupVersion": version, "version": number}
        return {"name": name, "versions": [said], "preferredVersion": said}

    def operations(version):
        folder = "api/v1" if version == "v1" else f"apis/{version}"
        checked = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        return {"openapi": "3.0.0", "info": {"title": "cluster", "version": "1"}, "paths": {
            f"/{folder}/{'namespaces/{namespace}/' if of_namespace else ''}{plural}/{{name}}": {"patch": {
                "parameters": [checked], "responses": {}, "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {"group": version.rpartition("/")[0], "version": version.rpartition("/")[2], "kind": kind}}}
            for plural, kind, of_namespace in RESOURCES[version]}}

    groups = [one for one in RESOURCES if one != "v1"]
    if path == ["version"]:
        return {"major": "1", "minor": "29", "gitVersion": "v1.29.0"}
    if path == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(one) for one in groups]}
    if path == ["openapi", "v3"]:
        return {"paths": {one: {"serverRelativeURL": f"/openapi/v3/{one}?hash=1"} for one in ["api/v1", *(f"apis/{each}" for each in groups)]}}
    folders = {("api", "v1"): "v1", **{("apis", *one.split("/")): one for one in groups}}
    if tuple(path) in folders:
        return listed(folders[tuple(path)])
    if path[:2] == ["openapi", "v3"] and tuple(path[2:]) in folders:
        return operations(folders[tuple(path[2:])])
    return None


def not_here(why):
    print(why)
    sys.exit(NOT_HERE)


def main():
    sys.path.insert(0, str(DEPS / "kubernetes-validate"))
    if sys.argv[1] != INSIDE:
        missing = [tool for tool in ("ip", "nsenter", "setpriv", "unshare") if shutil.which(tool) is None]
        if importlib.util.find_spec("kubernetes_validate") is None:
            missing.append("kubernetes-validate")
        if missing:
            not_here(f"no {missing[0]} here")
        others = {line.split(": ")[1] for line in pods.run("ip", "-o", "link", "show", "up").splitlines()} - {"lo"}
        if others:
            sys.exit(f"this network is not for the cluster alone, it has {', '.join(sorted(others))}: start it under `unshare --net`")
        if why := pods.why_not_here():
            not_here(why)
        os.execvp(pods.OWN[0], [*pods.OWN, sys.executable, os.path.abspath(__file__), INSIDE, *sys.argv[1:]])
    place, programs, nodes = pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve(), int(sys.argv[4])
    place.mkdir(parents=True, exist_ok=True)
    pods.make_network()
    pods.run("mount", "-t", "tmpfs", "tmpfs", place)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Handler.cluster = Cluster(place, programs, nodes)
    server = http.server.ThreadingHTTPServer(ADDRESS, Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.cluster.control()


if __name__ == "__main__":
    main()
