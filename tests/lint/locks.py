#!/usr/bin/env python3
"""One family of locks, that of core/base/mutex.h. And guarded members are touched under their locks: Clang's
thread-safety analysis over every source of the build that names locks or their annotations, or includes a header of
its folder that does.

locks.py SOURCE_ROOT BUILD_FOLDER

Only the analysis runs, on the commands of BUILD_FOLDER/compile_commands.json: no code is generated. What only a
build for GPUs compiles is looked at in any build, as its nearest neighbour is compiled, where the headers of CUDA
and NCCL are; where they are not, it says so. Skips (77) where Clang 14, the version that scripts/setup brings, is not
installed; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it fails.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

FOLDERS = ("client", "coordinator", "core", "tests", "transport", "worker")
LOCKS = re.compile(r'core/base/mutex\.h|absl/base/thread_annotations\.h')
OTHER_LOCKS = re.compile(
    r'\bstd::(shared_|recursive_|timed_)*mutex\b|\bstd::condition_variable|\babsl::(Mutex|CondVar)')
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)
GPU = re.compile(r'#include <(cuda_runtime|nccl)')
GPU_HEADERS = ["-isystem", os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]


def names(pattern, source):
    """Whether a source names `pattern`, or a header of its own folder that it includes does: private members are
    touched nowhere else."""
    text = source.read_text(encoding="utf-8")
    headers = (source.parent / pathlib.PurePosixPath(name).name for name in INCLUDE.findall(text))
    texts = [text] + [header.read_text(encoding="utf-8") for header in headers if header.exists()]
    return any(pattern.search(text) for text in texts)


def other_locks(root):
    """Where a source names locks of another family."""
    sources = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
               if path.suffix in (".h", ".cc", ".cu") and path != root / "core/base/mutex.h"]
    return [f"{path.relative_to(root)}:{number}: locks are those of core/base/mutex.h: {line.strip()}"
            for path in sources
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if OTHER_LOCKS.search(line)]


def apart(entry):
    """An entry for each source of one that joins several."""
    file = pathlib.Path(entry["file"])
    if file.parent.name != "Unity":
        return [entry]
    joined = [source for source in INCLUDE.findall(file.read_text(encoding="utf-8")) if source.startswith("/")]
    return [entry | {"file": source, "command": shlex.join(source if word == entry["file"] else word
                                                           for word in shlex.split(entry["command"]))}
            for source in joined]


def has_gpu_headers(clang):
    probe = "#include <cuda_runtime_api.h>\n#include <nccl.h>\n"
    return subprocess.run([clang, "-fsyntax-only", "-Wno-everything", "-x", "c++", *GPU_HEADERS, "-"], input=probe,
                          text=True, capture_output=True, check=False).returncode == 0


def gpu_entries(root, commands, clang):
    """Of the sources with locks that only a build for GPUs compiles, the entries that such a build would have."""
    sources = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.cc"))
               if path not in commands and names(GPU, path) and names(LOCKS, path)]
    if sources and not has_gpu_headers(clang):
        print("no headers of CUDA and NCCL here, so not looked at:",
              ", ".join(str(path.relative_to(root)) for path in sources))
        return {}
    result = {}
    for path in sources:
        neighbour = commands[max(sorted(commands), key=lambda other: len(os.path.commonpath([other, path])))]
        command = shlex.split(neighbour["command"])
        command[command.index(neighbour["file"])] = str(path)
        result[path] = neighbour | {"command": shlex.join(command + GPU_HEADERS + ["-DPHALANX_WITH_CUDA=1"])}
    return result


def command_of(entry, clang):
    """The compiler's command as Clang's, for the analysis alone."""
    arguments = shlex.split(entry["command"])
    kept, skip = [], False
    for argument in arguments[1:]:
        if skip:
            skip = False
        elif argument == "-o":
            skip = True
        elif argument.startswith(("-I", "-D", "-std=", "-isystem")) or not argument.startswith("-"):
            kept.append(argument)
    return [clang, "-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"] + kept


def main():
    root, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if others := other_locks(root):
        print("\n".join(others))
        return 1
    clang = shutil.which("clang++-14")
    if clang is None:
        print("no clang++-14 here")
        return int(os.environ.get("PHALANX_EXIT_WITHOUT_TOOL", "77"))
    commands = {pathlib.Path(alone["file"]): alone
                for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
                for alone in apart(entry)}
    entries = {path: entry for path, entry in commands.items()
               if any(path.is_relative_to(root / folder) for folder in FOLDERS) and names(LOCKS, path)}
    entries |= gpu_entries(root, commands, clang)

    def check(path):
        run = subprocess.run(command_of(entries[path], clang), cwd=entries[path]["directory"], text=True,
                             capture_output=True, check=False)
        return path, run.returncode, run.stderr

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, code, text in pool.map(check, sorted(entries)):
            if code != 0:
                failures += 1
                print(f"{path.relative_to(root)}:\n{text}")
    print(f"{len(entries)} sources with locks, {failures} with findings")
    return 1 if failures or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
