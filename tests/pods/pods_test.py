#!/usr/bin/env python3
"""A worker's pod that is killed, and one that is deleted: the job goes on by its ladder, and the pod that takes the
place of each gets its ranks back. Who was taken back is refused, without a restart; a worker's pod joins with its own token.

    pods_test.py PROGRAMS

The pods are those of deploy/kustomize/base, of production, and of that with join-token, as kubectl renders them, each in
namespaces of its own (pod.py). Needs root, namespaces, overlayfs and tools that scripts/setup brings: says what is
missing and skips (77) otherwise; where a tool is missing it fails under CI, which names PHALANX_EXIT_WITHOUT_TOOL.
"""

import json
import os
import pathlib
import shutil
import ssl
import sys
import time
import unittest
import urllib.error
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
sys.path[:0] = [str(SOURCE / "tests"), str(DEPS / "kubernetes-validate")]
os.environ["PATH"] = f"{DEPS / 'kubectl'}:{os.environ['PATH']}"

from pods import alone, pod as pods  # noqa: E402
from pods.issue import issue  # noqa: E402

PROGRAMS, PLACE = None, None


def setUpModule():
    pods.make_network()
    pods.run("mount", "-t", "tmpfs", "tmpfs", PLACE)


def objects_of(overlay):
    import yaml  # of a folder that is on the path by now
    return [one for one in yaml.safe_load_all(pods.run("kubectl", "kustomize", overlay)) if one]


class Secured(unittest.TestCase):
    """Of one overlay, with components of its own, in a place of its own."""

    def render(self, name, base, *components):
        """The objects, and the place where their pods are."""
        self.place = PLACE / name
        overlay = self.place / "overlay"
        overlay.mkdir(parents=True)
        up = os.path.relpath(SOURCE / "deploy/kustomize", overlay)
        (overlay / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: phalanx\n"
            f"resources: [{up}/{base}]\ncomponents: [{', '.join(f'{up}/components/{one}' for one in components)}]\n", encoding="utf-8")
        objects = objects_of(overlay)
        self.items = {one["metadata"]["name"]: one for one in objects if one["kind"] == "StatefulSet"}
        self.ca = self.place / "ca"
        return objects

    def start(self, name, base, *components):
        self.render(name, base, *components)
        ca = self.ca
        for arguments in (("coordinator", "phalanx-coordinator"), ("node", "phalanx-worker")):
            pods.run(SOURCE / "scripts/make_ca", ca, *arguments)
        self.secret("phalanx-coordinator-tls", {one: ca / one for one in ("ca.pem", "coordinator.pem", "coordinator-key.pem", "revoked.pem")})
        self.secret("phalanx-worker-tls", {"ca.pem": ca / "ca.pem"})
        self.secret("phalanx-worker-metrics-tls", {one: ca / one for one in (
            "node-phalanx-worker.pem", "node-phalanx-worker-key.pem", "revoked.pem")})
        self.certify_people()

    def certify_people(self):
        """Who are in the coordinator's pod here."""
        for arguments in (("olga", "operator"), ("alice", "submitter")):
            pods.run(SOURCE / "scripts/make_ca", self.ca, "user", *arguments)
        data = self.place / "claims/phalanx-data"
        for name in ("olga", "alice"):
            folder = data / name
            folder.mkdir(parents=True)
            for file, source in (("ca.pem", "ca.pem"), ("own.pem", f"user-{name}.pem"), ("own-key.pem", f"user-{name}-key.pem")):
                shutil.copy(self.ca / source, folder / file)
        pods.run("chown", "-R", "65532:65532", data)

    def certify_workers(self, count):
        for ordinal in range(count):
            pods.run(SOURCE / "scripts/make_ca", self.ca, "worker", f"phalanx-worker-{ordinal}")
        self.secret("phalanx-worker-tls", {one.name: one for one in self.ca.glob("worker-*.pem")})

    def start_coordinator(self):
        self.coordinator = self.make("phalanx-coordinator", 0).await_probe("startupProbe").await_probe("readinessProbe")

    def secret(self, name, files):
        folder = self.place / "secrets" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, source in files.items():
            shutil.copy(source, folder / file)

    def make(self, name, ordinal):
        hosts = {} if name == "phalanx-coordinator" else {"phalanx-coordinator": self.coordinator.address}
        return pods.Pod(self.place, PROGRAMS, DEPS, self.items[name], ordinal, hosts)

    def phalanx(self, *arguments, who="olga", codes=(0,)):
        return self.coordinator.execute(
            "phalanx", *arguments, "--server", "localhost:4444", "--tls-ca", f"/data/{who}/ca.pem",
            "--tls-certificate", f"/data/{who}/own.pem", "--tls-key", f"/data/{who}/own-key.pem", codes=codes)

    def make_worker(self, ordinal):
        return self.make("phalanx-worker", ordinal).await_probe("startupProbe").await_probe("readinessProbe")

    def figures(self, pod, certificate, key):
        """What a worker's port for metrics answers to who shows them."""
        context = ssl.create_default_context(cafile=self.ca / "ca.pem")
        context.check_hostname = False  # all have one name
        context.load_cert_chain(certificate, key)
        try:
            with urllib.request.urlopen(f"https://{pod.address}:4446/metrics", timeout=20, context=context) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code

    def figures_of(self, pod, who):
        return self.figures(pod, self.ca / f"user-{who}.pem", self.ca / f"user-{who}-key.pem")

    def await_change(self, before, look):
        """What it gives once it is not that any more; files are looked at every 10 s."""
        deadline = time.monotonic() + 60
        while (now := look()) == before:
            self.assertLess(time.monotonic(), deadline, self.coordinator.tail())
        return now


