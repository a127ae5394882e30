#!/usr/bin/env python3
"""No test skips quietly for want of what scripts/setup brings: it uses PHALANX_SKIP_WITHOUT_TOOL (tests/support/tools.h),
or exits with PHALANX_EXIT_WITHOUT_TOOL, by which CI lets it fail. Others that skip are named below.

skips.py SOURCE_ROOT
"""
import pathlib
import re
import sys

SKIP = re.compile(r"GTEST_SKIP\(\)|\bexit 77\b|\bexit\(77\)|\breturn 77\b|\b[sS]kip(?:Test|If|Unless)\b")
# They need GPUs, a container engine, or are asked for by name; and the macro itself.
FREE = ("tests/gpu/", "tests/image/", "tests/package/quickstart.sh", "tests/e2e/recovery/rolling.sh", "tests/support/tools.h", "tests/lint/skips.py")
# What no tool helps against.
REASONS = re.compile(r"a sanitizer's|this process may not|the file system knows no")


def main():
    root = pathlib.Path(sys.argv[1])
    files = [path for path in sorted((root / "tests").rglob("*")) if path.suffix in (".cc", ".h", ".py", ".sh")]
    errors = []
    for path in files:
        name = str(path.relative_to(root))
        if name.startswith(FREE):
            continue
        errors += [f"{name}:{number}: skips also where PHALANX_EXIT_WITHOUT_TOOL says that every tool is there"
                   for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
                   if SKIP.search(line) and not REASONS.search(line)]
    print("\n".join(errors) or f"{len(files)} files")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
