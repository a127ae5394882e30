#!/usr/bin/env python3
"""Ours and another program's training speed in one run on one machine, in the order A B B A.

    scripts/gpu/compare_speed.py WORK OUTPUT --seconds 60 --tokens 32768
        --ours 'LABEL: JOB.yaml' ... --other 'LABEL: COMMAND' ...

Each --ours is a job whose steps have --tokens tokens; each --other a command that adds a line to the file
{mark} at the end of each of its {steps} steps, whose first word is the time in seconds. Both have a first
run of a few steps, from which follows how many steps take --seconds; then all run in turn, and once more in
reverse order. Of a run, all tokens of the steps behind the first ten over all their time; clock, power and
temperature are means over that time (the temperature its highest), power of all devices together. Writes OUTPUT/speed.txt, a line a
run, and OUTPUT/speed.json; logs and clocks lie beside them. `phalanx` comes from the PATH.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

WARM_UP = 10  # steps
CLOCKS = "timestamp,clocks.sm,power.draw,temperature.gpu"


class Clocks:
    """nvidia-smi's log of clock, power and temperature, twice a second."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "w")
        command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader,nounits", "-lms", "500"]
        self.logger = subprocess.Popen(command, stdout=self.file)

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
    def __init__(self, label, job, work):
        self.label, self.job, self.work = label, pathlib.Path(job), work

    def run(self, steps, log):
        """([seconds of each step], time of the last one's end, loss)."""
        text, count = re.subn(r"(?m)^  steps: .*$", f"  steps: {steps}", self.job.read_text())
        if count != 1:
            sys.exit(f"{self.job}: no line `  steps: N`")
        job = self.job.with_suffix(".timed.yaml")
        job.write_text(text)
        output = self.work / f"run-{time.time_ns()}"
        call(["phalanx", "run", str(job), "--output", str(output)], log)
        metrics = output / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line["step_seconds"] for line in lines], metrics.stat().st_mtime, lines[-1]["loss"]


class Other:
    def __init__(self, label, command, work):
        self.label, self.command, self.work = label, command, work

    def run(self, steps, log):
        mark = self.work / f"mark-{time.time_ns()}"
        call(shlex.split(self.command.format(mark=mark, steps=steps)), log)
        ends = [float(line.split()[0]) for line in mark.read_text().splitlines()]
        losses = re.findall(r'"loss": ([0-9.einfa+-]+)', log.read_text(errors="replace"))
        seconds = [0.0] + [b - a for a, b in zip(ends, ends[1:])]
        return seconds, ends[-1], float(losses[-1]) if losses else None


def call(command, log):
    with open(log, "w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=600).returncode
    if status != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{command[0]} ended with {status}:\n{tail}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60, help="of each run behind its warm-up")
    parser.add_argument("--tokens", type=int, required=True, help="of a step")
    parser.add_argument("--ours", action="append", default=[], metavar="'LABEL: JOB.yaml'")
    parser.add_argument("--other", action="append", default=[], metavar="'LABEL: COMMAND'")
    return parser.parse_args()


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    split = [(kind, text.partition(": ")) for kind, texts in ((Other, options.other), (Ours, options.ours)) for text in texts]
    programs = [kind(label, rest, options.work) for kind, (label, _, rest) in split]
    log = lambda program, turn: options.output / f"{re.sub('[^A-Za-z0-9]+', '-', program.label)}-{turn}.log"
    steps, runs, failed = {}, [], False
    clocks = Clocks(options.output / "clocks.csv")
    try:
        for program in list(programs):
            try:
                seconds, _, _ = program.run(WARM_UP + 6, log(program, "first"))
                steps[program.label] = WARM_UP + math.ceil(options.seconds / (sum(seconds[-5:]) / 5))
            except RuntimeError as error:
                failed = True
                print(f"{program.label}: left out: {error}", flush=True)
                programs.remove(program)
        for turn, program in enumerate(programs + programs[::-1]):
            seconds, end, loss = program.run(steps[program.label], log(program, turn))
            timed = seconds[WARM_UP:]
            speed = options.tokens * len(timed) / sum(timed)
            run = {"label": program.label, "tokens_per_s": round(speed), "step_ms": round(1e3 * sum(timed) / len(timed), 1), "steps": len(timed), "loss": loss}
            measured = clocks.between(end - sum(timed), end)
            if measured:
                run.update(mhz=measured[0], watts=round(measured[1]), degrees=measured[2], joules_per_token=round(measured[1] / speed, 5))
            runs.append(run)
            with open(options.output / "speed.txt", "a") as file:
                for out in (file, sys.stdout):
                    print("; ".join(f"{name} {value}" for name, value in run.items()), file=out, flush=True)
    finally:
        clocks.stop()
        (options.output / "speed.json").write_text(json.dumps(runs, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
