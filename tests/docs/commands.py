#!/usr/bin/env python3
"""Runs the commands of the pages, and compares what they print with what the pages say:

    commands.py SOURCE [--write] [PAGE...]

Without pages all of them, after a look at whether each command has somebody who runs it. --write puts
what was printed into the pages of the checkout at SOURCE. Called by commands.sh, which gives it a machine
of its own: the checkout is the working folder, changes to it go away, addresses and ports are free.
"""

import difflib
import os
import pathlib
import re
import select
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pages  # noqa: E402

PATIENCE = 300  # seconds for one command
# What coordinators and workers in the background write meanwhile.
BACKGROUND = re.compile(r"\[\d{4}-\d\d-\d\d \S+\] \[worker\] |\d{4}-\d\d-\d\dT\S+ \w+ coordinator ")
PREAMBLE = r"""
# Until the words are in what the command prints: await SECONDS WORDS COMMAND...
await() {
  local deadline=$((SECONDS + $1)) words=$2 printed=
  shift 2
  until printed=$("$@" 2>&1) && grep -qE "$words" <<< "$printed"; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "no '$words' in: $*: $printed"; tail -n 4 /tmp/*.log; return 1; }
    read -r -t 0.2 <> <(:) || true
  done
}
"""


class Shell:
    """One for a page: what a block sets or starts is there for the next."""

    def __init__(self):
        self._process = subprocess.Popen(["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.run(PREAMBLE)
        self.run("cd ~/phalanx && rm -rf ~/.config")

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
        printed, deadline = b"", time.monotonic() + PATIENCE
        while end not in printed or not printed.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise SystemExit(f"no end within {PATIENCE} s, or of the shell: {command}\n{printed.decode()[-2000:]}")
            printed += data
        text, code = printed.rsplit(end, 1)
        lines = [line.rstrip() for line in text.decode().split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        return lines, int(code)


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
    for command in "\n".join(block.text).replace("\\\n", "\\\0").split("\n"):
        printed, code = shell.run(command.replace("\0", "\n"))
        if code != 0:
            return [f"exit code {code} of: {command}", *printed[-20:]]
    return []


def run_page(path, source, write):
    shell, failed, text = Shell(), False, (source / path).read_text(encoding="utf-8").split("\n")
    begin = time.monotonic()
    moved = 0  # lines that blocks before have become longer by
    for block in pages.blocks_of(source / path):
        if block.other or block.kind not in ("console", "sh", "run"):
            continue
        if block.kind == "console":
            wrong, now = run_console(shell, block)
            if write:
                first = block.line - 1 + moved
                text[first:first + len(block.text)] = now
                moved += len(now) - len(block.text)
        else:
            wrong = run_lines(shell, block)
        if wrong and not (write and block.kind == "console"):
            failed = True
            print(f"{path}:{block.line}: not as the page says", *wrong, sep="\n    ", flush=True)
            if block.kind != "console":
                break
    if write:
        (source / path).write_text("\n".join(text), encoding="utf-8")
    shell.end()
    print(f"{path}: {'failed' if failed else 'ok'}, {time.monotonic() - begin:.0f} s", flush=True)
    return not failed


def account(source):
    """Blocks of commands that nobody runs, and nobody says why."""
    errors, found = [], []
    for path in [pathlib.Path("README.md"), *sorted(one.relative_to(source) for one in (source / "docs").glob("*.md"))]:
        blocks = pages.blocks_of(source / path)
        errors += [f"{path}:{block.line}: say what the block is: console, sh, text, yaml, ..." for block in blocks if not block.kind]
        if any(block.kind in ("console", "sh") and not block.other for block in blocks):
            found.append(path)
    return errors, found


def screens_missing(source):
    """Commands of `phalanx` that docs/screens.md shows nothing of."""
    shown = "\n".join("\n".join(block.text) for block in pages.blocks_of(source / "docs/screens.md") if block.kind == "console")
    help_text = subprocess.run(["phalanx", "--help"], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in help_text.split("Subcommands:")[1].split("\n") if line.startswith("  ") and line.strip()]
    return [f"docs/screens.md: no screen of phalanx {name}" for name in names if f"$ phalanx {name}" not in shown]


def main():
    source, wanted = pathlib.Path(sys.argv[1]), [one for one in sys.argv[2:] if one != "--write"]
    errors, found = account(source)
    errors += screens_missing(source)
    print(*errors, sep="\n", end="\n" if errors else "")
    good = [run_page(path, source, "--write" in sys.argv) for path in map(pathlib.Path, wanted or found)]
    sys.exit(0 if all(good) and not errors else 1)


main()
