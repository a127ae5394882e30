#!/usr/bin/env python3
"""Flags that manifests, units and pages name are flags of the programs: deploy_flags.py SOURCE COORDINATOR WORKER [SIMULATOR...]

Of every overlay, with no component and with all, each argument of a container of ours is an option with a value or a
flag without, as `--help` of its program has it; so are those of the Debian services and their files in /etc, comments
included, and those of commands in pages that no test runs as they stand. Every flag of coordinator and worker is in the
pages that tell of it. Skips (77) where there is no kubectl, and says so, once
it has looked at the rest; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it fails.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
import pages  # noqa: E402

PROGRAMS = ("phalanx-coordinator", "phalanx-worker")
FLAG = r"--[a-z][a-z-]*"
# Where people look for what a flag of the program does.
PAGES = {"phalanx-coordinator": "operations.md", "phalanx-worker": "*.md"}


def flags_of(program):
    """{name: whether a value comes with it}"""
    told = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    found = {name: bool(kind) for name, kind in re.findall(rf"^  (?:-\w,)?({FLAG})((?: [A-Z]+\b)?)", told, re.MULTILINE)}
    assert len(found) > 5 and not found["--help"], (program, found)
    return found


def wrong_with(argument, flags):
    name, has_value, _ = argument.partition("=")
    if name not in flags:
        return f"{name} is no flag"
    if bool(has_value) != flags[name]:
        return f"{argument}: {name} takes {'a' if flags[name] else 'no'} value"
    return None


def rendered(source, base, components):
    """Containers of ours, as kubectl renders them: (program, arguments)."""
    import yaml  # of a folder that is on the path by now
    with tempfile.TemporaryDirectory() as folder:
        up = os.path.relpath(source / "deploy/kustomize", os.path.realpath(folder))
        lines = ["apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization", "namespace: phalanx", f"resources: [{up}/{base}]"]
        if components:
            lines.append(f"components: [{', '.join(f'{up}/components/{one}' for one in components)}]")
        (pathlib.Path(folder) / "kustomization.yaml").write_text("\n".join(lines), encoding="utf-8")
        text = subprocess.run(["kubectl", "kustomize", folder], check=True, capture_output=True, text=True).stdout
    pods = [one["spec"]["template"]["spec"] for one in yaml.safe_load_all(text) if one and one["kind"] in ("StatefulSet", "DaemonSet")]
    for container in (one for pod in pods for one in pod["containers"]):
        program = container["command"][-1]  # of a shell's, too, it is what the arguments are for
        assert program in PROGRAMS, container["command"]
        yield program, container["args"]


def of_manifests(source):
    deps = pathlib.Path(os.environ.get("PHALANX_DEPS_DIR") or pathlib.Path.home() / ".cache/phalanx/deps")
    sys.path.insert(0, str(deps / "kubernetes-validate"))
    os.environ["PATH"] = f"{deps / 'kubectl'}:{os.environ['PATH']}"
    if shutil.which("kubectl") is None:
        return
    folder = source / "deploy/kustomize"
    every = sorted(one.name for one in (folder / "components").iterdir())
    for base in sorted(one.name for one in folder.iterdir() if one.name != "components"):
        # cert-manager brings join-token along.
        for components in ([], [one for one in every if one != "cert-manager"], [one for one in every if one != "join-token"]):
            for program, arguments in rendered(source, base, components):
                for argument in arguments:
                    yield program, argument, f"{base}{' with components' if components else ''}"


def of_services(source):
    for name in PROGRAMS:
        unit = (source / f"deploy/debian/{name}.service").read_text(encoding="utf-8")
        settings = (source / f"deploy/debian/{name.removeprefix('phalanx-')}.env").read_text(encoding="utf-8")
        line = next(one for one in unit.split("\n") if one.startswith("ExecStart="))
        for text, where in ((line, "its service"), (settings, "its file of flags")):
            for flag, value in re.findall(rf"({FLAG})((?: +(?!-)[A-Za-z0-9/][^\s\",]*)?)", text):
                yield name, flag, value, where


def of_pages(source, programs):
    """Of commands that no test runs as they stand: (program, flag, where)."""
    names = "|".join(map(re.escape, sorted(programs, key=len, reverse=True)))
    for path in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
        for block in (one for one in pages.blocks_of(path) if one.other):
            text = "\n".join(block.text).replace("\\\n", " ")
            # The lines of a synopsis that belong to one command begin with blanks.
            for line in re.sub(r"\n +", " ", text).split("\n"):
                for name, rest in re.findall(rf"(?<![\w-])({names})(?![\w-])([^#;&]*)", line):
                    for flag in re.findall(rf"(?<![\w-]){FLAG}", rest):
                        yield name, flag, f"{path.relative_to(source)}:{block.line}"


def main():
    source = pathlib.Path(sys.argv[1])
    flags = {pathlib.Path(program).name: flags_of(program) for program in sys.argv[2:] if program}
    for planted in ("--listne=127.0.0.1:0", "--plaintext=yes", "--listen", "store"):
        assert wrong_with(planted, flags["phalanx-coordinator"]), planted
    errors, count = [], 0
    for program, argument, where in of_manifests(source):
        count += 1
        wrong = wrong_with(argument, flags[program])
        errors += [f"{where}: {program}: {wrong}"] if wrong else []
    for program, flag, value, where in of_services(source):
        if flag not in flags[program]:
            errors.append(f"{where}: {program}: {flag} is no flag")
        elif flags[program][flag] and not value:
            errors.append(f"{where}: {program}: {flag} takes a value")
    commands = list(of_pages(source, flags))
    errors += [f"{where}: {program}: {flag} is no flag" for program, flag, where in commands if flag not in flags[program]]
    errors += [f"no page that nobody runs names {program} any more" for program in flags if program not in {one for one, _, _ in commands}]
    for program in PROGRAMS:
        own = flags[program]
        told = "".join(page.read_text(encoding="utf-8") for page in (source / "docs").glob(PAGES[program]))
        errors += [f"{program}: {flag} is not in docs/{PAGES[program]}" for flag in own
                   if flag not in ("--help", "--version") and not re.search(rf"{flag}(?![a-z-])", told)]
    print(*errors, sep="\n", end="\n" if errors else "")
    print(f"{count} arguments of pods, {len(commands)} flags of commands that no test runs" if count
          else "no kubectl here: arguments of pods stay unread")
    sys.exit(1 if errors else 0 if count else int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77")))


main()
