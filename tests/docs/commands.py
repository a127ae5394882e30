#!/usr/bin/env python3
"""Runs the commands of the pages, and compares what they print with what the pages say:

    commands.py SOURCE [--write] [PAGE...|--without PAGE...]

Without pages all of them, or all but those, after a look at whether each command has somebody who runs it. --write puts
what was printed into the pages of the checkout at SOURCE. Called by commands.sh, which gives it a machine
of its own: the checkout is the working folder, changes to it go away, addresses and ports are free.
"""

import contextlib
import difflib
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import time
import urllib.request

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import pages  # noqa: E402
from pods import cluster  # noqa: E402

PROGRAMS = pathlib.Path("/home/me/phalanx/build/release/bin")
CLUSTER_LOG = pathlib.Path("/tmp/cluster.log")
MACHINES = pathlib.Path("/tmp/machines")  # of a page of several, each a folder
PATIENCE = 300  # seconds for one command
CLUSTER_PATIENCE = 60  # seconds until a cluster answers
# What coordinators and workers in the background write meanwhile.
BACKGROUND = re.compile(r"\[\d{4}-\d\d-\d\d \S+\] \[worker\] |\d{4}-\d\d-\d\dT\S+ \w+ coordinator ")
PREAMBLE = r"""
# Until the words are in what the command prints: await SECONDS WORDS COMMAND...
await() {
  local deadline=$((SECONDS + $1)) words=$2 printed=
  shift 2
  until printed=$("$@" 2>&1) && grep -qE "$words" <<< "$printed"; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "no '$words' in: $*: $printed"; tail -qn 4 /tmp/*.log /var/log/phalanx-*.log 2> /dev/null; return 1; }
    read -r -t 0.2 <> <(:) || true
  done
}
"""


