#!/usr/bin/env python3
"""Two coordinators over an etcd of three members that asks for certificates; members die, hang and come back.

    members_test.py PROGRAMS

One member that is gone, or hangs, loses nothing, and nobody waits longer than INTERRUPTION says. Without most members
nothing is accepted. A coordinator whose certificates do not fit stands by and says so. Skips (77) without etcd.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[3]
DEPS = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
ETCD = shutil.which("etcd") or shutil.which(DEPS / "etcd/etcd")
PATIENCE = 60
# Seconds from one submit that is acknowledged to the next. etcd's members elect within 2 s, and again where two of them
# got as many votes; a coordinator whose lease ended meanwhile leads again. Of another member one attempt fails, and
# where the machine is busy the two that are left may elect, too.
INTERRUPTION = 10

sys.path.insert(0, str(SOURCE / "tests"))
from support.cluster import end, end_with_parent  # noqa: E402

JOB = """\
apiVersion: phalanx/v1
kind: TrainingJob
metadata: {name: %s}
spec:
  seed: 1
  steps: 1
  precision: {compute: fp32}
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, mlp_size: 512, vocabulary: 512, context: 64}
      parallel: {ranks: 4, tp: 4}
  batch: {global: 8, micro: 2}
  data: {shards: set-000.tar, tokenizer: set.model}
  optimizer: {learning_rate: 1e-3, minimum_learning_rate: 1e-5, warmup_steps: 1}
  output: out
"""


class Authority:
    """Of the script that the documentation names."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def make(self, *arguments):
        """CA, certificate and key."""
        made = subprocess.run([SOURCE / "scripts/make_ca", self.folder, *arguments], check=True, capture_output=True, text=True)
        certificate = made.stdout.strip()
        return self.folder / "ca.pem", certificate, certificate.removesuffix(".pem") + "-key.pem"


def free_port():
    """Below those that the kernel gives to connections: free again once a member is killed."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class Members:
    """An etcd of three, which its callers reach with a certificate of its authority alone."""

    def __init__(self, folder, authority):
        self.folder = folder
        self.server, self.client = authority.make("coordinator", "127.0.0.1"), authority.make("user", "etcd-client", "operator")
        self.names = ["one", "two", "three"]
        self.tls = ssl.create_default_context(cafile=self.client[0])
        self.tls.load_cert_chain(*self.client[1:])
        for _ in range(5):  # a port that was free may be taken by then
            self.ports = {name: (free_port(), free_port()) for name in self.names}
            self.processes = {name: self._launch(name) for name in self.names}
            if all(self.await_health(name) for name in self.names):
                return
            self.end()
            for name in self.names:
                shutil.rmtree(folder / name, ignore_errors=True)  # who found no port has made none
        raise AssertionError("etcd does not start: " + "".join(self.log(name)[-1000:] for name in self.names))

    def addresses(self):
        return ",".join(f"127.0.0.1:{self.ports[name][0]}" for name in self.names)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _launch(self, name):
        client, peer = (f"{scheme}://127.0.0.1:{port}" for scheme, port in zip(("https", "http"), self.ports[name]))
        ca, certificate, key = self.server
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [ETCD, "--name", name, "--data-dir", self.folder / name, "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", ",".join(f"{one}=http://127.0.0.1:{self.ports[one][1]}" for one in self.names),
                 "--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", certificate, "--key-file", key,
                 "--enable-grpc-gateway=false", "--logger", "zap", "--log-level", "error"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=lambda: end_with_parent(signal.SIGKILL))

    def _page(self, name, path):
        with urllib.request.urlopen(f"https://127.0.0.1:{self.ports[name][0]}{path}", timeout=2, context=self.tls) as answer:
            return answer.read().decode()

    def await_health(self, name):
        """False: it has ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if json.loads(self._page(name, "/health"))["health"] == "true":
                    return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(0.05)
                return False
        raise AssertionError(f"{name} is not healthy within {PATIENCE} s: {self.log(name)[-2000:]}")

    def leader(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for name in self.names:
                if "\netcd_server_is_leader 1\n" in self._page(name, "/metrics"):
                    return name
        raise AssertionError(f"etcd's members have elected nobody within {PATIENCE} s")

    def signal(self, name, number):
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait()

    def bring_back(self, name):
        if self.processes[name].returncode is None:
            self.processes[name].send_signal(signal.SIGCONT)
        else:
            self.processes[name] = self._launch(name)
        assert self.await_health(name), self.log(name)[-2000:]

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


class Coordinators:
    def __init__(self, programs, folder, count, flags):
        self.programs, self.folder = pathlib.Path(programs), folder
        self.processes, self.addresses = [], []
        for index in range(count):
            self.start(index, flags)

    def _launch(self, name, program, flags):
        ready = self.folder / f"{name}.json"
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen([self.programs / program, *map(str, flags), f"--ready-file={ready}"],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent)
        deadline = time.monotonic() + PATIENCE
        while not ready.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"{name} ended with {process.wait(0.02)}: {self.log(name)}")
            assert time.monotonic() < deadline, f"{name} is not ready: {self.log(name)}"
        self.processes.append(process)
        return json.loads(ready.read_text())

    def start(self, index, flags):
        self.addresses.append(self._launch(f"coordinator-{index}", "phalanx-coordinator",
                                           ["--listen=127.0.0.1:0", "--http=127.0.0.1:0", *flags])["grpc"])

    def start_worker(self):
        """Returns once a coordinator has let it in."""
        self._launch("worker", "phalanx-worker", [
            f"--coordinator={','.join(self.addresses)}", "--node=here", "--devices=2", f"--state={self.folder}/state",
            "--rank-program=/bin/true", "--check-interval=0"])

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def phalanx(self, *arguments, text=None):
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "PHALANX_SERVER": ",".join(self.addresses),
                       "PHALANX_TIMEOUT": f"{PATIENCE}s", "LC_ALL": "C.UTF-8"}
        done = subprocess.run([self.programs / "phalanx", *arguments], env=environment, input=text, capture_output=True,
                              text=True, timeout=2 * PATIENCE, check=False)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            end(process)


