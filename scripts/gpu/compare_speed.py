#!/usr/bin/env python3
"""Ours and another program's training speed in one run on one machine, in the order A B B A.

    scripts/gpu/compare_speed.py WORK OUTPUT --seconds 60 --tokens 32768 [--labelled-share 0.4375]
        --ours 'LABEL: JOB.yaml' ... --other 'LABEL: COMMAND' ... [--once 'LABEL: JOB.yaml' ...] [--step 'LABEL: SECONDS' ...]

Each --ours is a job whose steps have --tokens tokens; each --other a command that adds a line to the file
{mark} at the end of each of its {steps} steps, whose first word is the time in seconds. All run in turn, then each --once, which is a job
of ours as well, and then the others once more in reverse order. How many steps take --seconds follows from what --step says of a
program, and for its second run from the first one; a program of which it says nothing has a first run of a few steps for that.
Of a run, all tokens of the steps behind the first ten over all their time, labelled ones beside them (of the other program's, the share
that is given); clock, power and temperature are means over that time (the temperature its highest), power of all devices
together; of ours also the most that a rank waited for others, as a part of its steps, and what of the job was lowered so that it fits (`lowered`). A run that fails is left out, by name, and the
next one begins. OUTPUT/speed.txt, a line a run, and OUTPUT/speed.json are written as runs end; logs and clocks lie beside them.
`phalanx` comes from the PATH.
"""

import argparse
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import boards  # noqa: E402

WARM_UP = 10  # steps
MORE = 1.04  # of the steps that an expected step allows: a run that is faster is not shorter than it is to be
RUN_SECONDS_MAX = 600
CLOCKS = "timestamp,clocks.sm,power.draw,temperature.gpu"
# What admission says of a job that it has changed (core/schedule/admission.h).
LOWERED = r"batch\.micro is \d+ instead of \d+|recompute of module \S+ is \w+ instead of \w+|optimizer state has its second home in host memory instead of mirrors"


