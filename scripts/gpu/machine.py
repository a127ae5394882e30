#!/usr/bin/env python3
"""Every figure of a machine with one, two, four or eight GPUs, in parts of under 25 minutes each.

    scripts/gpu/one   PACK.tar.xz WORK OUTPUT [--part 1|2|3|4|5|6|7] ...
    scripts/gpu/two   PACK.tar.xz WORK OUTPUT [--part 1|2|3|4|5|6|7|8|9] ...
    scripts/gpu/four  PACK.tar.xz WORK OUTPUT [--part 1|2|3|4|5|6|7] [--only NAME,...] [--seconds 1500] [--dry-run] [--verdicts]
    scripts/gpu/eight PACK.tar.xz WORK OUTPUT [--part 1|2|3] ...

PACK from scripts/gpu/pack; WORK a scratch folder. Each measurement is a command with a budget, after which it is cut; none begins
that would not fit into what is left of --seconds. With --only those measurements are made, in that order, each behind those that it needs, such as
predictions before the layout that they are of. OUTPUT/results.json has each with its command, exit code, seconds, figures and last lines as soon as
it has ended, and what has become of each goal (`verdicts`: figure, wanted, measured, reached or not); OUTPUT/verdicts.md is the table of these, and
OUTPUT/page.md all of it to read, below a header that says what machine it was. What was measured is not measured again: the second part
goes on in the same OUTPUT. SIGTERM ends the measurement that runs, and what is there is kept.

--dry-run prints commands, what they take as a rule (on H200s), and budgets, and runs nothing. --verdicts prints the table of what is in OUTPUT.

Devices are those of CUDA_VISIBLE_DEVICES where that is set: two runs of two GPUs each stand side by side on a machine with four,
each with its own WORK and OUTPUT, where both do not fill the host's memory with copies of state (recoveries named host).

The environment names programs of others: ANCHOR takes the flags of torch_fsdp_bench.py, LIMIT those of sustained_budget.py, TE is the folder that
scripts/gpu/yardstick takes; what needs one that is not there is left out, by name. PROFILE is a device profile, where none was measured in OUTPUT.

What each machine measures is in machines.py, what a plan of measurements is in plans.py; running.py runs one of them.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import boards  # noqa: E402
import machines  # noqa: E402
import plans  # noqa: E402
import predicted_layouts  # noqa: E402
import running  # noqa: E402
import verdicts  # noqa: E402

SECONDS_MAX = 1500  # of a part


def said(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"


def device_memory():
    """Of the device that has least, as the driver says."""
    text = said(boards.query("memory.total", "--format=csv,noheader,nounits"))
    try:
        return f"{min(int(line) for line in text.splitlines())}Mi"
    except ValueError:
        sys.exit(f"memory of the devices is not known: {text}")


def header():
    fields = "index,name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,temperature.gpu"
    versions = "import torch; print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())))"
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "gpus": said(boards.query(fields, "--format=csv")),
        "topology": said(["nvidia-smi", "topo", "-m"]),
        "torch, CUDA, NCCL": said([sys.executable, "-c", versions]),
        "phalanx": said(["phalanx", "--version"]),
    }


def write(path, text):
    """Whole or not at all, for the machine may go at any moment."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    draft.replace(path)


def page(devices, heads, results, predicted=(), judged=()):
    """`predicted` and `judged`: lines of tables."""
    lines = [f"# Figures on {devices} GPU{'s' if devices > 1 else ''}", ""]
    for name, text in heads.items():
        lines += [f"{name}:", "", "```", text, "```", ""]
    if judged:
        lines += ["## What was wanted", "", *judged, ""]
    if predicted:
        lines += ["## Predicted and measured", "", *predicted, ""]
    for name, result in results.items():
        state = "cut" if result["cut"] else f"exit code {result['exit_code']}"
        lines += [f"## {name}", "", f"{result['point']}. `{result['command']}`; {state} after {result['seconds']} s.", "",
                  "```", *result["last_lines"], "```", ""]
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("devices", type=int, choices=sorted(machines.MACHINES))
    parser.add_argument("pack", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX, help="of all measurements together")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="these, in this order")
    parser.add_argument("--part", type=int, choices=range(1, 11), default=1)
    parser.add_argument("--dry-run", action="store_true", help="print what would be run, and how long it takes")
    parser.add_argument("--verdicts", action="store_true", help="print what has become of each goal so far")
    return parser.parse_args(arguments)


