#!/usr/bin/env python3
"""Runs torch_fsdp_bench.py with a checkpoint every so many steps; by itself it writes one every four.

    torchrun ... scripts/gpu/checkpoint_every.py STEPS PROGRAM ARGUMENTS...

The interval is no flag of the program. So the one condition that says it is another one here, and all else is the program as it is:
under its own path and line numbers, as the main module, since torch.compile looks for both. A program without that condition is refused.
"""
import sys

CONDITION = "i % 4 == 3"  # of the step that has just been done, counted from 0


def with_interval(text, steps):
    """The program's text with a checkpoint behind each multiple of `steps`."""
    if steps < 1 or text.count(CONDITION) != 1:
        raise ValueError(f"the program must have `{CONDITION}` once, and checkpoints come every step or less often")
    return text.replace(CONDITION, f"i % {steps} == {steps - 1}")


def run_as_main(path, change):
    """The program at `path`, its text changed, as the main module, with the arguments of sys.argv."""
    with open(path) as file:
        code = compile(change(file.read()), path, "exec")
    names = sys.modules["__main__"].__dict__
    names["__file__"] = path
    exec(code, names)  # noqa: S102


def main():
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    steps, path = int(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    run_as_main(path, lambda text: with_interval(text, steps))


if __name__ == "__main__":
    main()
