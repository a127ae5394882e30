#!/usr/bin/env python3
"""Runs torch_fsdp_bench.py with the parameters of a block gathered once a step; by itself it gathers them once more for the backward pass.

    torchrun ... scripts/gpu/anchor_variant.py RESHARD PROGRAM ARGUMENTS...

RESHARD 1 runs the program as it is. With 0 blocks keep their parameters behind the forward pass, which takes memory and saves a gather.
That is no flag of the program, so one call is another one here. A program without that call is refused.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import checkpoint_every  # noqa: E402

CALL = "fully_shard(b, mp_policy=mp)"


def with_resharding(text, reshard):
    """The program's text, whose blocks are sharded again behind the forward pass or not."""
    if reshard:
        return text
    if text.count(CALL) != 1:
        raise ValueError(f"the program must have `{CALL}` once")
    return text.replace(CALL, "fully_shard(b, mp_policy=mp, reshard_after_forward=False)")


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("0", "1"):
        sys.exit(__doc__)
    reshard, path = sys.argv[1] == "1", sys.argv[2]
    sys.argv = sys.argv[2:]
    checkpoint_every.run_as_main(path, lambda text: with_resharding(text, reshard))


if __name__ == "__main__":
    main()
