"""Pods as a node of Kubernetes runs them, without a container engine: for tests that run in namespaces of their own.

A pod is one container of a rendered StatefulSet or DaemonSet: its command, arguments and environment and nothing else of this
one's, its user, its root, which it cannot write, its volumes, an address and processes of its own. Programs of
Phalanx are in /usr/bin there, as an image has them. An emptyDir goes with the pod; a claim stays, until it is
forgotten; a secret is a folder below `secrets` of the place. Every wait has a deadline. Not thread-safe.
"""

import contextlib
import http.client
import os
import pathlib
import shlex
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

NETWORK = "10.244.0"
# Runs a command where mounts and processes end with it.
OWN = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]


def run(*command, **options):
    return subprocess.run([str(one) for one in command], check=True, capture_output=True, text=True, **options).stdout


def why_not_here():
    """What this process may not make of what pods are in; empty where it may."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*OWN, "--net", "--uts", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && mkdir "$0/u" "$0/w" "$0/o" && '
             'mount -t overlay overlay -o "lowerdir=/,upperdir=$0/u,workdir=$0/w" "$0/o" && '
             "ip link add one type bridge && ip link add two type veth peer name three", folder], capture_output=True, text=True, check=False)
    return f"no namespaces, overlay file system or bridges here: {tried.stderr.strip()}" if tried.returncode != 0 else ""


def make_network():
    """One switch, at which this namespace is the node."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "pods", "type", "bridge")
    run("ip", "address", "add", f"{NETWORK}.1/24", "dev", "pods")
    run("ip", "link", "set", "pods", "up")


def size_of(text):
    return text.replace("Ki", "k").replace("Mi", "m").replace("Gi", "g")


def secrets_of(volume):
    """Of a volume: the secrets that are in it, with which of their files ("items": {file: name there}; empty: all)."""
    sources = [volume["secret"]] if "secret" in volume else [one["secret"] for one in volume.get("projected", {}).get("sources", [])]
    return [{"name": one.get("secretName") or one["name"], "items": {item["key"]: item["path"] for item in one.get("items", [])}} for one in sources]


