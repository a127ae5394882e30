#!/usr/bin/env python3
"""Which setting of the program of the environment variable ANCHOR is its fastest, so that it is that which ours stands beside.

    ANCHOR=torch_fsdp_bench.py scripts/gpu/anchors.py OUTPUT.json DEVICES SAMPLES [FLAG...]

Runs it for some steps under torchrun with micro batches of 8, 4 and 2 samples, of blocks that keep their parameters for the backward
pass and of those that do not (anchor_variant.py), labelled rows alone, and its fastest setting with all rows. SAMPLES are those of a step on each device:
a smaller micro batch comes as often as makes them; a larger one comes once, and stands beside nobody, since its steps have more samples.
OUTPUT.json has all runs as they end, and the fastest of them (`fastest`) and of those with so many samples a step (`beside`). What fails is left out.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MICROS = (8, 4, 2)
RUN_SECONDS_MAX = 90
STEPS = ("--warmup", "4", "--steps", "8")


def program(reshard):
    """As arguments of torchrun; as it is where blocks are sharded again behind the forward pass."""
    anchor = os.environ.get("ANCHOR", "$ANCHOR")
    return [anchor] if reshard else [str(HERE / "anchor_variant.py"), "0", anchor]


def settings(samples):
    return [{"micro": micro, "parts": max(1, samples // micro), "reshard": reshard, "skip": 1} for micro in MICROS for reshard in (1, 0)]


def flags(setting):
    return ["--mbs", str(setting["micro"]), "--acc", str(setting["parts"]), "--skip", str(setting["skip"])]


def run(setting, devices, sizes):
    """Adds tokens a second, or the error."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices), *program(setting["reshard"]),
               *sizes, *STEPS, *flags(setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text, _ = process.communicate(timeout=RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.terminate()
        text, _ = process.communicate()
    results = re.findall(r"^RESULT (.*)$", text, re.M)
    if process.returncode != 0 or not results:
        errors = [line for line in text.splitlines() if re.search(r"[Ee]rror|out of memory", line)]
        return {**setting, "error": (errors or text.splitlines() or ["nothing said"])[-1][-300:]}
    result = json.loads(results[-1])
    return {**setting, **{key: result[key] for key in ("tokens_per_s", "step_ms", "max_mem_gib")}}


def fastest(runs):
    return max((one for one in runs if "tokens_per_s" in one), key=lambda one: one["tokens_per_s"], default=None)


def summary(runs, samples):
    return {"samples": samples, "runs": runs, "fastest": fastest(runs),
            "beside": fastest([one for one in runs if one["skip"] and one["micro"] * one["parts"] == samples])}


def main():
    if len(sys.argv) < 4 or "ANCHOR" not in os.environ:
        sys.exit(__doc__)
    output, devices, samples, sizes = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    runs = []

    def attempt(setting):
        runs.append(run(setting, devices, sizes))
        print(json.dumps(runs[-1]), flush=True)
        output.write_text(json.dumps(summary(runs, samples), indent=1) + "\n")

    for setting in settings(samples):
        attempt(setting)
    best = fastest(runs)
    if best is None:
        return 1
    attempt({**{key: best[key] for key in ("micro", "parts", "reshard")}, "skip": 0})
    return 0


if __name__ == "__main__":
    sys.exit(main())
