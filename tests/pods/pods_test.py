#!/usr/bin/env python3
"""A worker's pod that is killed, and one that is deleted: the job goes on by its ladder, and the pod that takes the
place of each gets its ranks back. With certificates workers' pods join with their own tokens and train, and who was
taken back is refused.

    pods_test.py PROGRAMS

The pods are those of deploy/kustomize/base, and of production with join-token, as kubectl renders them, each in
namespaces of its own (pod.py). Needs root, namespaces, overlayfs and tools that scripts/setup brings: says what is
missing and skips (77) otherwise; where a tool is missing it fails under CI, which names PHALANX_EXIT_WITHOUT_TOOL.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
sys.path[:0] = [str(SOURCE / "tests"), str(DEPS / "kubernetes-validate")]
os.environ["PATH"] = f"{DEPS / 'kubectl'}:{os.environ['PATH']}"

from pods import pod as pods  # noqa: E402

INSIDE = "--inside"
PROGRAMS, PLACE = None, None


def not_here(why):
    print(why)
    sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))


def not_allowed(why):
    print(why)
    sys.exit(77)  # this process may not


def enter_namespaces():
    """Runs this again where mounts, networks and processes end with it."""
    if os.getuid() != 0:
        not_allowed("pods have namespaces, which root alone makes")
    missing = [tool for tool in ("ip", "kubectl", "nsenter", "setpriv", "unshare") if shutil.which(tool) is None]
    if importlib.util.find_spec("yaml") is None:
        missing.append("kubernetes-validate, which brings a reader of YAML,")
    if missing:
        not_here(f"no {missing[0]} here")
    own = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*own, "sh", "-c", 'mount -t tmpfs tmpfs "$0" && mkdir "$0/u" "$0/w" "$0/o" && '
             'mount -t overlay overlay -o "lowerdir=/,upperdir=$0/u,workdir=$0/w" "$0/o" && '
             "ip link add one type bridge && ip link add two type veth peer name three", folder], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            not_allowed(f"no namespaces, overlay file system or bridges here: {tried.stderr.strip()}")
        return subprocess.run([*own, sys.executable, __file__, INSIDE, folder, *sys.argv[1:]], check=False).returncode


def setUpModule():
    pods.make_network()
    pods.run("mount", "-t", "tmpfs", "tmpfs", PLACE)


def stateful_sets(overlay):
    import yaml  # of a folder that is on the path by now
    text = pods.run("kubectl", "kustomize", overlay)
    return {one["metadata"]["name"]: one for one in yaml.safe_load_all(text) if one and one["kind"] == "StatefulSet"}


class PodsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = PLACE / "plain"
        cls.items = stateful_sets(SOURCE / "deploy/kustomize/base")
        data = cls.place / "claims/phalanx-data"
        pods.run("/usr/bin/python3", SOURCE / "examples/make_emoji.py", "--count", "200", data / "emoji")
        pods.run("chown", "-R", "65532:65532", data)
        cls.coordinator = cls.make("phalanx-coordinator", 0).await_probe("startupProbe")

    @classmethod
    def make(cls, name, ordinal):
        hosts = {} if name == "phalanx-coordinator" else {"phalanx-coordinator": cls.coordinator.address}
        return pods.Pod(cls.place, PROGRAMS, DEPS, cls.items[name], ordinal, hosts)

    def phalanx(self, *arguments):
        return self.coordinator.execute("phalanx", *arguments)

    def await_job(self, condition, seconds=90):
        """The job, and its events by type, once the condition holds for them."""
        deadline = time.monotonic() + seconds
        while True:
            job = json.loads(self.phalanx("get", "pods", "-o", "json"))
            events = json.loads(self.phalanx("events", "pods", "-o", "json"))["events"]
            said = [(one["type"], one.get("message", "")) for one in events]
            if condition(job, said):
                return job, said
            self.assertLess(time.monotonic(), deadline, (json.dumps(job)[:2000], said, [one.tail() for one in self.workers.values()]))
            self.assertTrue(self.coordinator.probe("livenessProbe"))

    def await_events(self, kind, count):
        """Of the job, which has done a step since."""
        def condition(job, said):
            return (sum(one == kind for one, _ in said) >= count and job["phase"] == "Running"
                    and job.get("last_step", {}).get("epoch") == job.get("epoch"))
        job, said = self.await_job(condition)
        return job, [message for one, message in said if one == kind][-1]

    def submit(self):
        text = (SOURCE / "examples/emoji-captions.yaml").read_text(encoding="utf-8")
        for old, new in {"name: emoji-captions": "name: pods", "steps: 500": "steps: 1000000",
                         "ranks: 4, tp: 2, pp: 2, layers: [3, 3]": "ranks: 6, tp: 2",
                         "devices: 6": "devices: 8", "global: 48": "global: 12", "output: runs/emoji": "output: runs/pods"}.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = self.place / "claims/phalanx-data/emoji/pods.yaml"
        path.write_text(text, encoding="utf-8")
        self.phalanx("submit", "/data/emoji/pods.yaml")
        self.await_job(lambda job, _: int(job.get("last_step", {}).get("step", 0)) >= 3)

    def lose(self, end, times):
        """The second worker ends so; the job goes on without its ranks, in the processes that are left."""
        stays, goes = self.workers[0], self.workers[1]
        before = stays.ranks()
        self.assertEqual((len(before), len(goes.ranks())), (4, 4))
        begin = time.monotonic()
        end(goes)
        _, message = self.await_events("Recovered", times)
        print(f"{message} ({time.monotonic() - begin:.1f} s with the pod's end)", flush=True)
        self.assertIn("without ranks 4, 5, 6, 7", message)
        self.assertEqual(stays.ranks(), before)
        return before

    def replace(self, before, times):
        """The next pod of that name joins, and the ranks are back."""
        begin = time.monotonic()
        self.workers[1] = self.make("phalanx-worker", 1).await_probe("startupProbe").await_probe("readinessProbe")
        _, message = self.await_events("Returned", times)
        print(f"{message} ({time.monotonic() - begin:.1f} s with the pod's start)", flush=True)
        self.assertEqual(self.workers[0].ranks(), before)
        self.assertEqual(len(self.workers[1].ranks()), 4)
        nodes = json.loads(self.phalanx("nodes", "-o", "json"))["nodes"]
        self.assertEqual(sorted(one["name"] for one in nodes), ["phalanx-worker-0", "phalanx-worker-1"])

    def test_pods_that_end_are_left_out_and_those_that_replace_them_get_their_ranks(self):
        self.workers = {ordinal: self.make("phalanx-worker", ordinal) for ordinal in (0, 1)}
        for one in self.workers.values():
            one.await_probe("startupProbe").await_probe("readinessProbe")
        # Of a daemon that is stopped no probe says yes, whatever files it left.
        with self.workers[1].stopped():
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertFalse(self.workers[1].probe(kind, seconds=1), kind)
        self.workers[1].await_probe("livenessProbe").await_probe("readinessProbe")
        self.submit()

        before = self.lose(pods.Pod.kill, 1)
        self.workers[1].forget_claims()
        self.replace(before, 1)

        def delete(pod):
            self.assertEqual(pod.delete(), 0)
        before = self.lose(delete, 2)
        self.replace(before, 2)

        self.assertTrue(all(one.probe("livenessProbe") for one in self.workers.values()))
        self.phalanx("cancel", "pods")
        self.await_job(lambda job, _: job["phase"] == "Cancelled")
        self.assertEqual([one.delete() for one in (*self.workers.values(), self.coordinator)], [0, 0, 0])
        lines = (self.place / "claims/phalanx-data/emoji/runs/pods/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(one)["step"] for one in lines], list(range(1, len(lines) + 1)))


class JoiningTest(unittest.TestCase):
    """Of production with the component join-token."""

    def setUp(self):
        self.place = PLACE / self._testMethodName.split("_")[1]
        overlay, authorities = self.place / "overlay", self.place / "authorities"
        overlay.mkdir(parents=True)
        up = os.path.relpath(SOURCE / "deploy/kustomize", overlay)
        (overlay / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: phalanx\n"
            f"resources: [{up}/production]\ncomponents: [{up}/components/join-token]\n", encoding="utf-8")
        self.items = stateful_sets(overlay)
        for arguments in (("ca", "coordinator", "phalanx-coordinator"), ("ca", "node", "phalanx-worker"), ("ca", "user", "olga", "operator"),
                          ("ca", "user", "alice", "submitter"), ("nodes", "worker", "any")):
            pods.run(SOURCE / "scripts/make_ca", authorities / arguments[0], *arguments[1:])
        self.ca, nodes = authorities / "ca", authorities / "nodes"
        ca = self.ca
        self.secret("phalanx-coordinator-tls", {one: ca / one for one in ("coordinator.pem", "coordinator-key.pem", "revoked.pem")})
        both = (ca / "ca.pem").read_text() + (nodes / "ca.pem").read_text()
        (self.place / "secrets/phalanx-coordinator-tls/ca.pem").write_text(both)
        self.secret("phalanx-worker-tls", {"ca.pem": ca / "ca.pem"})
        self.secret("phalanx-worker-metrics-tls", {one: ca / one for one in (
            "node-phalanx-worker.pem", "node-phalanx-worker-key.pem", "revoked.pem")})
        self.secret("phalanx-join-ca", {"ca.pem": nodes / "ca.pem", "ca-key.pem": nodes / "ca-key.pem"})
        # Of people, who are in the coordinator's pod here.
        data = self.place / "claims/phalanx-data"
        for name in ("olga", "alice"):
            folder = data / name
            folder.mkdir(parents=True)
            for file, source in (("ca.pem", "ca.pem"), ("own.pem", f"user-{name}.pem"), ("own-key.pem", f"user-{name}-key.pem")):
                shutil.copy(ca / source, folder / file)
        pods.run("chown", "-R", "65532:65532", data)
        self.coordinator = self.make("phalanx-coordinator", 0).await_probe("startupProbe").await_probe("readinessProbe")

    def secret(self, name, files):
        folder = self.place / "secrets" / name
        folder.mkdir(parents=True)
        for file, source in files.items():
            shutil.copy(source, folder / file)

    def make(self, name, ordinal):
        hosts = {} if name == "phalanx-coordinator" else {"phalanx-coordinator": self.coordinator.address}
        return pods.Pod(self.place, PROGRAMS, DEPS, self.items[name], ordinal, hosts)

    def phalanx(self, *arguments, who="olga", codes=(0,)):
        return self.coordinator.execute(
            "phalanx", *arguments, "--server", "localhost:4444", "--tls-ca", f"/data/{who}/ca.pem",
            "--tls-certificate", f"/data/{who}/own.pem", "--tls-key", f"/data/{who}/own-key.pem", codes=codes)

    def make_tokens(self, *names):
        folder = self.place / "secrets/phalanx-join-tokens"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"token-{name}").write_text(self.phalanx("token", "create", "--node", name))
        return folder

    def make_worker(self, ordinal):
        return self.make("phalanx-worker", ordinal).await_probe("startupProbe").await_probe("readinessProbe")

    def await_refusal(self, words, *arguments, **options):
        """Of a command that goes well at first; files are looked at every 10 s."""
        deadline = time.monotonic() + 60
        while (done := self.phalanx(*arguments, codes=None, **options)).returncode == 0:
            self.assertLess(time.monotonic(), deadline, self.coordinator.tail())
        self.assertIn(words, done.stderr)

    def test_worker_joins_with_the_token_of_its_pod_alone_and_comes_back_with_its_certificate(self):
        folder = self.make_tokens("phalanx-worker-0", "phalanx-worker-1")
        worker = self.make_worker(0)
        self.assertEqual(worker.execute("ls", "/etc/phalanx/join").split(), ["token"])
        self.assertEqual(worker.execute("ls", "/etc/phalanx/tls").split(), ["ca.pem"])
        self.assertEqual(worker.execute("cat", "/etc/phalanx/join/token"), (folder / "token-phalanx-worker-0").read_text())
        self.assertEqual(worker.delete(), 0)
        worker = self.make_worker(0)
        self.assertRegex(self.phalanx("nodes"), "phalanx-worker-0 +Ready")
        self.assertEqual([worker.delete(), self.coordinator.delete()], [0, 0])

    def test_job_trains_on_workers_with_certificates_until_its_owner_is_taken_back(self):
        self.make_tokens("phalanx-worker-0", "phalanx-worker-1")
        workers = [self.make_worker(ordinal) for ordinal in (0, 1)]
        data = self.place / "claims/phalanx-data/emoji"
        pods.run("/usr/bin/python3", SOURCE / "examples/make_emoji.py", "--count", "200", data)
        text = (SOURCE / "examples/emoji-captions.yaml").read_text(encoding="utf-8")
        for old, new in {"steps: 500": "steps: 8", "warmup_steps: 60": "warmup_steps: 2", "global: 48": "global: 12"}.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        (data / "job.yaml").write_text(text, encoding="utf-8")
        pods.run("chown", "-R", "65532:65532", data)
        self.phalanx("submit", "--wait", "/data/emoji/job.yaml", who="alice")
        job = json.loads(self.phalanx("get", "emoji-captions", "-o", "json"))
        self.assertEqual((job["phase"], job["owner"]), ("Succeeded", "alice"))
        self.assertEqual(len(job["placement"]["nodes"]), 2)

        pods.run(SOURCE / "scripts/make_ca", self.ca, "revoke", "user-alice")
        shutil.copy(self.ca / "revoked.pem", self.place / "secrets/phalanx-coordinator-tls")
        self.coordinator.take_secrets()
        self.await_refusal("the certificate of alice is revoked", "list", who="alice")
        self.assertIn("emoji-captions", self.phalanx("list"))
        self.assertEqual([one.delete() for one in (*workers, self.coordinator)], [0, 0, 0])


if __name__ == "__main__":
    if sys.argv[1] != INSIDE:
        sys.exit(enter_namespaces())
    PLACE, PROGRAMS = (pathlib.Path(one).resolve() for one in sys.argv[2:4])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
