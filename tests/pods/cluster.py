#!/usr/bin/env python3
"""A cluster that the real kubectl talks to, whose pods are processes (pod.py) that a controller starts and ends (controller.py):

    cluster.py FOLDER PROGRAMS NODES

Serves the part of Kubernetes' API that the commands of docs/kubernetes.md need at 127.0.0.1:8080, where kubectl looks for
a cluster by itself, until it is ended; with it go its pods, and what it has mounted at FOLDER. Objects are held to the
published schemas, strictly. Pods of StatefulSets and DaemonSets start once what they mount is there, are probed, reach services
by their names, and start again when they end; nodes are names with labels, over which pods are spread, and of which an affinity
gives each pod one of its own or chooses some. Certificates of cert-manager are made at once (issue.py). `exec`, `cp` and `port-forward` go into the pods, evictions keep to budgets.

What it has not: NetworkPolicies hold nobody, what a StatefulSet or a DaemonSet says cannot be changed, no init container runs, sizes
of volumes and requests of resources count for nothing, and where GPUs are asked for there are slots of CPU. Needs root. Mounts and processes are in namespaces that it makes
itself; the network is the caller's, where kubectl is, and has to be one that has nothing else in it (`unshare --net`), since a
bridge stays there. Exit code 77: this process may not make what pods are in, or a tool is missing.
"""

import base64
import copy
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from pods import pod as pods  # noqa: E402
from pods import spdy  # noqa: E402
from pods.controller import DEPS, Controller  # noqa: E402
from pods.issue import issue  # noqa: E402
from pods.objects import KINDS, RESOURCES, Objects, Refused, chosen_by, not_found  # noqa: E402

INSIDE = "--inside"
ADDRESS = ("127.0.0.1", 8080)
SHORT = {"namespaces": "ns", "nodes": "no", "pods": "po", "services": "svc", "serviceaccounts": "sa", "configmaps": "cm",
         "persistentvolumeclaims": "pvc", "statefulsets": "sts", "daemonsets": "ds", "networkpolicies": "netpol", "poddisruptionbudgets": "pdb"}
NOT_HERE = 77  # the exit code where it cannot be


class Cluster:
    """What kubectl may do with objects, and with the pods that a controller makes of them. Thread-safe."""

    def __init__(self, place, programs, nodes):
        self.objects = Objects()
        self.controller = Controller(self.objects, place, programs)
        self.issued = place / "issued"
        for number in range(nodes):
            self.objects.put("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}", "labels": {}}, "spec": {}})

    def create(self, plural, namespace, item):
        with self.objects.changed:
            return self.written(plural, self.objects.create(plural, namespace, item))

    def change(self, plural, namespace, name, patch):
        with self.objects.changed:
            return self.written(plural, self.objects.change(plural, namespace, name, patch))

    def written(self, plural, item):
        if plural == "secrets":
            self.controller.write_secret(item)
        if plural in ("issuers", "certificates"):
            self.issue(item["metadata"]["namespace"])
        return item

    def issue(self, namespace):
        """As cert-manager does, at once; nothing is renewed."""
        items = self.objects.all("issuers", namespace) + self.objects.all("certificates", namespace)
        for name in issue(items, self.issued / namespace):
            data = {one.name: base64.b64encode(one.read_bytes()).decode() for one in (self.issued / namespace / name).iterdir()}
            secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": name}, "data": data}
            self.written("secrets", self.objects.put("secrets", namespace, secret))

    def get(self, plural, namespace, name):
        with self.objects.changed:
            found = self.controller.find(namespace, name) if plural == "pods" else self.objects.find(plural, namespace, name)
            if found is None:
                raise not_found(plural, name)
            return self.controller.with_status(found)

    def list(self, plural, namespace, query):
        with self.objects.changed:
            found = self.controller.all() if plural == "pods" else [self.controller.with_status(one) for one in self.objects.all(plural)]
        field, _, value = query.get("fieldSelector", "").partition("=")
        where = {"": None, "metadata.name": ("metadata", "name"), "spec.nodeName": ("spec", "nodeName")}[field]
        return [one for one in found if namespace in ("", one["metadata"].get("namespace", "")) and
                chosen_by(one["metadata"].get("labels", {}), query.get("labelSelector", "")) and
                (where is None or one[where[0]].get(where[1]) == value)]

    def delete(self, plural, namespace, name):
        self.get(plural, namespace, name)
        if plural == "pods":
            self.controller.end(namespace, name)
        elif plural == "namespaces":
            self.objects.delete_namespace(name)
            self.controller.end_all(name)
            shutil.rmtree(self.issued / name, ignore_errors=True)
        else:
            raise Refused(405, "MethodNotAllowed", f"this cluster deletes no {plural}")


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
            self.stream(self.cluster.controller.process_of(namespace, name), part)
        elif part == "eviction" and method == "POST":
            self.cluster.controller.evict(namespace, name)
            self.answer(201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        elif part:
            raise Refused(404, "NotFound", f"this cluster has no {plural}/{part}")
        elif method == "GET" and name:
            self.answer(200, self.cluster.get(plural, namespace, name))
        elif method == "GET" and self.query.get("watch") in ("true", "1"):
            self.watch(plural, namespace)
        elif method == "GET":
            self.answer(200, {"kind": KINDS[plural][1] + "List", "apiVersion": version, "metadata": {"resourceVersion": str(self.cluster.objects.version)},
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
            with self.cluster.objects.changed:
                now = {one["metadata"]["uid"]: copy.deepcopy(one) for one in self.cluster.list(plural, namespace, self.query)}
                for key, one in now.items():
                    if seen.get(key) != one:
                        self.wfile.write(json.dumps({"type": "MODIFIED" if key in seen else "ADDED", "object": one}).encode() + b"\n")
                for key in seen.keys() - now.keys():
                    self.wfile.write(json.dumps({"type": "DELETED", "object": seen[key]}).encode() + b"\n")
                seen = now
                self.wfile.flush()
                self.cluster.objects.changed.wait(1)

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
    Handler.cluster.controller.control()


if __name__ == "__main__":
    main()