class Submits(threading.Thread):
    """One after the other, of jobs that no node can take, until it is stopped."""

    def __init__(self, coordinators):
        super().__init__(daemon=True)
        self._coordinators = coordinators
        self._ending = threading.Event()
        self._more = threading.Condition()
        self.times = []  # when each was acknowledged
        self.jobs = {}   # name -> what the command printed
        self.failure = None
        self.start()

    def run(self):
        try:
            while not self._ending.is_set():
                name = f"waits-{len(self.jobs)}"
                said = self._coordinators.phalanx("submit", "-", "--directory", "/data", "-o", "name", text=JOB % name).strip()
                with self._more:
                    self.jobs[name] = said
                    self.times.append(time.monotonic())
                    self._more.notify_all()
        except Exception as failure:  # told of by whoever waits for the next one
            with self._more:
                self.failure = failure
                self._more.notify_all()

    def await_more(self, count):
        """So many that begin from now on, and so one of before more; the longest time without one."""
        begin = time.monotonic()
        with self._more:
            wanted = len(self.times) + count + 1
            assert self._more.wait_for(lambda: self.failure or len(self.times) >= wanted, 2 * PATIENCE), "no submit is acknowledged"
            assert self.failure is None, self.failure
            times = [begin, *(one for one in self.times if one > begin)]
        return max(later - earlier for earlier, later in zip(times, times[1:]))

    def finish(self):
        self._ending.set()
        self.join(2 * PATIENCE)
        assert self.failure is None, self.failure
        return self.jobs


