#!/usr/bin/env python3
"""Commands of ours within the text and the tables of pages are commands: page_flags.py SOURCE PROGRAM...

Of `phalanx logs JOB --rank 0` the command and each flag are in what `--help` of the program has, of our other programs
the flags, and the verb of those that have one. Programs that this build has not made are not asked, but there are such. Blocks of
commands are run by tests (tests/docs), or looked at by deploy_flags.py.
"""

import functools
import pathlib
import re
import subprocess
import sys

INLINE = re.compile(r"`((phalanx(?:-[a-z-]+)?) [^`]+)`")
FLAG = re.compile(r"(?<![\w-])(?:--[a-z][a-z-]*|-[a-z])(?![\w-])")
# An option, its other names, and whether a value comes with it.
OPTION = re.compile(r"^  ((?:-\w|--[a-z-]+)(?:,--[a-z-]+)*)( +[A-Z]+\b)?", re.MULTILINE)


@functools.lru_cache(maxsize=None)
def help_of(program, commands=()):
    """({flag: whether a value comes with it}, commands below, what is printed)"""
    done = subprocess.run([program, *commands, "--help"], capture_output=True, text=True, check=False)
    flags = {name: bool(value) for names, value in OPTION.findall(done.stdout) for name in names.split(",")}
    below = re.findall(r"^  ([a-z]\S*)", done.stdout.partition("Subcommands:")[2], re.MULTILINE)
    return flags, set(below), done.stdout + done.stderr


def words_of(command):
    """Without brackets of a synopsis, and what stands for more."""
    return [one for one in re.sub(r"\\?\||[\[\]()]", " ", command).split() if one != "..."]


def wrong_with_client(program, words):
    """Of one with commands."""
    path, known = (), dict(help_of(program)[0])
    while words:
        word, words = words[0], words[1:]
        below = help_of(program, path)[1]
        name = word.partition("=")[0]
        if FLAG.fullmatch(name):
            if name not in known:
                return f"{name} is no flag of {' '.join(('phalanx', *path))}"
            if known[name] and name == word:
                words = words[1:]
        elif below and not word.isupper():
            if word not in below:
                return f"{word} is no command of {' '.join(('phalanx', *path))}"
            path += (word,)
            known.update(help_of(program, path)[0])
    return None


def wrong_with(program, words):
    flags, below, printed = help_of(program)
    if below:
        return wrong_with_client(program, words)
    verbs = [one for one in words[:1] if re.fullmatch("[a-z]+", one)] if printed.startswith("usage:") else []
    for one in [*verbs, *(name for word in words for name in FLAG.findall(word.partition("=")[0]))]:
        if not re.search(rf"(?<![\w-]){one}(?![\w-])", printed):
            return f"{one} is not in the help of {pathlib.Path(program).name}"
    return None


def commands_of(path):
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        inside = inside != line.startswith("```")
        for command, name in INLINE.findall("" if inside else line):
            yield number, command, name


def main():
    source, programs = pathlib.Path(sys.argv[1]), {pathlib.Path(one).name: one for one in sys.argv[2:] if one}
    made = {name for path in source.glob("*/**/CMakeLists.txt") if path.parts[len(source.parts)] != "build"
            for name in re.findall(r"phalanx_executable\(([\w-]+)", path.read_text(encoding="utf-8"))}
    for planted in ("phalanx lgos JOB", "phalanx logs JOB --rnak 0", "phalanx token creat --node a", "phalanx --server a:1 nods",
                    "phalanx list --submit", "phalanx-worker --metrisc a:1"):
        name, *words = words_of(planted)
        assert wrong_with(programs[name], words), planted
    errors, count, unread = [], 0, set()
    for path in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
        for number, command, name in commands_of(path):
            if name not in made:
                errors.append(f"{path.relative_to(source)}:{number}: {name} is no program")
            elif name not in programs:
                unread.add(name)
            else:
                count += 1
                wrong = wrong_with(programs[name], words_of(command)[1:])
                errors += [f"{path.relative_to(source)}:{number}: {command}: {wrong}"] if wrong else []
    errors += [] if count else ["no page has a command within its text any more"]
    print(*errors, f"{count} commands within text; not asked: {', '.join(sorted(unread)) or 'none'}", sep="\n")
    sys.exit(1 if errors else 0)


main()
