"""Pods of StatefulSets and DaemonSets: wanted, started once what they mount is there, probed, started again when they end, and ended."""

import base64
import concurrent.futures
import copy
import os
import pathlib
import time
import traceback
import uuid

from pods import pod as pods
from pods.objects import Refused, not_found

DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
STEP = 0.2  # seconds between looks at pods
REST_MAX = 60  # seconds until a pod that ends is started again: 2, 4, 8, ...


def fits(node, affinity):
    """Whether a pod with that affinity may be on the node by what it requires of the node's labels."""
    labels = node["metadata"].get("labels", {})
    holds = {"In": lambda one: labels.get(one["key"]) in one["values"], "NotIn": lambda one: labels.get(one["key"]) not in one["values"],
             "Exists": lambda one: one["key"] in labels, "DoesNotExist": lambda one: one["key"] not in labels}
    terms = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    return terms is None or any(all(holds[one["operator"]](one) for one in term.get("matchExpressions", [])) for term in terms)


def without_gpus(item):
    """With slots of CPU in their place."""
    item = copy.deepcopy(item)
    container = item["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--device=cpu" if one == "--device=gpu" else one for one in container["args"]]
    return item


class Running:
    """A pod of a StatefulSet, or of a DaemonSet, where its ordinal is the name of its node, from when it is wanted: its object, and its processes once it has started."""

    def __init__(self, owner, ordinal, node):
        template, name = owner["spec"]["template"], f"{owner['metadata']['name']}-{ordinal}"
        self.owner, self.ordinal, self.node, self.process = owner, ordinal, node, None
        self.started = self.ready = self.ending = False
        self.ends, self.rests_until = 0, 0.0
        self.uid, self.name, self.waits_for = str(uuid.uuid4()), name, "a node"
        self.labels = {**template["metadata"]["labels"], **({"statefulset.kubernetes.io/pod-name": name} if owner["kind"] == "StatefulSet" else {})}

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
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner["kind"], "name": owner["metadata"]["name"],
                                 "uid": owner["metadata"]["uid"], "controller": True}]},
            "spec": {**owner["spec"]["template"]["spec"], **({"nodeName": self.node} if self.node else {})},
            "status": {"phase": "Running" if up else "Pending", "podIP": self.process.address if up else "",
                       "conditions": [ready], "containerStatuses": [container]}}