class MembersTest(unittest.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self.folder = pathlib.Path(folder)
        self.authority = Authority(self.folder / "ca")
        self.members = Members(self.folder, self.authority)
        self.addCleanup(self.members.end)
        self.coordinators = Coordinators(PROGRAMS, self.folder, 2, self.flags(self.members.client))
        self.addCleanup(self.coordinators.end)

    def flags(self, files):
        names = ("--etcd-ca", "--etcd-certificate", "--etcd-key")
        return [f"--store=etcd://{self.members.addresses()}/phalanx", *(f"{name}={file}" for name, file in zip(names, files))]

    def other_than(self, member):
        return next(name for name in self.members.names if name != member)

    def chosen(self, who):
        leader = self.members.leader()
        return leader if who == "leader" else self.other_than(leader)

    def expect_kept(self, acknowledged):
        stored = [job["name"] for job in json.loads(self.coordinators.phalanx("list", "--limit", "0", "-o", "json"))["jobs"]]
        self.assertEqual(len(stored), len(set(stored)), "a job is there twice")
        self.assertEqual(set(acknowledged) - set(stored), set())

    def test_member_that_is_gone_or_hangs_loses_nothing(self):
        self.coordinators.start_worker()
        submits = Submits(self.coordinators)
        submits.await_more(5)
        for who, number in (("follower", signal.SIGKILL), ("leader", signal.SIGKILL), ("leader", signal.SIGKILL),
                            ("follower", signal.SIGSTOP), ("leader", signal.SIGSTOP)):
            member = self.chosen(who)
            self.members.signal(member, number)
            waited = submits.await_more(20)
            print(f"{who} {member}, {number.name}: {waited:.2f} s without a submit", flush=True)
            self.assertLess(waited, INTERRUPTION, self.logs())
            self.members.bring_back(member)
            submits.await_more(3)
        self.expect_kept(submits.finish())
        self.await_node("here")

    def test_without_most_members_nothing_is_accepted(self):
        submits = Submits(self.coordinators)
        submits.await_more(5)
        leader = self.members.leader()
        for member in (leader, self.other_than(leader)):
            self.members.signal(member, signal.SIGKILL)
        self.await_text(0, "serving no more")
        count = len(submits.jobs)
        self.await_text(0, "nobody knows who leads")
        self.assertLessEqual(len(submits.jobs), count + 1, "but one that was acknowledged before and is counted late")
        for member in (leader, self.other_than(leader)):
            self.members.bring_back(member)
        submits.await_more(3)
        self.expect_kept(submits.finish())

    def test_certificates_that_do_not_fit_are_told_of_and_their_successors_used(self):
        foreign = Authority(self.folder / "foreign").make("user", "stranger", "operator")
        # Whom etcd refuses learns it from a connection that breaks.
        for what, files, told in (("not known to etcd", (self.members.client[0], *foreign[1:]), "nobody knows who leads reason="),
                                  ("of another authority", foreign, "takes no TLS connection; look whether")):
            with self.subTest(what):
                own = [self.folder / f"own-{name}" for name in ("ca.pem", "certificate.pem", "key.pem")]
                for source, target in zip(files, own):
                    shutil.copy(source, target)
                index = len(self.coordinators.addresses)
                self.coordinators.start(index, self.flags(own))
                self.await_text(index, told)
                self.assertNotRegex(self.coordinators.log(f"coordinator-{index}"), r"[0-9] leads|leading")
                # The pair counts once key and certificate fit.
                for source, target in zip(self.members.client, own):
                    shutil.copy(source, f"{target}.new")
                    os.rename(f"{target}.new", target)
                self.await_text(index, f"{self.coordinators.addresses[0]} leads")

    def await_node(self, name):
        """Its daemon looks for who leads at its own pace, as a user's command does not."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(rf"^{name} +Ready", nodes := self.coordinators.phalanx("nodes"), re.MULTILINE):
            assert time.monotonic() < deadline, (nodes, self.logs())

    def await_text(self, index, text):
        deadline = time.monotonic() + PATIENCE
        while text not in self.coordinators.log(f"coordinator-{index}"):
            assert time.monotonic() < deadline, (text, self.coordinators.log(f"coordinator-{index}")[-3000:])
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(self.coordinators.processes[index].wait(0.05))

    def logs(self):
        return "".join(self.coordinators.log(f"coordinator-{index}")[-3000:] for index in range(2))


if __name__ == "__main__":
    PROGRAMS = sys.argv.pop(1)
    if ETCD is None:
        print("skipped: etcd is not installed: scripts/setup brings it")
        sys.exit(int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))
    unittest.main(verbosity=2)
