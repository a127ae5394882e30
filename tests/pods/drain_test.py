#!/usr/bin/env python3
"""`kubectl drain` of a node whose worker trains a job: the worker drains, the job ends its ranks with a checkpoint and goes on
behind that step when the next pod of that worker is there. And workers of the overlay `gpu`, one on each node that has GPUs.

    drain_test.py PROGRAMS

The real kubectl, against the cluster of cluster.py. Needs root, namespaces, overlayfs and tools that scripts/setup brings: says
what is missing and skips (77) otherwise; where a tool is missing it fails under CI, which names PHALANX_EXIT_WITHOUT_TOOL.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
sys.path[:0] = [str(SOURCE / "tests"), str(DEPS / "kubernetes-validate")]
os.environ["PATH"] = f"{DEPS / 'kubectl'}:{os.environ['PATH']}"

from pods import alone, pod as pods  # noqa: E402

PATIENCE = 120  # seconds
PROGRAMS, PLACE = None, None


class DrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A cluster of three nodes, of which the coordinator and each worker get one."""
        cls.log = PLACE / "cluster.log"
        with open(cls.log, "wb") as file:
            cls.cluster = subprocess.Popen([sys.executable, SOURCE / "tests/pods/cluster.py", PLACE / "cluster", PROGRAMS, "3"],
                                           stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        cls.addClassCleanup(cls.cluster.wait)
        cls.addClassCleanup(cls.cluster.kill)
        cls.await_true(cls.answers, "a cluster")
        cls.ca = PLACE / "ca"
        for arguments in (("coordinator", "phalanx-coordinator"), ("node", "phalanx-worker"), ("user", "olga", "operator"),
                          *(("worker", name) for name in ("phalanx-worker-0", "phalanx-worker-1", "node-1", "node-2"))):
            pods.run(SOURCE / "scripts/make_ca", cls.ca, *arguments)
        cls.own = PLACE / "olga"
        cls.own.mkdir()
        for file in ("ca.pem", "user-olga.pem", "user-olga-key.pem"):
            shutil.copy(cls.ca / file, cls.own)

    @staticmethod
    def answers():
        try:
            urllib.request.urlopen("http://127.0.0.1:8080/version", timeout=10).close()
            return True
        except OSError:
            return False

    def tearDown(self):
        self.kubectl("delete", "namespace", "phalanx")
        self.kubectl("uncordon", "node-0", "node-1", "node-2")

    @classmethod
    def tail(cls):
        return cls.log.read_text(errors="replace")[-5000:]

    @classmethod
    def await_true(cls, look, what):
        """What it gives, once that is something, while there is a cluster."""
        deadline = time.monotonic() + PATIENCE
        while not (found := look()):
            assert time.monotonic() < deadline, f"{what}: {cls.tail()}"
            try:
                raise AssertionError(f"the cluster has ended with {cls.cluster.wait(0.1)}: {cls.tail()}")
            except subprocess.TimeoutExpired:
                continue
        return found

    def kubectl(self, *arguments, codes=(0,)):
        done = subprocess.run(["kubectl", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
                              env={**os.environ, "HOME": str(PLACE)})  # no settings of anybody
        self.assertIn(done.returncode, codes, (arguments, done.stdout, done.stderr, self.tail()))
        return done.stdout

    def phalanx(self, *arguments):
        """As olga, whose certificate is in the coordinator's pod for that."""
        return self.kubectl("-n", "phalanx", "exec", "phalanx-coordinator-0", "--", "phalanx", "--server", "localhost:4444", "--tls-ca", "/data/olga/ca.pem",
                            "--tls-certificate", "/data/olga/user-olga.pem", "--tls-key", "/data/olga/user-olga-key.pem", *arguments)

    def apply_secret(self, name, *files):
        text = self.kubectl("-n", "phalanx", "create", "secret", "generic", name, "--dry-run=client", "-o", "yaml",
                            *(f"--from-file={self.ca / file}" for file in files))
        path = PLACE / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        self.kubectl("apply", "-f", path)

    def apply(self, overlay, workers):
        self.kubectl("create", "namespace", "phalanx")
        self.apply_secret("phalanx-coordinator-tls", "ca.pem", "coordinator.pem", "coordinator-key.pem", "revoked.pem")
        self.apply_secret("phalanx-worker-tls", "ca.pem", *sorted(one.name for one in self.ca.glob("worker-*.pem")))
        self.apply_secret("phalanx-worker-metrics-tls", "node-phalanx-worker.pem", "node-phalanx-worker-key.pem", "revoked.pem")
        self.kubectl("apply", "-k", SOURCE / "deploy/kustomize" / overlay)
        self.kubectl("-n", "phalanx", "rollout", "status", workers, f"--timeout={PATIENCE}s")
        self.kubectl("-n", "phalanx", "cp", self.own, "phalanx-coordinator-0:/data/olga")

    def node_of(self, pod):
        return self.kubectl("-n", "phalanx", "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")

    def job(self):
        return json.loads(self.phalanx("get", "emoji-captions", "-o", "json"))

    def trains(self, epoch, step):
        """The job, once it has done that step in that epoch or a later one."""
        def look():
            job = self.job()
            self.assertIn(job["phase"], ("Queued", "Starting", "Running"), job)
            last = job.get("last_step", {})
            return job if int(last.get("step", 0)) >= step and int(last.get("epoch", 0)) >= epoch else None
        return self.await_true(look, f"step {step} in epoch {epoch}")

    def submit(self):
        data = PLACE / "emoji"
        pods.run("/usr/bin/python3", SOURCE / "examples/make_emoji.py", "--count", "200", data)
        text = (SOURCE / "examples/emoji-captions.yaml").read_text(encoding="utf-8")
        for old, new in {"steps: 500": "steps: 1000000", "global: 48": "global: 12", "  output: runs/emoji": "  checkpoint: {}\n  output: runs/emoji"}.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        (data / "job.yaml").write_text(text, encoding="utf-8")
        self.kubectl("-n", "phalanx", "cp", data, "phalanx-coordinator-0:/data/emoji")
        self.phalanx("submit", "/data/emoji/job.yaml")

    def test_worker_whose_node_is_drained_drains_and_its_job_goes_on_behind_its_last_step(self):
        self.apply("base", "statefulset/phalanx-worker")
        self.submit()
        before = self.trains(1, 3)
        node = self.node_of("phalanx-worker-1")
        self.assertEqual(len({node, self.node_of("phalanx-worker-0"), self.node_of("phalanx-coordinator-0")}), 3)
        self.assertEqual(sorted(one["node"] for one in before["placement"]["nodes"]), ["phalanx-worker-0", "phalanx-worker-1"])
        said = self.kubectl("drain", "--ignore-daemonsets", "--delete-emptydir-data", node)
        self.assertIn(f"node/{node} drained", said)
        self.assertIn("phalanx-worker-1 was to end, exit code 0\n", self.log.read_text())

        events = json.loads(self.phalanx("events", "emoji-captions", "-o", "json"))["events"]
        (published,) = [one["message"] for one in events if one["type"] == "CheckpointPublished"]
        step = int(published.split()[1].rstrip(":"))
        self.trains(int(before["epoch"]) + 1, step + 3)
        self.assertNotEqual(self.node_of("phalanx-worker-1"), node)
        events = json.loads(self.phalanx("events", "emoji-captions", "-o", "json"))["events"]
        self.assertEqual([one for one in events if one["type"] in ("NodeStopped", "NodeLost", "NodeUnreachable", "RankFailed", "Verdict", "Recovered", "WentBack")], [])
        self.assertNotIn("has ended", self.log.read_text())  # no pod by itself

        self.phalanx("cancel", "emoji-captions")
        self.await_true(lambda: self.job()["phase"] == "Cancelled", "an end of the job")
        lines = self.kubectl("-n", "phalanx", "exec", "phalanx-coordinator-0", "--", "cat", "/data/emoji/runs/emoji/metrics.jsonl").splitlines()
        self.assertEqual([json.loads(one)["step"] for one in lines], list(range(1, len(lines) + 1)))
        self.assertGreaterEqual(len(lines), step + 3)

    def test_each_node_with_gpus_has_a_worker_of_its_name_that_stays_in_a_drain(self):
        self.kubectl("label", "nodes", "node-1", "node-2", "nvidia.com/gpu.present=true")
        self.apply("gpu", "daemonset/phalanx-worker")
        nodes = json.loads(self.phalanx("nodes", "-o", "json"))["nodes"]
        self.assertEqual([(one["name"], one["state"], one["devices"]) for one in sorted(nodes, key=lambda one: one["name"])],
                         [("node-1", "Ready", 8), ("node-2", "Ready", 8)])
        self.kubectl("drain", "--ignore-daemonsets", "--delete-emptydir-data", "node-1")
        self.assertEqual(self.node_of("phalanx-worker-node-1"), "node-1")


if __name__ == "__main__":
    if sys.argv[1] != alone.INSIDE:
        alone.run_again(__file__, "kubernetes_validate", "kubernetes-validate")
    PLACE, PROGRAMS = (pathlib.Path(one).resolve() for one in sys.argv[2:4])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
