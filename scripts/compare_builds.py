#!/usr/bin/env python3
"""Whether one build of Phalanx trains as fast as another on CPUs, side by side: in the order A B B A, as often as asked.

    scripts/compare_builds.py OLD_BIN NEW_BIN JOB.yaml... [--steps 60] [--rounds 2] [--slower 0.02]

OLD_BIN and NEW_BIN are the folders bin of two build presets; each has `phalanx-bench` and what it starts. Every job is trained by
`phalanx-bench train` for so many steps, the first ten of which count in nothing. A line a job: the median steps of all runs,
how much longer the new build takes by the means of these medians, and how far the last losses are apart. Fails where that is more than
--slower, and by as much as the runs of one build differ among themselves.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

SECONDS_MAX = 900  # of one run


def train(folder, job, steps, work):
    """(median step in milliseconds, last loss)"""
    text, count = re.subn(r"(?m)^  steps: .*$", f"  steps: {steps}", job.read_text())
    if count != 1:
        sys.exit(f"{job}: no line `  steps: N`")
    timed = job.with_suffix(".timed.yaml")  # paths in it are relative to its folder
    timed.write_text(text)
    try:
        done = subprocess.run([folder / "phalanx-bench", "train", timed, work], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS_MAX)
    finally:
        timed.unlink()
    if done.returncode != 0:
        sys.exit(f"{folder}: {job}: exit code {done.returncode}\n{done.stderr[-1000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return figures["step_ms"]["median"], figures["loss_last"]


def spread(steps):
    return max(steps) / min(steps) - 1


def compare(job, builds, options):
    """Figures of a job; `slower` beyond what is allowed and what runs differ by: it has failed."""
    runs = {name: [] for name in builds}
    for _ in range(options.rounds):
        for name in ("old", "new", "new", "old"):
            with tempfile.TemporaryDirectory() as work:
                runs[name].append(train(builds[name], job, options.steps, work))
    steps = {name: [step for step, _ in of] for name, of in runs.items()}
    losses = [of[-1][1] for of in runs.values()]
    more = statistics.fmean(steps["new"]) / statistics.fmean(steps["old"]) - 1
    noise = min(map(spread, steps.values()))
    return {"job": job.name, "old_ms": steps["old"], "new_ms": steps["new"], "more": round(more, 4), "noise": round(noise, 4),
            "losses_apart": abs(losses[1] - losses[0]) / abs(losses[0]), "slower": more > max(options.slower, noise)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("jobs", type=pathlib.Path, nargs="+")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slower", type=float, default=0.02, help="as a part of a step")
    options = parser.parse_args()
    builds = {"old": options.old.resolve(), "new": options.new.resolve()}
    failed = False
    for job in options.jobs:
        figures = compare(job, builds, options)
        failed |= figures["slower"]
        print(json.dumps(figures), flush=True)
        print(f"{job.name}: {statistics.fmean(figures['old_ms']):.1f} ms before, {statistics.fmean(figures['new_ms']):.1f} ms now: {100 * figures['more']:+.1f} % "
              f"(runs of one build differ by {100 * figures['noise']:.1f} %): {'slower' if figures['slower'] else 'no slower'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
