#!/usr/bin/env python3
"""What the cluster of cluster.py refuses, keeps and changes, with nothing in its pods; and streams as kubectl opens them. Skips (77)
without kubernetes-validate, which scripts/setup brings; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it fails."""

import base64
import concurrent.futures
import copy
import importlib.util
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import zlib

DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(DEPS / "kubernetes-validate")]

from pods import cluster, controller, objects, spdy  # noqa: E402

SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "here"}}
SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "worker"}, "spec": {
    "serviceName": "worker", "replicas": 3, "selector": {"matchLabels": {"app": "worker"}}, "template": {
        "metadata": {"labels": {"app": "worker"}}, "spec": {"serviceAccountName": "own", "containers": [
            {"name": "worker", "image": "worker:1", "args": [], "volumeMounts": []}], "volumes": []}}}}
BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "worker"},
          "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "worker"}}}}


class ObjectsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = cluster.Cluster(pathlib.Path(folder.name), None, 2)
        self.pods = self.cluster.controller
        self.cluster.create("namespaces", "", copy.deepcopy(SPACE))
        self.set = self.cluster.create("statefulsets", "here", copy.deepcopy(SET))
        self.pods.want()

    def refused(self, code, act, *arguments):
        with self.assertRaises(objects.Refused) as caught:
            act(*arguments)
        self.assertEqual(caught.exception.status["code"], code)

    def test_objects_are_held_to_their_schema_and_their_namespace(self):
        spoiled = copy.deepcopy(SET)
        spoiled["spec"]["replicsa"] = 2
        self.refused(400, self.cluster.create, "statefulsets", "here", spoiled)
        self.refused(404, self.cluster.create, "statefulsets", "there", copy.deepcopy(SET))
        self.refused(409, self.cluster.create, "statefulsets", "here", copy.deepcopy(SET))
        self.refused(404, self.cluster.get, "statefulsets", "here", "other")

    def test_what_a_stateful_set_says_stays(self):
        changed = copy.deepcopy(SET)
        changed["spec"]["selector"]["matchLabels"]["more"] = "label"

        def applied(item):
            return {"metadata": {"annotations": {objects.APPLIED: json.dumps(item)}}}
        self.refused(422, self.cluster.change, "statefulsets", "here", "worker", applied(changed))
        again = self.cluster.change("statefulsets", "here", "worker", applied(SET))
        self.assertEqual(again["metadata"]["uid"], self.set["metadata"]["uid"])

    def test_labels_are_put_beside_others_and_taken_away(self):
        self.cluster.change("nodes", "", "node-0", {"metadata": {"labels": {"a": "1", "b": "2"}}})
        self.cluster.change("nodes", "", "node-0", {"metadata": {"labels": {"a": None}}})
        self.assertEqual(self.cluster.get("nodes", "", "node-0")["metadata"]["labels"], {"b": "2"})
        self.assertEqual([one["metadata"]["name"] for one in self.cluster.list("nodes", "", {"labelSelector": "b=2"})], ["node-0"])

    def test_pods_wait_for_what_they_mount_and_say_for_what(self):
        first = self.pods.running["here", "worker-0"]
        self.assertEqual(self.pods.missing(first), "the service account own")
        self.cluster.create("serviceaccounts", "here", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "own"}})
        self.assertEqual(self.pods.missing(first), "the service worker")
        self.assertEqual(self.pods.with_status(self.set)["status"]["readyReplicas"], 0)
        self.refused(409, self.pods.process_of, "here", "worker-0")

    def test_an_affinity_gives_each_pod_a_node_until_there_is_none(self):
        self.set["spec"]["template"]["spec"]["affinity"] = {"podAntiAffinity": {}}
        pods = list(self.pods.running.values())
        for one in pods:
            one.node = self.pods.node_for(one)
        self.assertEqual([one.node for one in pods], ["node-0", "node-1", None])

    def test_pods_are_spread_over_nodes(self):
        pods = list(self.pods.running.values())
        for one in pods:
            one.node = self.pods.node_for(one)
        self.assertEqual([one.node for one in pods], ["node-0", "node-1", "node-0"])

    def test_an_affinity_chooses_nodes_by_their_labels(self):
        self.cluster.change("nodes", "", "node-0", {"metadata": {"labels": {"gpu": "true"}}})
        first = self.pods.running["here", "worker-0"]
        for operator, values, node in (("In", ["true"], "node-0"), ("NotIn", ["true"], "node-1"), ("Exists", None, "node-0"), ("DoesNotExist", None, "node-1"),
                                       ("In", ["false"], None)):
            term = {"matchExpressions": [{"key": "gpu", "operator": operator, **({"values": values} if values else {})}]}
            self.set["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
            self.assertEqual(self.pods.node_for(first), node, operator)

    def test_a_daemon_set_has_a_pod_on_each_node_that_it_chooses(self):
        item = copy.deepcopy(SET)
        item.update(kind="DaemonSet", metadata={"name": "daemon"})
        del item["spec"]["serviceName"], item["spec"]["replicas"]
        item["spec"]["template"]["spec"]["containers"][0]["args"] = ["--device=gpu"]
        item["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["true"]}]}]}}}
        item = self.cluster.create("daemonsets", "here", item)
        self.cluster.create("serviceaccounts", "here", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "own"}})
        self.pods.want()
        self.assertEqual(self.pods.with_status(item)["status"]["desiredNumberScheduled"], 0)
        self.cluster.change("nodes", "", "node-1", {"metadata": {"labels": {"gpu": "true"}}, "spec": {"unschedulable": True}})
        self.pods.want()
        one = self.pods.running["here", "daemon-node-1"]
        self.assertEqual((one.object()["spec"]["nodeName"], one.object()["metadata"]["ownerReferences"][0]["kind"]), ("node-1", "DaemonSet"))
        with unittest.mock.patch.object(controller.pods, "Pod") as made, unittest.mock.patch("builtins.print"):
            self.pods.start(one)
        _, _, _, started, ordinal, _, node = made.call_args.args
        self.assertEqual((started["spec"]["template"]["spec"]["containers"][0]["args"], ordinal, node), (["--device=cpu"], "node-1", "node-1"))
        one.ready = True
        status = self.pods.with_status(item)["status"]
        self.assertEqual((status["desiredNumberScheduled"], status["numberAvailable"]), (1, 1))

    def test_no_pod_goes_to_a_node_that_is_to_be_left(self):
        self.cluster.change("nodes", "", "node-0", {"spec": {"unschedulable": True}})
        self.assertEqual(self.pods.node_for(self.pods.running["here", "worker-0"]), "node-1")

    def test_evictions_keep_to_the_budget(self):
        self.cluster.create("poddisruptionbudgets", "here", copy.deepcopy(BUDGET))
        for one in self.pods.running.values():
            one.ready = one.name != "worker-2"
        self.refused(429, self.pods.evict, "here", "worker-0")
        self.pods.evict("here", "worker-2")
        self.assertEqual(len(self.cluster.list("pods", "here", {})), 2)

    def test_a_pod_that_was_evicted_counts_until_another_is_ready(self):
        self.cluster.create("poddisruptionbudgets", "here", copy.deepcopy(BUDGET))
        for one in self.pods.running.values():
            one.ready = True
        self.pods.evict("here", "worker-0")
        self.refused(429, self.pods.evict, "here", "worker-1")
        self.pods.want()
        self.refused(429, self.pods.evict, "here", "worker-1")
        self.pods.running["here", "worker-0"].ready = True
        self.pods.evict("here", "worker-1")

    def test_a_pod_that_two_end_ends_once(self):
        first = self.pods.running["here", "worker-0"]
        first.process, goes = unittest.mock.Mock(), threading.Event()
        first.process.delete.side_effect = lambda: goes.wait(60)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            both = [threads.submit(self.cluster.delete, "pods", "here", "worker-0") for _ in range(2)]
            goes.set()
            for one in both:
                self.assertIn(type(one.exception()), (type(None), objects.Refused))  # 404 where it was gone already
        first.process.delete.assert_called_once()
        self.assertNotIn(("here", "worker-0"), self.pods.running)

    def test_a_pod_whose_end_fails_is_gone(self):
        self.pods.running["here", "worker-0"].process = unittest.mock.Mock(**{"delete.side_effect": AssertionError("late")})
        self.assertRaises(AssertionError, self.cluster.delete, "pods", "here", "worker-0")
        self.assertNotIn(("here", "worker-0"), self.pods.running)

    def rounds(self, *times):
        """At those times of the clock."""
        for now in times:
            with unittest.mock.patch("time.monotonic", return_value=now):
                self.pods.go_round()

    def test_a_pod_that_does_not_start_says_why_and_is_tried_again_later(self):
        with unittest.mock.patch.object(self.pods, "missing", return_value=""), unittest.mock.patch.object(
                controller.pods, "Pod", side_effect=StopIteration("no address")) as made, unittest.mock.patch("traceback.print_exc"):
            self.rounds(100, 101.9)
            self.assertEqual(made.call_count, 3)
            self.rounds(102, 105.9)
            self.assertEqual(made.call_count, 6)
        self.assertIn("no address", json.dumps(self.cluster.get("pods", "here", "worker-0")["status"]["containerStatuses"]))

    def test_a_pod_that_ends_is_not_started_again_at_once(self):
        first = self.pods.running["here", "worker-0"]
        with unittest.mock.patch.object(self.pods, "missing", return_value=""), unittest.mock.patch.object(controller.pods, "Pod") as made, \
                unittest.mock.patch("builtins.print"):
            made.return_value.alive.return_value = False
            self.rounds(100, 101.9)
        self.assertEqual((made.call_count, first.process), (3, None))
        self.assertIn("next start", first.waits_for)

    def test_a_probe_that_fails_in_another_way_leaves_the_pod_not_ready_and_says_why(self):
        first = self.pods.running["here", "worker-0"]
        first.process, first.ready = unittest.mock.Mock(**{"probe.side_effect": subprocess.TimeoutExpired("probe", 120)}), True
        with unittest.mock.patch("traceback.print_exc"):
            self.pods.look_at(first)
        (condition,) = first.object()["status"]["conditions"]
        self.assertEqual(condition["status"], "False")
        self.assertIn("TimeoutExpired", condition["message"])

    def test_a_secret_that_changes_loses_what_it_has_no_longer(self):
        key = base64.b64encode(b"key").decode()
        self.cluster.create("secrets", "here", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"old": key}})
        self.cluster.change("secrets", "here", "keys", {"data": {"old": None, "new": key}})
        self.assertEqual([one.name for one in (self.pods.place / "secrets/keys").iterdir()], ["new"])

    def test_a_namespace_goes_with_all_that_is_in_it(self):
        self.pods.place.joinpath("claims/state").mkdir(parents=True)
        self.cluster.delete("namespaces", "", "here")
        self.assertEqual((self.cluster.list("statefulsets", "", {}), self.cluster.list("pods", "", {})), ([], []))
        self.assertFalse(self.pods.place.joinpath("claims").exists())
        self.assertEqual(len(self.cluster.list("nodes", "", {})), 2)


