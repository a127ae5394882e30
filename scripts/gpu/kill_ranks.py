"""Runs a job, kills its ranks one after another with SIGKILL, and says how long each loss, and each return, held training up.

    kill_ranks.py JOB OUTPUT KILLS [--seed N] [--within SECONDS] [--standby] [--pinned] [--stay-out]

OUTPUT is the job's folder; OUTPUT/kills.json gets the figures of each kill, OUTPUT/summary.json those of the run (how much of the throughput is back behind
the last return, and for how long returns hold training up, beside a step), OUTPUT/ranks.log what the ranks told, and OUTPUT/stalls.log, for each second in which
no step was decided for long, what the threads of each rank wait for. A line of metrics.jsonl is written when its step is decided, so the
time from a kill to the first line of the next epoch is that from the kill to the first decision of the new layout. Of it the phases
of incident.json are parts, which are printed in the end. A kill waits until every share of state has its homes again, with --standby also until communicators are
there for the loss of each rank, with --pinned until ranks have pinned the copies of others that they would take up. With --stay-out (of a
job with `rejoin: manual`, one kill) nobody comes back, and steps without the rank are compared with those before. With --within all kills but one of 20 must have a decision within so many seconds and one step of the
new layout.
"""
import argparse
import glob
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 120  # seconds, for whatever is waited for
STALL = 3  # seconds without a step
# Steps of every rank, before the first kill and behind the last return: so many are passed over (mirrors get their state then), so many compared.
PASSED, COMPARED = 6, 12


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
        self.cut = []  # lines that the next writer has cut off

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(0, 2)
                if file.tell() < self.place:  # the next writer has cut it
                    self.cut += self.lines
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

    def of_epoch(self, epoch):
        return [line["step_seconds"] for line in self.cut + self.lines if line["epoch"] == epoch]

    @property
    def last(self):
        return self.lines[-1] if self.lines else {"step": 0, "epoch": 0}


