#!/usr/bin/env python3
"""Includes point one way: fails for each include of a project header that the table below does not allow,
and for each source that does not include its own header first, which shows that the header needs no other.

layers.py SOURCE_ROOT
"""
import pathlib
import re
import sys

# folder -> folders it may include besides itself (a prefix stands for all below it)
CORE = ["core/base", "core/job", "core/plan", "core/schedule"]
PROTO = ["phalanx/v1", "google/rpc"]
ALLOWED = {
    "core/base": [],
    "core/build": [],
    "core/job": ["core/base"],
    "core/plan": ["core/base", "core/job"],
    "core/schedule": ["core/base", "core/job", "core/plan"],
    "core/checkpoint": ["core/base", "core/job", "core/plan"],
    "core/checkpoint_io": ["core/base", "core/checkpoint", "core/job", "core/posix"],
    "core/examine": ["core/base", "core/job", "core/plan", "core/posix"],
    "core/posix": ["core/base"],
    "core/wire": CORE + PROTO,
    "transport": ["core/base", "core/posix"],
    "coordinator": ["core", "transport"] + PROTO,
    "client": ["core", "transport"] + PROTO,
    "worker/channel": ["core/base", "core/posix"] + PROTO,
    "worker/data": ["core"],
    "worker/agent": ["core", "transport", "worker/channel", "worker/data"] + PROTO,
    "worker/comm": CORE + ["core/posix"],
    "worker/device": ["core/base", "core/job"],
    "worker/model": CORE + ["worker/comm", "worker/device"],
    "worker/train": CORE + ["core/posix", "worker/comm", "worker/data", "worker/device", "worker/model"],
    "worker/checkpoint": CORE + ["core/checkpoint", "core/checkpoint_io", "core/posix", "worker/device", "worker/model", "worker/train"],
    "worker/rank": ["core", "worker/channel", "worker/checkpoint", "worker/comm", "worker/data", "worker/device", "worker/model",
                    "worker/train", "tensorboard"] + PROTO,
}
# Pure folders know no transport, no parser, no LibTorch and no locks.
PURE = ["core/base", "core/checkpoint", "core/job", "core/plan", "core/schedule", "coordinator/machine",
        "worker/agent/machine"]
FORBIDDEN_IN_PURE = re.compile(r'#include\s+[<"](grpc|google/protobuf|phalanx/v1|ATen|torch|yaml\.h|sqlite3|thread>|mutex>|condition_variable>|core/base/mutex\.h|absl/synchronization)')
# Those of core/base are there for the others.
LOCKS = "core/base/mutex.h"
# The daemon starts in milliseconds and survives a wedged driver.
FORBIDDEN_IN_AGENT = re.compile(r'#include\s+[<"](ATen|torch|c10|cuda|nccl)')
INCLUDE = re.compile(r'#include\s+"([^"]+)"')
FIRST_INCLUDE = re.compile(r'^#include\s+[<"]([^">]+)', re.MULTILINE)


def under(path, folder):
    return path == folder or path.startswith(folder + "/")


def main():
    root = pathlib.Path(sys.argv[1])
    errors, files = [], 0
    for top in ("core", "transport", "coordinator", "worker", "client"):
        for source in sorted((root / top).rglob("*")):
            if source.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            files += 1
            folder = source.parent.relative_to(root).as_posix()
            owner = max((f for f in ALLOWED if under(folder, f)), key=len, default=None)
            if owner is None:
                errors.append(f"{folder}: no line in the table of layers")
                continue
            text = source.read_text(encoding="utf-8")
            header = source.with_suffix(".h")
            first = FIRST_INCLUDE.search(text)
            if source.suffix == ".cc" and header.exists() and (
                    first is None or first.group(1) != header.relative_to(root).as_posix()):
                errors.append(f"{source.relative_to(root)}: does not include its own header first")
            for number, line in enumerate(text.splitlines(), 1):
                where = f"{source.relative_to(root)}:{number}"
                if (FORBIDDEN_IN_PURE.match(line) and any(under(folder, pure) for pure in PURE)
                        and source != root / LOCKS):
                    errors.append(f"{where}: a pure folder may not have {line}")
                if under(folder, "worker/agent") and FORBIDDEN_IN_AGENT.match(line):
                    errors.append(f"{where}: the daemon may not have {line}")
                match = INCLUDE.match(line)
                if not match or not (root / match.group(1)).exists() and not under(match.group(1), "phalanx/v1"):
                    continue
                target = pathlib.PurePosixPath(match.group(1)).parent.as_posix()
                if not any(under(target, allowed) for allowed in [owner] + ALLOWED[owner]):
                    errors.append(f"{where}: {owner} may not include {match.group(1)}")
    print("\n".join(errors) or f"{files} files, every include points down")
    return 1 if errors or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