class PodTest(unittest.TestCase):
    """Of a pod without a root of its own."""

    def setUp(self):
        self.pod = object.__new__(controller.pods.Pod)
        self.pod.name, self.pod.address, self.pod.ended, self.pod.spec = "worker-0", "127.0.0.1", False, {"terminationGracePeriodSeconds": 60}
        self.pod.container = {"readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}}}

    def delete(self):
        with unittest.mock.patch.object(self.pod, "leave") as leave:
            code = self.pod.delete()
        leave.assert_called_once()
        return code

    def test_one_that_has_ended_or_has_no_process_yet_is_deleted(self):
        self.pod._process = subprocess.Popen(["true"])
        self.pod._process.wait(60)
        self.assertEqual(self.delete(), 0)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as self.pod._process:
            self.assertEqual(self.delete(), -9)

    def test_an_answer_that_is_not_http_is_a_no(self):
        with socket.create_server(("127.0.0.1", 0)) as server, concurrent.futures.ThreadPoolExecutor() as threads:
            self.pod.container["ports"] = [{"name": "metrics", "containerPort": server.getsockname()[1]}]
            said = threads.submit(self.pod.probe, "readinessProbe", 60)
            with server.accept()[0] as caller:
                caller.recv(1 << 16)
                caller.sendall(b"nonsense\r\n\r\n")
            self.assertFalse(said.result())


class StreamsTest(unittest.TestCase):
    def test_streams_are_opened_answered_and_ended(self):
        here, there = socket.socketpair()
        with here, there, there.makefile("rb") as reader, here.makefile("rb") as answers:
            deflate, inflate = zlib.compressobj(zdict=spdy.DICTIONARY), zlib.decompressobj(zdict=spdy.DICTIONARY)
            name, value = b"streamtype", b"stdin"
            headers = deflate.compress(struct.pack(">II", 1, len(name)) + name + struct.pack(">I", len(value)) + value) + deflate.flush(zlib.Z_SYNC_FLUSH)
            here.sendall(struct.pack(">III", 0x80030001, 10 + len(headers), 1) + bytes(6) + headers)
            here.sendall(struct.pack(">III", 0x80030006, 4, 7))
            here.sendall(struct.pack(">II", 1, 1 << 24 | 4) + b"data")
            here.shutdown(socket.SHUT_WR)
            connection = spdy.Connection(reader, there)
            self.assertEqual(list(connection.events()), [(1, {"streamtype": "stdin"}, None), (1, b"data", True)])
            connection.send(1, b"back", last=True)
            kind, size, stream = struct.unpack(">III", answers.read(12))
            self.assertEqual((kind, stream, inflate.decompress(answers.read(size - 4))), (0x80030002, 1, bytes(4)))
            self.assertEqual(struct.unpack(">III", answers.read(12)), (0x80030006, 4, 7))
            self.assertEqual(struct.unpack(">II", answers.read(8)) + (answers.read(4),), (1, 1 << 24 | 4, b"back"))


if __name__ == "__main__":
    if importlib.util.find_spec("kubernetes_validate") is None:
        print("no kubernetes-validate here")
        sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))
    unittest.main()