class PodsTest(Secured):
    def setUp(self):
        self.start("base", "base")
        self.certify_workers(2)
        data = self.place / "claims/phalanx-data/emoji"
        pods.run("/usr/bin/python3", SOURCE / "examples/make_emoji.py", "--count", "200", data)
        pods.run("chown", "-R", "65532:65532", data)
        self.start_coordinator()

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


class CertificatesTest(Secured):
    def setUp(self):
        self.start("certificates", "production")
        self.certify_workers(2)
        self.start_coordinator()

    def submit(self, who):
        data = self.place / "claims/phalanx-data/emoji"
        pods.run("/usr/bin/python3", SOURCE / "examples/make_emoji.py", "--count", "200", data)
        text = (SOURCE / "examples/emoji-captions.yaml").read_text(encoding="utf-8")
        for old, new in {"steps: 500": "steps: 8", "warmup_steps: 60": "warmup_steps: 2", "global: 48": "global: 12"}.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        (data / "job.yaml").write_text(text, encoding="utf-8")
        pods.run("chown", "-R", "65532:65532", data)
        self.phalanx("submit", "--wait", "/data/emoji/job.yaml", who=who)

    def take_back(self, name, *readers):
        """Of who the certificate is: the list in the secrets that have it, and so in the pods."""
        pods.run(SOURCE / "scripts/make_ca", self.ca, "revoke", name)
        for secret in ("phalanx-coordinator-tls", "phalanx-worker-metrics-tls"):
            self.secret(secret, {"revoked.pem": self.ca / "revoked.pem"})
        for pod in readers:
            pod.take_secrets()

    def test_job_trains_and_who_is_taken_back_is_refused_by_coordinator_and_workers(self):
        workers = [self.make_worker(ordinal) for ordinal in (0, 1)]
        self.submit("alice")
        job = json.loads(self.phalanx("get", "emoji-captions", "-o", "json"))
        self.assertEqual((job["phase"], job["owner"]), ("Succeeded", "alice"))
        self.assertEqual(len(job["placement"]["nodes"]), 2)
        self.assertEqual(self.figures_of(workers[0], "alice"), 200)

        self.take_back("user-alice", self.coordinator, *workers)
        refused = self.await_change(None, lambda: self.phalanx("list", who="alice", codes=None).stderr or None)
        self.assertIn("the certificate of alice is revoked", refused)
        self.assertEqual(self.await_change(200, lambda: self.figures_of(workers[0], "alice")), 401)
        self.assertEqual(self.figures_of(workers[0], "olga"), 200)
        self.assertIn("emoji-captions", self.phalanx("list"))
        self.assertEqual([one.delete() for one in (*workers, self.coordinator)], [0, 0, 0])