def with_those_before(names, measurements):
    """These, each behind those that it needs and that are not there yet."""
    known, found = {m.name: m for m in measurements}, []

    def add(name):
        for before in known[name].after:
            add(before)
        if known[name] not in found:
            found.append(known[name])

    for name in names:
        add(name)
    return found


def chosen(options):
    memory = plans.H200_MEMORY if options.dry_run or options.verdicts else device_memory()
    plan = plans.Plan(options.devices, options.pack.absolute(), options.work.absolute(), options.output.absolute(), memory)
    machines.MACHINES[options.devices](plan)
    names = [measurement.name for measurement in plan.list]
    for name in options.only or []:
        if name not in names:
            sys.exit(f"--only: {name}: must be one of {', '.join(names)}")
    # Everything else needs the samples.
    plan.list = with_those_before(["data", *(options.only or [m.name for m in plan.list if m.part == options.part])], plan.list)
    return plan


def print_plan(plan, limit):
    for measurement in plan.list:
        print(f"# {measurement.name}, some {measurement.usual} s, at most {measurement.seconds} s: {measurement.point}\n{shlex.join(running.command_of(plan, measurement))}")
    total, usual = (sum(getattr(measurement, of) for measurement in plan.list) for of in ("seconds", "usual"))
    print(f"# {len(plan.list)} measurements, at most {total} s of {limit:.0f}, some {usual} s as a rule")
    return 0 if total <= limit else 1


class Results:
    """Of OUTPUT, as they come."""

    def __init__(self, plan, devices):
        self.plan, self.devices, self.path = plan, devices, plan.output / "results.json"
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        if known.get("devices", devices) != devices:
            sys.exit(f"{self.path}: has figures of {known['devices']} devices: give these {devices} another folder")
        self.machine, self.of = known.get("machine", {}), known.get("results", {})

    def judged(self):
        return [verdicts.verdict(goal, self.of) for goal in self.plan.goals]

    def write(self):
        judged = self.judged()
        write(self.path, json.dumps({"devices": self.devices, "machine": self.machine, "verdicts": judged, "results": self.of}, indent=1) + "\n")
        lines = verdicts.table(judged)
        write(self.plan.output / "verdicts.md", "\n".join(lines) + "\n")
        write(self.plan.output / "page.md", page(self.devices, self.machine, self.of, predicted_layouts.write_table(self.plan.output, self.of), lines))

    def has(self, measurement):
        result = self.of.get(measurement.name, {})
        if measurement.name == "data" or (measurement.makes is not None and not measurement.makes.exists()):
            return False
        return result.get("whole", result.get("exit_code") == 0)


def measure(plan, results, seconds):
    """All that the time is enough for."""
    machine = said(boards.query("uuid", "--format=csv,noheader")).splitlines()[:1]
    limit = time.monotonic() + seconds
    for measurement in plan.list:
        missing = [name for name in measurement.needs if name not in os.environ]
        if missing:
            print(f"{measurement.name}: left out: {', '.join(missing)} is not set", flush=True)
        elif results.has(measurement):
            print(f"{measurement.name}: is there already", flush=True)
        elif limit - time.monotonic() < measurement.seconds:
            print(f"{measurement.name}: left out: the time is up", flush=True)
        else:
            results.of[measurement.name], stopped = running.run(plan, measurement, "".join(machine))
            result = results.of[measurement.name]
            print(f"{measurement.name}: exit code {result['exit_code']} after {result['seconds']} s", *result["last_lines"][-4:], sep="\n  ", flush=True)
            results.write()
            if stopped:
                print("stopped by a signal", flush=True)
                return
            if measurement.name == "data" and result["exit_code"] != 0:
                sys.exit("without samples nothing else can be measured")


def main():
    options = parse(sys.argv[1:])
    plan = chosen(options)
    if options.dry_run:
        return print_plan(plan, options.seconds)
    results = Results(plan, options.devices)
    if options.verdicts:
        print("\n".join(verdicts.table(results.judged())))
        return 0
    plan.output.mkdir(parents=True, exist_ok=True)
    results.machine = header()
    results.write()
    signal.signal(signal.SIGTERM, running.stop)
    with contextlib.suppress(running.Stopped):
        measure(plan, results, options.seconds)
    print("\n".join(verdicts.table([one for one in results.judged() if one["state"] != verdicts.NOT_MEASURED])))
    missed = [m.name for m in plan.list if not results.of.get(m.name, {}).get("whole")]
    print(f"{len(plan.list) - len(missed)} of {len(plan.list)} measurements; not there: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
