#!/usr/bin/env python3
"""Whether a long run stays as it is: memory, allocations and host time, step by step.

    scripts/gpu/steady.py JOB.yaml OUTPUT [--steps 2000] [--warm-up 200]

Runs the job with that many steps (its line `  steps: N` is replaced) through `phalanx run`, which comes from the PATH, and
looks at its ranks four times a second: resident memory and processor seconds of each, and the memory in use of all
its devices. The samples behind the warm-up are split at the middle step; what is compared is the highest memory and the
processor seconds a step of the two halves. OUTPUT/steady.json has every figure, OUTPUT/samples.csv what was seen.

Fails where, behind the warm-up, a rank's resident memory grows by more than 1 % or 16 MiB, whichever is more, or that of
the devices at all; where LibTorch's allocator has given a segment back or retried behind step 10, or taken one in the second
half, or a rank has made a plan of cuDNN or described a product in FP8 there (ranks/rank-N.json); where the second half takes
5 % more processor time a step than the first, or, on a GPU, a host works for more than a third of a step.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import boards  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
RESIDENT_GROWTH = (0.01, 16 << 20)  # the more of the part and the bytes
PROCESSOR_GROWTH = 0.05
HOST_PART = 1 / 3


def ranks_below(pid):
    """{process: name} of the job's ranks."""
    found = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            for child in map(int, children):
                name = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
                if name.startswith("phalanx-rank"):
                    found[child] = name
                found.update(ranks_below(child))
    except OSError:
        pass  # it has ended meanwhile
    return found


def of_process(pid):
    """(resident bytes, processor seconds)"""
    resident = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return resident, (int(fields[11]) + int(fields[12])) / TICK


def device_memory():
    """Bytes in use of the devices of this run together, whoever uses them; None without nvidia-smi."""
    command = boards.query("memory.used", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return sum(int(line) << 20 for line in done.stdout.split() if line.isdigit())


def last_step(metrics):
    try:
        with open(metrics, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().rpartition(b"\n")[0].splitlines()
        return json.loads(lines[-1])["step"] if lines else 0
    except (OSError, ValueError):
        return 0


def watch(job, metrics, interval):
    """[(step, device bytes, {process: (resident bytes, processor seconds)})] until the job ends."""
    samples = []
    while True:
        try:
            job.wait(timeout=interval)
            return samples
        except subprocess.TimeoutExpired:
            pass
        step, device, ranks = last_step(metrics), device_memory(), {}
        for pid in ranks_below(job.pid):
            try:
                ranks[pid] = of_process(pid)
            except OSError:
                continue
        samples.append((step, device, ranks))


def rate(samples, pid):
    """Processor seconds a step."""
    (first, _, before), (last, _, after) = samples[0], samples[-1]
    return (after[pid][1] - before[pid][1]) / max(1, last - first)


def judge_rank(pid, halves):
    early, late = halves
    resident = [max(ranks[pid][0] for _, _, ranks in half) for half in halves]
    seconds = [rate(half, pid) for half in halves]
    allowed = max(RESIDENT_GROWTH[0] * resident[0], RESIDENT_GROWTH[1])
    faults = []
    if resident[1] - resident[0] > allowed:
        faults.append(f"resident memory grows by {resident[1] - resident[0]} bytes")
    if seconds[1] > (1 + PROCESSOR_GROWTH) * seconds[0]:
        faults.append(f"processor seconds a step grow from {seconds[0]:.5f} to {seconds[1]:.5f}")
    figures = {"process": pid, "samples": [len(early), len(late)], "resident_bytes": resident, "processor_seconds_a_step": seconds}
    return figures, faults


def grown(rank, middle):
    """What a rank has taken or made in the second half, of what stands still once all shapes have been met."""
    prepared = rank["prepared"]
    taken, made = rank["allocator"]["last_step"], prepared["last_step"]
    faults = [f"LibTorch's allocator takes memory in step {taken}"] if taken >= middle else []
    if made >= middle:
        counts = ", ".join(f"{prepared[what]} {what.replace('_', ' ')}" for what in ("attention_trials", "attention_plans", "fp8_products"))
        faults.append(f"plans are made in step {made} ({counts} in the whole run)")
    return faults


def judge(samples, steps, warm_up, ranks):
    """(figures, what is not as it should be)"""
    warm = [sample for sample in samples if sample[0] >= warm_up and sample[2]]
    alive = set.intersection(*(set(sample[2]) for sample in warm)) if warm else set()
    middle = (warm_up + steps) / 2
    halves = [[s for s in warm if s[0] < middle], [s for s in warm if s[0] >= middle]]
    if not alive or min(map(len, halves)) < 4:
        return {}, [f"{len(warm)} samples behind the warm-up: too few to tell; ask for more steps"]
    figures, faults = {"ranks": []}, []
    for pid in sorted(alive):
        of_rank, wrong = judge_rank(pid, halves)
        figures["ranks"].append(of_rank)
        faults += [f"process {pid}: {fault}" for fault in wrong]
    device = [[s[1] for s in half if s[1] is not None] for half in halves]
    if all(device):
        figures["device_bytes"] = [max(half) for half in device]
        if figures["device_bytes"][1] > figures["device_bytes"][0]:
            faults.append(f"device memory grows from {figures['device_bytes'][0]} to {figures['device_bytes'][1]} bytes")
    figures["measured"] = []
    for rank in ranks:
        name = f"rank {rank['rank']}"
        host = rank["host_seconds"] / rank["step_seconds"] if rank["step_seconds"] else 0
        figures["measured"].append({"rank": rank["rank"], "steps": rank["steps"], "host": host, "allocator": rank["allocator"],
                                    "prepared": rank["prepared"]})
        faults += [f"{name}: {rank['allocator'][what]} {what} of the allocator" for what in ("frees", "retries") if rank["allocator"][what]]
        faults += [f"{name}: {fault}" for fault in grown(rank, middle)]
        if host > HOST_PART and all(device):
            faults.append(f"{name}: the host works for {100 * host:.1f} % of a step")
    return figures, faults


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=200, help="steps")
    parser.add_argument("--interval", type=float, default=0.25, help="seconds between two looks")
    return parser.parse_args()


def main():
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    text, count = re.subn(r"(?m)^  steps: .*$", f"  steps: {options.steps}", options.job.read_text())
    if count != 1:
        sys.exit(f"{options.job}: no line `  steps: N`")
    job = options.job.with_suffix(".steady.yaml")
    job.write_text(text)
    run = options.output / f"run-{time.time_ns()}"
    with open(options.output / "run.log", "w") as log:
        process = subprocess.Popen(["phalanx", "run", str(job), "--output", str(run)], stdout=log, stderr=log)
        try:
            samples = watch(process, run / "metrics.jsonl", options.interval)
        finally:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        sys.exit(f"the run ended with {process.returncode}; see {options.output / 'run.log'}")
    with open(options.output / "samples.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "device_bytes", "process", "resident_bytes", "processor_seconds"])
        rows.writerows([step, device, pid, *seen] for step, device, ranks in samples for pid, seen in ranks.items())
    ranks = [json.loads(path.read_text()) for path in sorted((run / "ranks").glob("rank-*.json"))]
    figures, faults = judge(samples, options.steps, options.warm_up, ranks)
    (options.output / "steady.json").write_text(json.dumps({**figures, "faults": faults}, indent=1) + "\n")
    print(json.dumps(figures))
    for fault in faults:
        print(f"not steady: {fault}")
    print(f"steady over {options.steps} steps: {'fail' if faults else 'pass'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