class Shell:
    """One for a page, or for a machine of it: what a block sets or starts is there for the next."""

    def __init__(self, folder="~/phalanx", prefix=()):
        self._process = subprocess.Popen([*prefix, "bash", "--noprofile", "--norc"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._early = b""
        self.run(PREAMBLE)
        self.run(f"cd {folder} && rm -rf ~/.config")

    def end(self):
        """What it started has ended, and its ports are free."""
        self.run("kill $(jobs -p) 2>/dev/null; wait")
        self._process.stdin.close()
        self._process.wait()

    def run(self, command):
        """Its lines and its exit code."""
        end = b"\x01"
        self._process.stdin.write(b"{ " + command.encode() + b"\n} < /dev/null 2>&1; printf '\\001%d\\n' $?\n")
        self._process.stdin.flush()
        printed, deadline = self._early, time.monotonic() + PATIENCE
        while b"\n" not in printed.partition(end)[2]:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise SystemExit(f"no end within {PATIENCE} s, or of the shell: {command}\n{printed.decode()[-2000:]}")
            printed += data
        text, _, behind = printed.partition(end)
        # What runs in the background may write right behind it.
        code, _, self._early = behind.partition(b"\n")
        lines = [line.rstrip() for line in text.decode().split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        return lines, int(code)


def shells_of(path):
    """By name of the machine; of a page that needs but this one, its name is empty."""
    machines = pages.said_of(path, "machines")
    if not machines:
        return {"": Shell()}
    script = str(pathlib.Path(__file__).resolve().parent / "machines.sh")
    made = subprocess.run([script, "make", str(MACHINES)], input=machines.replace(", ", "\n") + "\n",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode != 0:
        raise NotHere(f"machines cannot be made here: {made.stdout.strip()}")
    own = "unshare --mount --uts --pid --fork --kill-child --propagation private".split()
    return {name: Shell("~", ["ip", "netns", "exec", name, *own, script, "enter", str(MACHINES), name])
            for name in (machine.split()[0] for machine in machines.split(", "))}


@contextlib.contextmanager
def cluster_of(source, path):
    """What kubectl talks to, on a page that needs a cluster."""
    nodes = pages.said_of(source / path, "cluster")
    if not nodes:
        yield
        return
    script = source / "tests/pods/cluster.py"
    with open(CLUSTER_LOG, "wb") as file:
        process = subprocess.Popen([sys.executable, script, "/tmp/cluster", PROGRAMS, nodes], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        await_cluster(process)
        yield
    except SystemExit:
        tell_cluster()
        raise
    finally:
        process.kill()
        process.wait()


def await_cluster(process):
    """Until it answers. One that says that it cannot be here is not here, any other end of it is a failure."""
    deadline = time.monotonic() + CLUSTER_PATIENCE
    while True:
        try:
            urllib.request.urlopen("http://127.0.0.1:8080/version", timeout=10).close()
            return
        except OSError as wrong:
            try:
                code = process.wait(0.2)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                raise SystemExit(f"the cluster does not answer within {CLUSTER_PATIENCE} s: {wrong}") from None
        if code == cluster.NOT_HERE:
            raise NotHere(f"a cluster cannot be made here: {CLUSTER_LOG.read_text(errors='replace').strip()[-500:]}")
        raise SystemExit(f"the cluster has ended with {code}")


def tell_cluster():
    print("    the cluster:", *CLUSTER_LOG.read_text(errors="replace").split("\n")[-40:], sep="\n        ", flush=True)


class NotHere(Exception):
    """Why a page's commands cannot be run here."""


def run_console(shell, block):
    """What is wrong, and the block as it would be now."""
    wrong, now = [], []
    for command, told in block.commands():
        printed, _ = shell.run(command)
        if not any(BACKGROUND.match(line) for line in told):
            printed = [line for line in printed if not BACKGROUND.match(line)]
        kept = [line for line in told]
        while kept and not kept[-1]:
            kept.pop()
        now += ["$ " + command] + pages.cut(told, printed) + ([""] if told and not told[-1] else [])
        if not pages.agree(kept, printed, block.compare):
            # What is there and was not told of, and the other way round.
            wrong += [f"$ {command}"] + [line for line in difflib.unified_diff(
                pages.shapes(kept), pages.shapes(printed), "the page", "the program", lineterm="")] + printed[:100]
    return wrong, now


def run_lines(shell, block):
    """What is wrong; nothing is run behind a command that fails."""
    for command in pages.commands_of(block.text):
        printed, code = shell.run(command)
        if code != 0:
            return [f"exit code {code} of: {command}", *printed[-20:]]
    return []


def run_page(path, source, write):
    failed, text = False, (source / path).read_text(encoding="utf-8").split("\n")
    missing = [name for name in pages.said_of(source / path, "needs").split() if not shutil.which(name)]
    if missing:
        raise NotHere(f"no {missing[0]} here")
    begin, shells = time.monotonic(), shells_of(source / path)
    moved = 0  # lines that blocks before have become longer by
    for block in pages.blocks_of(source / path):
        if block.other or block.kind not in ("console", "sh", "run"):
            continue
        wrong = []
        for machine in block.on or ("",):
            if block.kind == "console":
                wrong, now = run_console(shells[machine], block)
                if write:
                    first = block.line - 1 + moved
                    text[first:first + len(block.text)] = now
                    moved += len(now) - len(block.text)
                    wrong = []
            else:
                wrong += run_lines(shells[machine], block)
        if wrong:
            failed = True
            print(f"{path}:{block.line}: not as the page says", *wrong, sep="\n    ", flush=True)
            for log in sorted(MACHINES.glob("*/root/var/log/phalanx-*.log")) if block.on else ():
                print(f"    {log.parts[3]}, {log.name}:", *log.read_text(errors="replace").split("\n")[-15:], sep="\n        ", flush=True)
            if pages.said_of(source / path, "cluster"):
                tell_cluster()
            if block.kind != "console":
                break
    if write:
        (source / path).write_text("\n".join(text), encoding="utf-8")
    for shell in shells.values():
        shell.end()
    print(f"{path}: {'failed' if failed else 'ok'}, {time.monotonic() - begin:.0f} s", flush=True)
    return not failed


def account(source):
    errors, found = [], []
    for path in [pathlib.Path("README.md"), *sorted(one.relative_to(source) for one in (source / "docs").glob("*.md"))]:
        wrong, runs = pages.account_of(source / path)
        errors += [f"{path}:{line}: {what}" for line, what in wrong]
        found += [path] if runs else []
    return errors, found


def subcommands(*command):
    """Commands of `phalanx` down to those that have none below them."""
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    if "Subcommands:" not in text:
        return [" ".join(command)]
    names = [line.split()[0] for line in text.split("Subcommands:")[1].split("\n") if re.match("  [a-z]", line)]
    return [one for name in names for one in subcommands(*command, name)]


def screens_missing(source):
    """Commands that docs/screens.md shows nothing of."""
    shown = [command for block in pages.blocks_of(source / "docs/screens.md") if block.kind == "console" and not block.other
             for command, _ in block.commands()]
    return [f"docs/screens.md: no screen of {name}" for name in subcommands("phalanx")
            if not any(re.search(rf"(?:^|[;&|(] ?){re.escape(name)}(?= |$)", command) for command in shown)]


# Flags that no screen shows, and where they are tried instead.
TRIED_ELSEWHERE = {
    "run": {"--output", "--lost", "--allow-inject"},  # tests/e2e/jobs
    "plan": {"--device-profile", "--write"},          # tests/unit/client/local_commands_test.cc
    "inject": {"--at-step", "--phase", "--for"},      # tests/e2e/recovery
    "drain": {"--force"},                             # tests/unit/client/node_commands_test.cc
    "rerun": {"--wait"},                              # as of submit
    "submit": {"--name"},                             # tests/unit/client/submit_test.cc
    "cancel": {"--checkpoint"},                       # tests/e2e/jobs
}


def flags_missing(source):
    """Flags in the table of docs/cli.md that no console of the pages shows; of `[-f|--follow]` one is enough."""
    shown = [command for path in [source / "README.md", *(source / "docs").glob("*.md")] for block in pages.blocks_of(path)
             if block.kind == "console" and not block.other for command, _ in block.commands()]
    errors = []
    table = (source / "docs/cli.md").read_text(encoding="utf-8").split("\n| Command |")[1].split("\n\n")[0]
    for form in re.findall(r"`([a-z][^`]*)`", "\n".join(re.split(r"(?<!\\)\|", row)[1] for row in table.split("\n")[2:])):
        name, form = form.split()[0], form.replace("\\|", "|")
        have = [command for command in shown if re.search(rf"phalanx {name}\b", command)]
        for group in re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?:\|--?[a-z][a-z-]*)*", re.sub(r" [A-Z0-9]+\|--", "|--", form)):
            flags = set(group.split("|"))
            if not flags & TRIED_ELSEWHERE.get(name, set()) and not any(
                    re.search(rf"(?<![\w-]){flag}(?![\w-])", command) for flag in flags for command in have):
                errors.append(f"docs/cli.md: no page shows {name} {group}")
    return errors


def main():
    source, named = pathlib.Path(sys.argv[1]), [pathlib.Path(one) for one in sys.argv[2:] if not one.startswith("--")]
    errors, found = account(source)
    errors += screens_missing(source) + flags_missing(source)
    print(*errors, sep="\n", end="\n" if errors else "")
    good, skipped = not errors, False
    for path in named if named and "--without" not in sys.argv else [one for one in found if one not in named]:
        try:
            with cluster_of(source, path):
                good = run_page(path, source, "--write" in sys.argv) and good
        except NotHere as why:
            skipped = True
            print(f"{path}: {why}", flush=True)
    sys.exit(1 if not good else int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")) if skipped else 0)


main()