def text_of(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def tasks_of(process):
    try:
        return sorted(os.listdir(f"/proc/{process}/task"))
    except OSError:  # it has ended
        return []


class Stalls:
    """What ranks do while no step is decided."""

    def __init__(self, path):
        self.path, self.at = path, 0

    def look(self, job, metrics):
        now = time.monotonic()
        if not metrics.seen or now < metrics.seen[-1] + STALL or now < self.at + 1:
            return
        self.at = now
        with open(self.path, "a") as file:
            memory = " ".join(line for line in text_of("/proc/meminfo").splitlines()[:5])
            print(f"{time.time():.3f}: {now - metrics.seen[-1]:.1f} s behind step {metrics.last['step']}; {memory}", file=file)
            for process, name in ranks_below(job.pid).items():
                for task in tasks_of(process):
                    folder = f"/proc/{process}/task/{task}"
                    fields = text_of(f"{folder}/stat").rpartition(")")[2].split()
                    if fields:
                        print(name, process, task, text_of(f"{folder}/comm").strip(), fields[0], "ticks", fields[11], fields[12], text_of(f"{folder}/wchan"),
                              text_of(f"{folder}/syscall").split(" ")[0].strip(), text_of(f"{folder}/stack").replace("\n", " "), file=file)


def wait(job, metrics, enough, what):
    end = time.monotonic() + PATIENCE
    while not enough():
        if job.poll() is not None:
            raise RuntimeError(f"the job ended while {what} was waited for")
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come within {PATIENCE} s")
        time.sleep(0.001)
        metrics.read()
        job.stalls.look(job, metrics)


def incidents(output):
    """incident.json of each, in order, as far as they can be read."""
    found = {}
    for path in glob.glob(os.path.join(output, "incidents", "*", "incident.json")):
        try:
            with open(path) as file:
                incident = json.load(file)
        except (OSError, ValueError):  # it is being written
            continue
        found[incident["number"]] = incident
    return [found[number] for number in sorted(found)]


def phases(incident):
    """Milliseconds of each phase, from the first evidence: [begin, end]."""
    return {phase["name"]: [None if at is None else round(at / 1e3) for at in (phase["begin"], phase["end"])]
            for phase in incident["phases"]}


def safe(output):
    known = incidents(output)
    return not known or phases(known[-1])["safe_again"][1] is not None


def standby_ready(output):
    """Whether communicators are there for losses of the layout that trains, whose last rank has come back."""
    with open(os.path.join(output, "run.log"), errors="replace") as file:
        behind = file.read().rpartition("\nReturned: ")[2]
    return "\nStandbyReady: " in behind


def logs(output):
    """What the ranks have told, as far as it is kept."""
    with open(os.path.join(output, "run.log"), errors="replace") as file:
        servers = re.findall(r"--server (\S+)", file.read())
    if not servers:
        return ""
    return subprocess.run(["phalanx", "logs", "--server", servers[0], "job-1"], capture_output=True, text=True, timeout=20, errors="replace").stdout


def pinned(output, epoch, world):
    """Whether every rank has pinned what it would take over, in this epoch or a later one."""
    last = {rank: int(of) for of, rank in re.findall(r" epoch=(\d+) rank=(\d+) has pinned the copies", logs(output))}
    return len(last) == world and min(last.values()) >= epoch


def pause(incident):
    """Seconds for which a return has held training up; None: the coordinator was not told."""
    of = phases(incident)
    begin, end = of["survivors_quiet"][0], of["resumed"][1]
    return None if begin is None or end is None else (end - begin) / 1e3


def healthy_step(job, metrics):
    """Median seconds of a step of the epoch that runs, which has every rank, once it has done enough of them."""
    epoch, count = metrics.last["epoch"], PASSED + COMPARED
    wait(job, metrics, lambda: len(metrics.of_epoch(epoch)) >= count, f"step {count} of epoch {epoch}")
    return statistics.median(metrics.of_epoch(epoch)[PASSED:count])


def memory_used():
    """MiB in use on each GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return [int(line) for line in subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split()]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


def kill_a_rank(job, metrics, options, draw, world):
    """Figures of the job before a kill, the kill, and when it went on; the last line of metrics then, and how many incidents there were before."""
    output, step = options.output, metrics.last["step"]
    wait(job, metrics, lambda: metrics.last["step"] >= step + 4, f"step {step + 4}")
    wait(job, metrics, lambda: len(ranks_below(job.pid)) == world, "every rank")
    wait(job, metrics, lambda: safe(output), "state at all its homes")
    epoch = metrics.last["epoch"]
    if options.pinned:
        wait(job, metrics, lambda: pinned(output, epoch, world), "pinned copies")
    if options.standby:
        wait(job, metrics, lambda: standby_ready(output), "standby communicators")
    healthy = statistics.median(metrics.of_epoch(epoch)[1:])
    memory = memory_used()
    time.sleep(draw.uniform(0, healthy))
    metrics.read()
    epoch = metrics.last["epoch"]  # another one may have begun in between
    victim = draw.choice(sorted(ranks_below(job.pid)))
    before = len(incidents(output))
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait(job, metrics, lambda: metrics.last["epoch"] > epoch, "a step of the next layout")
    figures = {"healthy_step_seconds": healthy, "memory_mib": memory, "seconds": time.monotonic() - killed}
    return figures, metrics.last, before


def of_the_loss(figures, loss, reduced):
    # The next writer of metrics may begin with a line that the one before owed.
    seconds = max(figures["seconds"], (phases(loss)["first_step"][1] or 0) / 1e3)
    return {**figures, "seconds": seconds, "step": reduced["step"], "steps_redone": loss["steps_redone"], "communicators": loss["communicators"],
            "phases_ms": phases(loss)}


def kill_one(job, metrics, options, draw, world):
    """Figures of one kill and of the return behind it."""
    figures, reduced, before = kill_a_rank(job, metrics, options, draw, world)
    # Back again: the next epoch has every rank.
    wait(job, metrics, lambda: metrics.last["epoch"] > reduced["epoch"], "a step with every rank")
    back = len(metrics.lines) - 1
    while metrics.lines[back - 1]["epoch"] == metrics.last["epoch"]:
        back -= 1
    wait(job, metrics, lambda: len(incidents(options.output)) >= before + 2, "the return's incident")
    loss, comes_back = incidents(options.output)[before:before + 2]
    paused = pause(comes_back)
    return {
        **of_the_loss(figures, loss, reduced), "step_seconds": statistics.median(metrics.of_epoch(reduced["epoch"])),
        "return_seconds": metrics.seen[back] - metrics.seen[back - 1],
        "return_pause_seconds": paused, "return_pause_in_steps": None if paused is None else paused / figures["healthy_step_seconds"],
        "return_phases_ms": phases(comes_back), "return": comes_back["summary"]}


def kill_for_good(job, metrics, options, draw, world):
    """Figures of one kill behind which nobody comes back."""
    figures, reduced, before = kill_a_rank(job, metrics, options, draw, world)
    wait(job, metrics, lambda: len(incidents(options.output)) > before, "the loss's incident")
    step = healthy_step(job, metrics)
    if metrics.last["epoch"] != reduced["epoch"]:
        raise RuntimeError("the job has not stayed without the rank")
    return {**of_the_loss(figures, incidents(options.output)[before], reduced), "step_seconds": step}


def phase_lines(figures, key, title):
    """A line for each phase: how long behind the first evidence it ended, and how long it took, at the median and at most."""
    lines = [title]
    for name in figures[0][key]:
        spans = [figure[key].get(name, [None, None]) for figure in figures]
        ends = [end for _, end in spans if end is not None]
        took = [end - begin for begin, end in spans if None not in (begin, end)]
        if took:
            lines.append(f"  {name}: ended after {statistics.median(ends):.0f} ms (most {max(ends)}), took {statistics.median(took):.0f} ms (most {max(took)})")
    return lines


def print_phases(figures):
    told = [(figures, "phases_ms", "phases of the losses")]
    told.append(([figure for figure in figures if "return_phases_ms" in figure], "return_phases_ms", "phases of the returns"))
    for some, key, title in told:
        if some:
            print("\n".join(phase_lines(some, key, f"{title}, behind the first evidence:")))


def summary(figures, before, after):
    """What the run comes to; `before` and `after` are healthy steps, in seconds, None: there are none."""
    pauses = [figure["return_pause_in_steps"] for figure in figures if figure.get("return_pause_in_steps") is not None]
    return {
        "kills": len(figures), "healthy_step_seconds_before": before, "healthy_step_seconds_after": after,
        "throughput_back": before / after if before and after else None,
        "return_pause_in_steps": statistics.median(pauses) if pauses else None, "return_pause_in_steps_max": max(pauses) if pauses else None}


def summary_line(of):
    parts = []
    if of["throughput_back"] is not None:
        parts.append(f"{100 * of['throughput_back']:.1f} % of the throughput is back: a healthy step of {of['healthy_step_seconds_before']:.3f} s before the "
                     f"first kill, of {of['healthy_step_seconds_after']:.3f} s behind the last return")
    if of["return_pause_in_steps"] is not None:
        parts.append(f"a return pauses training for {of['return_pause_in_steps']:.2f} of a step (most {of['return_pause_in_steps_max']:.2f})")
    return "; ".join(parts)


def judge(figures, options):
    """Prints what became of all kills; whether it is what was wanted."""
    seconds = sorted(figure["seconds"] for figure in figures)
    if options.stay_out:
        before, after, world = figures[0]["healthy_step_seconds"], figures[0]["step_seconds"], figures[0]["ranks"]
        print(f"a step of {before:.3f} s before the loss and of {after:.3f} s behind it: {100 * before / after:.1f} % of the throughput with {world - 1} of {world} ranks, "
              f"{100 * before / after * world / (world - 1):.1f} % of their share")
        return len(figures) == options.kills
    print(f"{len(figures)} of {options.kills} kills: the next decision after {statistics.median(seconds):.2f} s (most {seconds[-1]:.2f}), back in "
          f"{statistics.median(figure['return_seconds'] for figure in figures):.2f} s; at most {max(figure['steps_redone'] for figure in figures)} "
          f"steps redone; memory of the GPUs in MiB before the first kill {figures[0]['memory_mib']}, before the last {figures[-1]['memory_mib']}")
    if options.within is None:
        return len(figures) == options.kills
    met = sum(figure["seconds"] <= options.within + figure["step_seconds"] for figure in figures)
    print(f"{met} of {len(figures)} within {options.within} s and a step of the new layout")
    return len(figures) == options.kills and met >= len(figures) - max(1, len(figures) // 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("job")
    parser.add_argument("output")
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--stay-out", action="store_true")
    options = parser.parse_args()
    if options.stay_out and options.kills != 1:
        parser.error("--stay-out: there is one kill")
    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, "run.log"), "w") as log:
        job = subprocess.Popen(["phalanx", "run", options.job, "--output", options.output, "--allow-inject"], stdout=log, stderr=log)
    job.stalls = Stalls(os.path.join(options.output, "stalls.log"))
    metrics = Metrics(os.path.join(options.output, "metrics.jsonl"))
    figures, draw, before, after = [], random.Random(options.seed), None, None
    try:
        wait(job, metrics, lambda: metrics.last["step"] >= 6, "step 6")
        before = healthy_step(job, metrics)
        world = len(ranks_below(job.pid))
        for _ in range(options.kills):
            kill = kill_for_good if options.stay_out else kill_one
            figures.append({"ranks": world, **kill(job, metrics, options, draw, world)})
            print(json.dumps(figures[-1]), flush=True)
            with open(os.path.join(options.output, "kills.json"), "w") as file:
                json.dump(figures, file, indent=1)
        after = None if options.stay_out else healthy_step(job, metrics)
    except RuntimeError as error:
        print(error)
    with open(os.path.join(options.output, "ranks.log"), "w") as file:
        file.write(logs(options.output))
    job.send_signal(signal.SIGTERM)
    job.wait(timeout=60)
    of_run = summary(figures, before, after)
    with open(os.path.join(options.output, "summary.json"), "w") as file:
        json.dump(of_run, file, indent=1)
    if line := summary_line(of_run):
        print(line)
    if figures:
        print_phases(figures)
    return 0 if figures and judge(figures, options) else 1


if __name__ == "__main__":
    sys.exit(main())