class Pod:
    numbers = iter(range(2, 250))  # of addresses: the pod that replaces another has one of its own

    def __init__(self, place, programs, libraries, item, ordinal, hosts, node=""):
        """`place`: a folder in memory. `hosts`: names of services, and their addresses. `node`: that it is on."""
        self.name = f"{item['metadata']['name']}-{ordinal}"
        number = next(Pod.numbers)
        self.address = f"{NETWORK}.{number}"
        self.spec = item["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.user = self.spec["securityContext"]["runAsUser"]
        self.claims = {one["metadata"]["name"]: f"{one['metadata']['name']}-{self.name}"
                       for one in item["spec"].get("volumeClaimTemplates", [])}
        self.node, self.labels = node, item["spec"]["template"]["metadata"]["labels"]
        self.ended = False
        self._place = place / f"{self.name}.{number}"
        self._claims = place / "claims"
        self._link = f"pod{number}"
        self.log = place / f"{self.name}.{number}.log"
        self._start(programs, libraries, hosts)

    def _volumes(self):
        """Commands that mount them below $R."""
        kinds = {one["name"]: one for one in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume, at = kinds.get(mount["name"], {}), f"$R{mount['mountPath']}"
            yield f"mkdir -p {at}"
            if "emptyDir" in volume:
                size = size_of(volume["emptyDir"]["sizeLimit"])
                yield f"mount -t tmpfs -o mode=777,size={size} tmpfs {at}"
                continue
            if "secret" in volume or "projected" in volume:
                yield from self._secret(volume, mount, at)
                continue
            claim = volume["persistentVolumeClaim"]["claimName"] if volume else self.claims[mount["name"]]
            folder = self._claims / claim
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, self.user, self.spec["securityContext"]["fsGroup"])
            yield f"mount --bind {shlex.quote(str(folder))} {at}"

    def _put(self, volume, kept):
        """Its files, each by a rename, of root and the pod's group."""
        whole = volume.get("secret") or volume["projected"]
        for secret in secrets_of(volume):
            folder = self._claims.parent / "secrets" / secret["name"]
            for file, name in secret["items"].items() if secret["items"] else ((one.name, one.name) for one in folder.iterdir()):
                copy = shutil.copy(folder / file, kept / f".{name}")
                os.chown(copy, 0, self.spec["securityContext"]["fsGroup"])
                os.chmod(copy, whole["defaultMode"])
                copy.rename(kept / name)

    def take_secrets(self):
        """As they are now; a cluster does that by itself, in a minute or two."""
        for volume in self.spec["volumes"]:
            if secrets_of(volume):
                self._put(volume, self._place / volume["name"])

    def _secret(self, volume, mount, at):
        """As it was when the pod started, until take_secrets, and nobody there changes it."""
        kept = self._place / mount["name"]
        kept.mkdir()
        self._put(volume, kept)
        alone = self._filled(mount.get("subPathExpr", ""))
        if alone:
            yield f"rmdir {at}; touch {at}"
        yield f"mount --bind {shlex.quote(str(kept / alone))} {at}; mount -o remount,bind,ro {at}"

    def _variables(self):
        fields = {"metadata.name": self.name, "status.podIP": self.address, "spec.nodeName": self.node}

        def field(path):
            return self.labels.get(path.split("'")[1], "") if path.startswith("metadata.labels[") else fields[path]
        return {one["name"]: one.get("value") or field(one["valueFrom"]["fieldRef"]["fieldPath"]) for one in self.container.get("env", [])}

    def _filled(self, text):
        for name, value in self._variables().items():
            text = text.replace(f"$({name})", value)
        assert "$(" not in text, text
        return text

    def _command(self):
        return self._as_user(self._variables(), [self._filled(one) for one in self.container["command"] + self.container["args"]])

    def _as_user(self, variables, arguments):
        context = self.container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        group = self.spec["securityContext"]["runAsGroup"]
        return ["setpriv", f"--reuid={self.user}", f"--regid={group}", "--clear-groups", "--no-new-privs",
                "--bounding-set=-all", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                *(f"{name}={value}" for name, value in variables.items()), *arguments]

    def _start(self, programs, libraries, hosts):
        for folder in ("upper", "work", "root"):
            (self._place / folder).mkdir(parents=True)
        names = "\n".join(f"{address} {name}" for name, address in {**hosts, "localhost": "127.0.0.1"}.items())
        (self._place / "hosts").write_text(names + "\n", encoding="utf-8")
        run("ip", "netns", "add", self._link)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._link)
        run("ip", "link", "set", self._link, "master", "pods", "up")
        run("ip", "-n", self._link, "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            run("ip", "-n", self._link, "link", "set", link, "up")
        script = "\n".join([
            "set -eu", f"P={shlex.quote(str(self._place))} R={shlex.quote(str(self._place))}/root", f"hostname {self.name}",
            "mount -t overlay overlay -o lowerdir=/,upperdir=$P/upper,workdir=$P/work $R",
            "mount -t proc proc $R/proc", "mount --rbind /dev $R/dev", "mount -t tmpfs -o mode=755 tmpfs $R/run",
            "rm -f $R/etc/hosts; cp $P/hosts $R/etc/hosts",
            f"for one in phalanx phalanx-coordinator phalanx-worker phalanx-rank; do rm -f $R/usr/bin/$one; touch $R/usr/bin/$one; "
            f"mount --bind {shlex.quote(str(programs))}/$one $R/usr/bin/$one; done",
            # LibTorch, which a package brings: who runs ranks has to reach it.
            f"D={shlex.quote(str(libraries))}; mkdir -p $R$D; mount --bind $D $R$D",
            "while D=${D%/*} && [ -n \"$D\" ]; do chmod a+x $R$D; done",
            *self._volumes(), "mount -o remount,ro $R", f"exec chroot $R {shlex.join(self._command())}"])
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._link, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
                 "--propagation", "private", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _init(self):
        """Process 1 of the pod, as this namespace numbers it; nothing while there is none yet, or no longer."""
        try:
            children = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def _signal(self, number):
        """To its process 1; where there is none yet, what would make it ends at once."""
        process = self._init()
        if process is None:
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(process, number)

    def ranks(self):
        """Processes of ranks, as this namespace numbers them."""
        found, left = set(), [self._init()]
        while left:
            process = left.pop()
            try:
                left += [int(one) for task in pathlib.Path(f"/proc/{process}/task").iterdir()
                         for one in (task / "children").read_text().split()]
                if pathlib.Path(f"/proc/{process}/comm").read_text().strip() == "phalanx-rank":
                    found.add(process)
            except OSError:  # it has ended
                continue
        return found

    def alive(self):
        """Whether its process 1 is there, or is about to be."""
        return not self.ended and self._process.poll() is None

    def inside(self, *command):
        """A command that runs this one in the pod."""
        return ["nsenter", f"--target={self._init()}", "--mount", "--uts", "--net", "--pid", "--root", "--wd",
                *self._as_user({}, [str(one) for one in command])]

    def execute(self, *command, seconds=120, codes=(0,)):
        """As `kubectl exec` does."""
        done = subprocess.run(self.inside(*command), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        assert codes is None or done.returncode in codes, (command, done.returncode, done.stdout, done.stderr, self.tail())
        return done if codes is None else done.stdout

    def probe(self, kind, seconds=None):
        """Whether the container's probe of that kind says yes, by HTTP within so many seconds."""
        asked = self.container[kind]
        if "exec" in asked:
            return self.execute(*asked["exec"]["command"], codes=None).returncode == 0
        ports = {one["name"]: one["containerPort"] for one in self.container["ports"]}
        try:
            scheme = asked["httpGet"].get("scheme", "HTTP").lower()
            url = f"{scheme}://{self.address}:{ports[asked['httpGet']['port']]}{asked['httpGet']['path']}"
            anybody = ssl._create_unverified_context()  # a probe asks for no name
            with urllib.request.urlopen(url, timeout=seconds or asked.get("timeoutSeconds", 1) * 10, context=anybody) as answer:  # tests share their machine
                return answer.status == 200
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError):
            return False

    def await_probe(self, kind, seconds=60):
        deadline = time.monotonic() + seconds
        while not self.probe(kind):
            assert time.monotonic() < deadline, f"{self.name}: no {kind} within {seconds} s: {self.tail()}"
            try:
                raise AssertionError(f"{self.name} ended with {self._process.wait(0.1)}: {self.tail()}")
            except subprocess.TimeoutExpired:
                pass
        return self

    @contextlib.contextmanager
    def stopped(self):
        """No thread of its process 1 runs meanwhile."""
        process, end = self._init(), time.monotonic() + 30
        os.kill(process, signal.SIGSTOP)
        try:
            # Each thread stops where it is next interrupted, one after the other.
            while any("T (stopped)" not in (task / "status").read_text()
                      for task in pathlib.Path(f"/proc/{process}/task").iterdir()):
                assert time.monotonic() < end, f"{self.name} does not stop"
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def kill(self):
        """As `kubectl delete pod --force --grace-period=0`: every process at once, and nobody hears of it."""
        assert self.alive(), f"{self.name} has ended before: {self.tail()}"
        self._signal(signal.SIGKILL)
        self._process.wait(30)
        self.leave()

    def delete(self):
        """As `kubectl delete pod`: SIGTERM to the container's process 1, and SIGKILL when the grace period is over."""
        assert "lifecycle" not in self.container, "a preStop hook, which nothing runs here"
        try:
            if self.alive():
                self._signal(signal.SIGTERM)
            return self._process.wait(self.spec["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise AssertionError(f"{self.name} does not end in its grace period: {self.tail()}") from late
        finally:
            self.leave()

    def forget_claims(self):
        """The volumes of a pod that has ended are gone with their node: the next pod's are empty."""
        assert self.ended
        for claim in self.claims.values():
            run("rm", "-rf", self._claims / claim)

    def leave(self):
        """Its address answers nobody from now on."""
        if not self.ended:
            self.ended = True
            run("ip", "netns", "delete", self._link)

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]