class Clocks:
    """nvidia-smi's log of clock, power and temperature, twice a second."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "w")
        self.logger = subprocess.Popen(boards.query(CLOCKS, "--format=csv,noheader,nounits", "-lms", "500"), stdout=self.file)

    def between(self, begin, end):
        """(mean MHz, watts of all devices together, highest degrees) between two times."""
        at = {}
        for line in self.path.read_text().splitlines():
            fields = [field.strip() for field in line.split(",")]
            if len(fields) != 4:
                continue
            whole, _, fraction = fields[0].partition(".")
            moment = time.mktime(time.strptime(whole, "%Y/%m/%d %H:%M:%S")) + float("0." + (fraction or "0"))
            if begin <= moment <= end:
                at.setdefault(fields[0], []).append([float(value) for value in fields[1:]])
        readings = [reading for readings in at.values() for reading in readings]
        if not readings:
            return None
        devices = len(readings) / len({stamp.partition(".")[0] + stamp.partition(".")[2][:1] for stamp in at})
        mean = [sum(reading[i] for reading in readings) / len(readings) for i in range(2)]
        return round(mean[0]), mean[1] * max(1, round(devices)), max(reading[2] for reading in readings)

    def stop(self):
        self.logger.terminate()
        self.logger.wait(timeout=10)
        self.file.close()


class Ours:
    def __init__(self, label, job, options):
        self.label, self.job, self.work = label, pathlib.Path(job), options.work

    def run(self, steps, log):
        """([seconds of each step], time of the last one's end, what else is known of the run)."""
        text, count = re.subn(r"(?m)^  steps: .*$", f"  steps: {steps}", self.job.read_text())
        if count != 1:
            raise RuntimeError(f"{self.job}: no line `  steps: N`")
        job = self.job.with_suffix(".timed.yaml")
        job.write_text(text)
        output = self.work / f"run-{time.time_ns()}"
        call(["phalanx", "run", str(job), "--output", str(output)], log)
        metrics = output / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        more = {"loss": lines[-1]["loss"], "labelled_share": sum(line["labelled_tokens"] for line in lines) / sum(line["tokens"] for line in lines)}
        lowered = sorted(set(re.findall(LOWERED, log.read_text(errors="replace"))))
        if lowered:
            more["lowered"] = lowered
        ranks = [json.loads(path.read_text()) for path in (output / "ranks").glob("rank-*.json")]
        waits = [rank["exposed_comm_seconds"] / rank["step_seconds"] for rank in ranks if rank["step_seconds"] > 0]
        if waits:
            more["wait"] = round(max(waits), 5)
        if len(lines) < steps:
            raise RuntimeError(f"{metrics}: {len(lines)} of {steps} steps")
        return [line["step_seconds"] for line in lines], metrics.stat().st_mtime, more


class Other:
    def __init__(self, label, command, options):
        self.label, self.command, self.work, self.labelled_share = label, command, options.work, options.labelled_share

    def run(self, steps, log):
        mark = self.work / f"mark-{time.time_ns()}"
        call(shlex.split(self.command.format(mark=mark, steps=steps)), log)
        ends = [float(line.split()[0]) for line in mark.read_text().splitlines()]
        if len(ends) < steps:
            raise RuntimeError(f"{mark}: {len(ends)} of {steps} steps")
        losses = re.findall(r'"loss": ([0-9.einfa+-]+)', log.read_text(errors="replace"))
        seconds = [0.0] + [b - a for a, b in zip(ends, ends[1:])]
        return seconds, ends[-1], {"loss": float(losses[-1]) if losses else None, "labelled_share": self.labelled_share}


def call(command, log):
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            status = process.wait(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.terminate()  # what it has started is ended by it
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            status = f"a cut after {RUN_SECONDS_MAX} s"
    if status != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{command[0]} ended with {status}:\n{tail}")


def expected(text):
    """('LABEL', SECONDS)"""
    label, _, seconds = text.rpartition(": ")
    if not label or not float(seconds) > 0:
        raise argparse.ArgumentTypeError(f"{text}: must be 'LABEL: SECONDS'")
    return label, float(seconds)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60, help="of each run behind its warm-up")
    parser.add_argument("--tokens", type=int, required=True, help="of a step")
    parser.add_argument("--labelled-share", type=float, metavar="SHARE", help="of the other program's tokens")
    parser.add_argument("--ours", action="append", default=[], metavar="'LABEL: JOB.yaml'")
    parser.add_argument("--other", action="append", default=[], metavar="'LABEL: COMMAND'")
    parser.add_argument("--once", action="append", default=[], metavar="'LABEL: JOB.yaml'", help="in the middle, and not again")
    parser.add_argument("--step", action="append", default=[], type=expected, metavar="'LABEL: SECONDS'", help="what it is expected to take")
    return parser.parse_args()


def programs_of(kind, texts, options):
    return [kind(label, rest, options) for label, _, rest in (text.partition(": ") for text in texts)]


def figures_of(program, outcome, options, clocks):
    seconds, end, more = outcome
    timed = seconds[WARM_UP:]  # a run has more steps than those of its warm-up, or it has failed
    speed = options.tokens * len(timed) / sum(timed)
    figures = {"label": program.label, "tokens_per_s": round(speed), "step_ms": round(1e3 * sum(timed) / len(timed), 1), "steps": len(timed),
               "seconds": round(sum(timed), 1), "loss": more.get("loss")}
    if more.get("labelled_share") is not None:
        figures["labelled_tokens_per_s"] = round(speed * more["labelled_share"])
    figures.update({key: more[key] for key in ("wait", "lowered") if key in more})
    measured = clocks.between(end - sum(timed), end)
    if measured:
        figures.update(mhz=measured[0], watts=round(measured[1]), degrees=measured[2], joules_per_token=round(measured[1] / speed, 5))
    return figures


class Comparison:
    def __init__(self, options, clocks):
        self.options, self.clocks = options, clocks
        self.steps = {label: WARM_UP + math.ceil(MORE * options.seconds / seconds) for label, seconds in options.step}
        self.runs, self.failed = [], set()  # labels of those that have failed, which have no second run

    def log(self, program, turn):
        return self.options.output / f"{re.sub('[^A-Za-z0-9]+', '-', program.label)}-{turn}.log"

    def attempt(self, program, steps, turn):
        """What the run gave; None: it failed, and has said so."""
        try:
            return program.run(steps, self.log(program, turn))
        except (RuntimeError, OSError, ValueError, LookupError) as error:
            self.failed.add(program.label)
            print(f"{program.label}: left out: {error}", flush=True)
            return None

    def steps_of(self, program):
        """None: its first run failed."""
        if program.label not in self.steps:
            first = self.attempt(program, WARM_UP + 6, "first")
            if first is None:
                return None
            self.steps[program.label] = WARM_UP + math.ceil(self.options.seconds / (sum(first[0][-5:]) / 5))
        return self.steps[program.label]

    def run(self, program, turn):
        steps = None if program.label in self.failed else self.steps_of(program)
        outcome = None if steps is None else self.attempt(program, steps, turn)
        if outcome is None:
            return
        figures = figures_of(program, outcome, self.options, self.clocks)
        self.steps[program.label] = WARM_UP + math.ceil(self.options.seconds / (figures["seconds"] / figures["steps"]))
        self.runs.append(figures)
        (self.options.output / "speed.json").write_text(json.dumps(self.runs, indent=1) + "\n")
        with open(self.options.output / "speed.txt", "a") as file:
            for out in (file, sys.stdout):
                print("; ".join(f"{name} {value}" for name, value in figures.items()), file=out, flush=True)


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    twice = programs_of(Other, options.other, options) + programs_of(Ours, options.ours, options)
    once = programs_of(Ours, options.once, options)
    clocks = Clocks(options.output / "clocks.csv")
    comparison = Comparison(options, clocks)
    try:
        for turn, program in enumerate(twice + once + twice[::-1]):
            comparison.run(program, turn)
    finally:
        clocks.stop()
    return 1 if comparison.failed or not comparison.runs else 0


if __name__ == "__main__":
    sys.exit(main())
