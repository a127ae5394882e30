"""Runs a job, kills its ranks one after another with SIGKILL, and says how long each loss, and each return, held training up.

    kill_ranks.py JOB OUTPUT KILLS [SEED]

OUTPUT is the job's folder; OUTPUT/kills.json gets the figures. A line of metrics.jsonl is written when its step is decided, so the
time from a kill to the first line of the next epoch is that from the kill to the first decision of the new layout.
"""
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 120  # seconds, for whatever is waited for


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


def ranks_below(pid):
    """Processes of ranks, by number of the rank."""
    ranks = {}
    for child in children(pid):
        try:
            with open(f"/proc/{child}/comm") as file:
                name = file.read().strip()
        except OSError:
            continue
        if name.startswith("phalanx-rank"):
            ranks[child] = name
        ranks.update(ranks_below(child))
    return ranks


class Metrics:
    """Lines of metrics.jsonl as they come, with the moment at which they were seen."""

    def __init__(self, path):
        self.path, self.lines, self.seen, self.place = path, [], [], 0

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(0, 2)
                if file.tell() < self.place:  # the next writer has cut it
                    self.place, self.lines, self.seen = 0, [], []
                file.seek(self.place)
                text = file.read()
        except OSError:
            return
        end = text.rfind(b"\n") + 1
        for line in text[:end].splitlines():
            self.lines.append(json.loads(line))
            self.seen.append(time.monotonic())
        self.place += end

    @property
    def last(self):
        return self.lines[-1] if self.lines else {"step": 0, "epoch": 0}


def wait(job, metrics, enough, what):
    end = time.monotonic() + PATIENCE
    while not enough():
        if job.poll() is not None:
            raise RuntimeError(f"the job ended while {what} was waited for")
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come within {PATIENCE} s")
        time.sleep(0.001)
        metrics.read()


def main():
    path, output, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
    draw = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    os.makedirs(output, exist_ok=True)
    with open(os.path.join(output, "run.log"), "w") as log:
        job = subprocess.Popen(["phalanx", "run", path, "--output", output], stdout=log, stderr=log)
    metrics = Metrics(os.path.join(output, "metrics.jsonl"))
    figures = []
    try:
        wait(job, metrics, lambda: metrics.last["step"] >= 6, "step 6")
        world = len(ranks_below(job.pid))
        for _ in range(kills):
            step, epoch = metrics.last["step"], metrics.last["epoch"]
            wait(job, metrics, lambda: metrics.last["step"] >= step + 4, f"step {step + 4}")
            wait(job, metrics, lambda: len(ranks_below(job.pid)) == world, "every rank")
            healthy = [line["step_seconds"] for line in metrics.lines if line["epoch"] == epoch][1:]
            time.sleep(draw.uniform(0, statistics.median(healthy)))
            metrics.read()
            epoch = metrics.last["epoch"]
            victim = draw.choice(sorted(ranks_below(job.pid)))
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            wait(job, metrics, lambda: metrics.last["epoch"] > epoch, "a step of the next layout")
            went_on = time.monotonic()
            reduced = metrics.last
            # Back again: the next epoch has every rank.
            wait(job, metrics, lambda: metrics.last["epoch"] > reduced["epoch"], "a step with every rank")
            back = len(metrics.lines) - 1
            while metrics.lines[back - 1]["epoch"] == metrics.last["epoch"]:
                back -= 1
            figures.append({
                "seconds": went_on - killed, "step": reduced["step"], "step_seconds": reduced["step_seconds"],
                "return_seconds": metrics.seen[back] - metrics.seen[back - 1],
                "healthy_step_seconds": statistics.median(healthy)})
            print(json.dumps(figures[-1]), flush=True)
        job.send_signal(signal.SIGTERM)
    except RuntimeError as error:
        print(error)
        job.send_signal(signal.SIGTERM)
    job.wait(timeout=60)
    with open(os.path.join(output, "kills.json"), "w") as file:
        json.dump(figures, file, indent=1)
    if figures:
        seconds = sorted(figure["seconds"] for figure in figures)
        print(f"{len(figures)} of {kills} kills: the next decision after {statistics.median(seconds):.2f} s (most {seconds[-1]:.2f}), "
              f"back in {statistics.median(figure['return_seconds'] for figure in figures):.2f} s")
    return 0 if len(figures) == kills else 1


if __name__ == "__main__":
    sys.exit(main())
