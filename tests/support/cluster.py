"""A coordinator and workers as real processes on loopback, for tests in Python.

    with Cluster(programs) as cluster:          # folder of the programs
        cluster.start_worker("a", devices=4)
        cluster.phalanx("submit", "job.yaml")

Every wait has a deadline. What is started here is ended with it, ranks included. Not thread-safe.
"""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time


PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent(number=signal.SIGTERM):
    """Of a child: whatever ends the test ends it, too."""
    LIBC.prctl(PR_SET_PDEATHSIG, number)


class Cluster:
    def __init__(self, programs, coordinator_flags=()):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._folder.name)
        self._programs = pathlib.Path(programs).resolve()
        self._coordinator_flags = list(coordinator_flags)
        self._starts = 0
        self.workers = {}
        self.coordinator = None
        self.grpc, self.http = "127.0.0.1:0", "127.0.0.1:0"
        self.start_coordinator()

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        for process in [*self.workers.values(), self.coordinator]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*self.workers.values(), self.coordinator]:
            end(process)
        if failure is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"-- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))
        self._folder.cleanup()

    def _start(self, name, program, flags):
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen([self._programs / program, *map(str, flags), f"--ready-file={ready}"],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent)
        deadline = time.monotonic() + 30
        while not ready.exists():
            try:
                raise AssertionError(f"{program} ended with {process.wait(0.02)}: {log_tail(self.folder, name)}")
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, f"{program} is not ready within 30 s: {log_tail(self.folder, name)}"
        return process, ready

    def start_coordinator(self):
        """On free ports the first time, on the same ones and the same store later."""
        flags = [f"--store={self.folder}/store", f"--listen={self.grpc}", f"--http={self.http}"]
        self.coordinator, ready = self._start("coordinator", "phalanx-coordinator", flags + self._coordinator_flags)
        addresses = json.loads(ready.read_text())
        self.grpc, self.http = addresses["grpc"], addresses["http"]

    def start_worker(self, node, devices, *flags):
        """Returns once the coordinator has let it in."""
        process, _ = self._start("worker-" + node, "phalanx-worker", [
            f"--coordinator={self.grpc}", f"--node={node}", f"--devices={devices}", "--threads=1",
            f"--state={self.folder}/state-{node}", "--grace=20", "--check-interval=0", *flags])
        self.workers[node] = process
        return process

    def environment(self):
        """As a person has it whose PATH has the programs and whose server is this one."""
        return {**{name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")},
                "PATH": f"{self._programs}:{os.environ['PATH']}", "PHALANX_SERVER": self.grpc, "LC_ALL": "C.UTF-8",
                "TZ": "UTC", "HOME": str(self.folder), "PHALANX_CONFIG": f"{self.folder}/config.yaml",
                "PHALANX_TIMEOUT": "60s"}  # tests may share their machine

    def phalanx(self, *arguments, codes=(0,), seconds=120, **options):
        """What the command prints on standard output."""
        done = subprocess.run(["phalanx", *map(str, arguments)], env=self.environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=seconds, **options)
        assert done.returncode in codes, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def await_job(self, job, condition, seconds=120):
        """The job, as `get -o json` has it, once the condition holds for it."""
        deadline = time.monotonic() + seconds
        while True:
            status = json.loads(self.phalanx("get", job, "-o", "json"))
            if condition(status):
                return status
            assert time.monotonic() < deadline, f"not within {seconds} s: {json.dumps(status, indent=1)[:3000]}"
            try:
                self.coordinator.wait(0.1)
                raise AssertionError("the coordinator has ended")
            except subprocess.TimeoutExpired:
                pass


def end(process, seconds=40):
    """Its exit code; by SIGKILL if it does not end in time."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def log_tail(folder, name):
    return (folder / f"{name}.log").read_text(errors="replace")[-1000:]