class JoiningTest(Secured):
    def setUp(self):
        self.start("joining", "production", "join-token")
        nodes = self.place / "nodes"
        pods.run(SOURCE / "scripts/make_ca", nodes, "worker", "any")
        both = self.place / "both.pem"
        both.write_text((self.ca / "ca.pem").read_text() + (nodes / "ca.pem").read_text())
        self.secret("phalanx-coordinator-tls", {"ca.pem": both})
        self.secret("phalanx-join-ca", {"ca.pem": nodes / "ca.pem", "ca-key.pem": nodes / "ca-key.pem"})
        self.start_coordinator()

    def test_worker_joins_with_the_token_of_its_pod_alone_and_comes_back_with_its_certificate(self):
        folder = self.place / "secrets/phalanx-join-tokens"
        folder.mkdir()
        for name in ("phalanx-worker-0", "phalanx-worker-1"):
            (folder / f"token-{name}").write_text(self.phalanx("token", "create", "--node", name))
        worker = self.make_worker(0)
        self.assertEqual(worker.execute("ls", "/etc/phalanx/join").split(), ["token"])
        self.assertEqual(worker.execute("ls", "/etc/phalanx/tls").split(), ["ca.pem"])
        self.assertEqual(worker.execute("cat", "/etc/phalanx/join/token"), (folder / "token-phalanx-worker-0").read_text())
        self.assertEqual(worker.delete(), 0)
        worker = self.make_worker(0)
        self.assertRegex(self.phalanx("nodes"), "phalanx-worker-0 +Ready")
        self.assertEqual([worker.delete(), self.coordinator.delete()], [0, 0])


class IssuedTest(Secured):
    """Secrets as cert-manager fills them (issue.py)."""

    def setUp(self):
        objects = self.render("issued", "production", "cert-manager")
        self.secrets = self.place / "secrets"
        issue(objects, self.secrets)
        # As docs/kubernetes.md has it.
        self.ca.mkdir()
        for ours, theirs in (("ca.pem", "tls.crt"), ("ca-key.pem", "tls.key")):
            shutil.copy(self.secrets / "phalanx-ca" / theirs, self.ca / ours)
        self.certify_people()
        self.secret("phalanx-revoked", {"revoked.pem": self.ca / "revoked.pem"})
        self.start_coordinator()

    def test_workers_join_and_who_scrapes_is_let_in_until_taken_back(self):
        self.secret("phalanx-join-tokens", {})
        token = self.secrets / "phalanx-join-tokens/token-phalanx-worker-0"
        token.write_text(self.phalanx("token", "create", "--node", "phalanx-worker-0"))
        worker = self.make_worker(0)
        self.assertEqual(worker.execute("ls", "/etc/phalanx/tls").split(), ["ca.pem"])
        self.assertRegex(self.phalanx("nodes"), "phalanx-worker-0 +Ready")

        shown = self.secrets / "phalanx-metrics-certificate"
        def ask():
            return self.figures(worker, shown / "tls.crt", shown / "tls.key")
        self.assertEqual(ask(), 200)
        shutil.copy(shown / "tls.crt", self.ca / "issued/prometheus=1.pem")
        pods.run(SOURCE / "scripts/make_ca", self.ca, "revoke", "prometheus")
        self.secret("phalanx-revoked", {"revoked.pem": self.ca / "revoked.pem"})
        worker.take_secrets()
        self.assertEqual(self.await_change(200, ask), 401)

        # The worker's own certificate is of the authority between, and comes back with it.
        self.assertEqual(worker.delete(), 0)
        worker = self.make_worker(0)
        self.assertRegex(self.phalanx("nodes"), "phalanx-worker-0 +Ready")
        self.assertEqual([worker.delete(), self.coordinator.delete()], [0, 0])


if __name__ == "__main__":
    if sys.argv[1] != alone.INSIDE:
        alone.run_again(__file__, "yaml", "kubernetes-validate, which brings a reader of YAML,")
    PLACE, PROGRAMS = (pathlib.Path(one).resolve() for one in sys.argv[2:4])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
