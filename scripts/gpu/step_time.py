#!/usr/bin/env python3
"""Runs a job and prints one JSON line: its median step behind the first five and the first ten seconds, beside which
standby communicators are made, and what its ranks say.

    scripts/gpu/step_time.py JOB.yaml RUNS [--lost R,... [--profile FILE]] [--bound SHARE]

The run's folder is made below RUNS. `wait` is the most that a rank waited for communication, `host` the most that a
host worked, both as parts of a step; `allocations` and `retries` are those of LibTorch's allocator. Ranks count from the
12th step on: of shorter jobs these four say nothing. With --bound it is `phalanx-bench train` that runs the job, and the line
has the step that the schedule allows by the passes' mean times in this very run, without reductions, update and gathers behind them, and
how much of that speed was reached: it fails below SHARE. With --lost the line has `step_ratio`, which is how much longer a step without those ranks is by the simulator.
`phalanx` comes from the PATH.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kill_ranks  # noqa: E402

WARM_UP = 5  # steps
WARM_UP_SECONDS = 10


def behind_warm_up(lines):
    warm, begins = [], 0.0
    for number, line in enumerate(lines):
        if number >= WARM_UP and begins >= WARM_UP_SECONDS:
            warm.append(line)
        begins += line["step_seconds"]
    return warm


def measure(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    warm = behind_warm_up(lines)
    if not warm:
        sys.exit(f"{output}: {len(lines)} steps; the first {WARM_UP} and {WARM_UP_SECONDS} s count in nothing")
    ranks = [json.loads(path.read_text()) for path in sorted((output / "ranks").glob("rank-*.json"))]
    step = statistics.median(line["step_seconds"] for line in warm)

    def part(key):
        return max((rank[key] / rank["step_seconds"] for rank in ranks if rank["step_seconds"] > 0), default=None)

    return {
        "tokens_per_s": round(statistics.mean(line["tokens"] for line in warm) / step),
        "labelled_tokens_per_s": round(statistics.mean(line["labelled_tokens"] for line in warm) / step),
        "step_ms": round(1e3 * step, 1),
        "steps": len(warm),
        "loss": lines[-1]["loss"],
        "wait": part("exposed_comm_seconds"),
        "host": part("host_seconds"),
        "allocations": max(rank["allocator"]["allocations"] for rank in ranks),
        "retries": max(rank["allocator"]["retries"] for rank in ranks),
        "memory_gb": round(max(rank["memory_bytes"] for rank in ranks) / 1e9, 2),
    }


def bounded(job, output, share):
    """Prints what `phalanx-bench train` says of the job beside its bound; an exit code."""
    run = subprocess.run(["phalanx-bench", "train", str(job), str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print("\n".join((run.stdout + run.stderr).splitlines()[-8:]))
        return 1
    figures = json.loads(run.stdout.splitlines()[-1])
    bound = figures["simulated_passes_ms"]
    reached = bound / figures["step_ms"]["median"]
    print(json.dumps({
        "tokens_per_s": round(figures["tokens_per_s"]),
        "step_ms": round(figures["step_ms"]["median"], 1),
        "bound_ms": round(bound, 1),
        "of_bound": round(reached, 4),
        "with_end_of_step_ms": round(figures["simulated_ms"], 1),
        **{key: figures[key] for key in ("mhz", "watts", "degrees", "joules_per_token") if key in figures},
        "bubble": figures["bubble"],
        "wait": figures["exposed_comm"],
        "loss": figures["loss_last"],
        "memory_gb": round(max(figures["memory_bytes"]) / 1e9, 2),
    }))
    return 0 if reached >= share else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("--lost", help="ranks that are gone from the beginning, with , between")
    parser.add_argument("--profile", metavar="FILE", help="with --lost: of the devices, for the simulator")
    parser.add_argument("--bound", type=float, metavar="SHARE", help="of the speed that the schedule allows")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    output = options.runs / f"{options.job.stem}-{time.time_ns()}"
    if options.bound is not None:
        return bounded(options.job, output, options.bound)
    command = ["phalanx", "run", str(options.job), "--output", str(output)]
    if options.lost:
        command += ["--lost", options.lost]
    log = options.runs / f"{output.name}.log"
    with open(log, "w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if status != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-8:]))
        return 1
    figures = measure(output)
    if options.lost:
        figures["step_ratio"] = kill_ranks.step_ratio(options.job, options.lost.split(","), options.profile)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