class Controller:
    """Thread-safe: it holds `changed` of the objects, of which it reads what pods need. One thread (`control`) starts and
    probes pods."""

    def __init__(self, objects, place, programs):
        self.objects, self.place, self.programs = objects, place, programs
        self.changed, self.running = objects.changed, {}  # by (namespace, name)

    # What is asked of it.

    def find(self, namespace, name):
        """The pod's object, or None."""
        with self.changed:
            one = self.running.get((namespace, name))
            return one and one.object()

    def all(self):
        """Objects of all pods."""
        with self.changed:
            return [one.object() for one in self.running.values()]

    def with_status(self, item):
        """With what has become of its pods, if it has any."""
        if item["kind"] not in ("StatefulSet", "DaemonSet"):
            return item
        said = item["metadata"]
        own = [one for one in self.running.values() if one.owner["metadata"]["uid"] == said["uid"]]
        ready = sum(one.ready for one in own)
        if item["kind"] == "DaemonSet":
            wanted = len(self.nodes_of(item))
            return {**item, "status": {"observedGeneration": said["generation"], "desiredNumberScheduled": wanted, "currentNumberScheduled": len(own),
                                       "updatedNumberScheduled": len(own), "numberReady": ready, "numberAvailable": ready, "numberMisscheduled": 0}}
        return {**item, "status": {"observedGeneration": said["generation"], "replicas": len(own), "readyReplicas": ready, "updatedReplicas": len(own),
                                   "currentReplicas": len(own), "currentRevision": "1", "updateRevision": "1"}}

    def write_secret(self, item):
        """For pods that mount it."""
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
                print(f"{name} was to end, exit code {one.process.delete()}", flush=True)
        finally:
            with self.changed:
                del self.running[namespace, name]
                self.changed.notify_all()

    def evict(self, namespace, name):
        """As `end` does, where budgets allow it."""
        if self.find(namespace, name) is None:
            raise not_found("pods", name)
        self.end(namespace, name, self.hold_to_budgets)

    def hold_to_budgets(self, one):
        """Of the pods that are wanted, there or not, so many others may be without one that is ready."""
        namespace = one.owner["metadata"]["namespace"]
        for budget in self.objects.all("poddisruptionbudgets", namespace):
            selector = budget["spec"]["selector"]["matchLabels"].items()
            if not selector <= one.labels.items():
                continue
            wanted = sum(item["spec"].get("replicas", 1) for item in self.objects.all("statefulsets", namespace)
                         if selector <= item["spec"]["template"]["metadata"]["labels"].items())
            ready = sum(other.ready for (where, _), other in self.running.items()
                        if where == namespace and other is not one and selector <= other.labels.items())
            if wanted - 1 - ready >= budget["spec"]["maxUnavailable"]:
                raise Refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")

    def end_all(self, namespace):
        """With what they have mounted."""
        with self.changed:
            there = [key for key in self.running if key[0] == namespace]
        with concurrent.futures.ThreadPoolExecutor() as threads:
            list(threads.map(lambda key: self.end(*key), there))
        pods.run("rm", "-rf", self.place / "claims", self.place / "secrets")

    def process_of(self, namespace, name):
        """Of a pod that runs."""
        with self.changed:
            one = self.running.get((namespace, name))
            if one is None:
                raise not_found("pods", name)
            if one.process is None or not one.process.alive():
                raise Refused(409, "Conflict", f"pod {name} does not run")
            return one.process

    # What it does by itself.

    def control(self):
        """For ever."""
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
        for item in self.objects.all("statefulsets"):
            namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
            for ordinal in range(item["spec"].get("replicas", 1)):
                if (namespace, f"{name}-{ordinal}") not in self.running:
                    self.running[namespace, f"{name}-{ordinal}"] = Running(item, ordinal, None)
        for item in self.objects.all("daemonsets"):
            for node in self.nodes_of(item):
                key = item["metadata"]["namespace"], f"{item['metadata']['name']}-{node}"
                if key not in self.running:
                    self.running[key] = Running(item, node, node)

    def nodes_of(self, item):
        """Names of those on which a DaemonSet has a pod, whether or not others may come there."""
        return [node["metadata"]["name"] for node in self.objects.all("nodes") if fits(node, item["spec"]["template"]["spec"].get("affinity", {}))]

    def node_for(self, one):
        """That with the fewest pods. Alone on it where an affinity keeps it, or one that is there, from others."""
        def affinity(pod):
            return pod.owner["spec"]["template"]["spec"].get("affinity", {})
        free = {}
        for node in self.objects.all("nodes"):
            name = node["metadata"]["name"]
            there = [pod for pod in self.running.values() if pod.node == name]
            if not node["spec"].get("unschedulable") and fits(node, affinity(one)) and not (
                    there and any("podAntiAffinity" in affinity(pod) for pod in [one, *there])):
                free[name] = len(there)
        return min(free, key=free.get, default=None)

    def missing(self, one):
        """What the pod waits for, or nothing."""
        spec, namespace = one.owner["spec"]["template"]["spec"], one.owner["metadata"]["namespace"]
        one.node = one.node or self.node_for(one)
        if one.node is None:
            return "a node"
        if self.objects.find("serviceaccounts", namespace, spec["serviceAccountName"]) is None:
            return f"the service account {spec['serviceAccountName']}"
        service = one.owner["spec"].get("serviceName")
        if service and self.objects.find("services", namespace, service) is None:
            return f"the service {service}"
        alone = {mount["name"]: mount["subPathExpr"].replace("$(POD_NAME)", one.name).replace("$(NODE_NAME)", one.node)
                 for mount in spec["containers"][0]["volumeMounts"] if "subPathExpr" in mount}
        for volume in spec["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and self.objects.find("persistentvolumeclaims", namespace, claim) is None:
                return f"the claim {claim}"
            for secret in pods.secrets_of(volume):
                there = (self.objects.find("secrets", namespace, secret["name"]) or {}).get("data", {})
                wanted = secret["items"] or ([alone[volume["name"]]] if volume["name"] in alone else [])
                if not there or any(one not in there for one in wanted):
                    return f"the secret {secret['name']}, or a file of it"
        others = self.services(namespace)
        calls = [service for service in others if any(f"={service}:" in argument for argument in spec["containers"][0]["args"])]
        return "" if all(others[service] for service in calls) else "the service that it calls"

    def services(self, namespace):
        """{name: address of a pod behind it, or nothing}, also with the namespace behind the name."""
        found = {}
        for item in self.objects.all("services", namespace):
            if item["spec"].get("clusterIP") != "None":
                name = item["metadata"]["name"]
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
            one.process = pods.Pod(self.place, self.programs, DEPS, without_gpus(one.owner), one.ordinal, hosts, one.node)
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
