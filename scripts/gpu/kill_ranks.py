"""Runs a job, kills its ranks one after another with SIGKILL, and says how long each loss, and each return, held training up.

    kill_ranks.py JOB OUTPUT KILLS [--seed N] [--within SECONDS] [--lose STEPS] [--standby] [--pinned] [--stay-out [--profile FILE]]

OUTPUT is the job's folder; OUTPUT/kills.json gets the figures of each kill, OUTPUT/summary.json those of the run (how much of the throughput is back behind
the last return, for how long returns hold training up, beside a step, and how much of the devices' memory 20 kills leave in use), both behind each kill, so
that a run that is cut keeps what it has; OUTPUT/ranks.log what the ranks told, and OUTPUT/stalls.log, for each second in which
no step was decided for long, what the threads of each rank wait for. A line of metrics.jsonl is written when its step is decided, so the
time from a kill to the first line of the next epoch is that from the kill to the first decision of the new layout. Of it the phases
of incident.json are parts, which are printed in the end. A kill waits until every share of state has its homes again, with --standby also until communicators are
there for the loss of each rank, with --pinned until ranks have pinned the copies of others that they would take up. With --stay-out (of a
job with `rejoin: manual`, one kill) nobody comes back, and steps without the rank are compared with those before, and with what the simulator says of the layouts
(`phalanx plan --lost`). With --within all kills, of 20 all but one, must have a decision within so many seconds and one step of the
new layout, and with --lose at most so many steps that were decided may be done again.
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

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import boards  # noqa: E402
import jobs  # noqa: E402
import kill_figures  # noqa: E402

PATIENCE = 120  # seconds, for whatever is waited for
STALL = 3  # seconds without a step
# Steps of every rank, before the first kill and behind the last return: so many are passed over (mirrors get their state then), so many compared.
PASSED, COMPARED = 6, 12
SETTLED_SECONDS = 10  # of an epoch; before, communicators for losses are made beside its steps
WARM_SECONDS = 25  # of a job, before the steps that later ones are compared with: cold devices clock higher


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


def of_processes(pid):
    """What the job's processes have: resident memory, in which what they share or have pinned counts for each, what of it is their own, descriptors, and how many they are."""
    resident = own = descriptors = processes = 0
    for child in [pid, *children_below(pid)]:
        try:
            with open(f"/proc/{child}/status") as file:
                kib = {line.split(":")[0]: int(line.split()[1]) for line in file if line.startswith(("VmRSS:", "RssAnon:"))}
            held = len(os.listdir(f"/proc/{child}/fd"))
        except OSError:
            continue  # it has just ended
        resident, own = resident + kib.get("VmRSS", 0), own + kib.get("RssAnon", 0)
        descriptors, processes = descriptors + held, processes + 1
    return {"resident_mib": resident // 1024, "anonymous_mib": own // 1024, "descriptors": descriptors, "processes": processes}


def children_below(pid):
    return [below for child in children(pid) for below in [child, *children_below(child)]]


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

    def decided_before(self, epoch):
        """The last step that an epoch before this one has decided."""
        return max((line["step"] for line in self.cut + self.lines if line["epoch"] < epoch), default=0)

    def first_of(self, epoch):
        return min(line["step"] for line in self.lines if line["epoch"] == epoch)

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
    try:
        return subprocess.run(["phalanx", "logs", "--server", servers[0], "job-1"], capture_output=True, text=True, timeout=20, errors="replace").stdout
    except subprocess.TimeoutExpired:
        return ""


def pinned(output, epoch):
    """Whether the first two ranks, who would take over what others had (core/plan/preparation.h), have pinned that, in this epoch or a later one."""
    last = {rank: int(of) for of, rank in re.findall(r" epoch=(\d+) rank=(\d+) has pinned the copies", logs(output))}
    return all(last.get(rank, 0) >= epoch for rank in ("0", "1"))


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


def settled_step(job, metrics, settled=SETTLED_SECONDS):
    """Median seconds of a step of the epoch that runs, so many seconds behind its first; by then nothing is made beside its steps any more."""
    epoch = metrics.last["epoch"]

    def begin():  # how many of its steps are passed over
        seconds, steps = 0.0, metrics.of_epoch(epoch)
        for number, step in enumerate(steps):
            if number >= PASSED and seconds >= settled:
                return number
            seconds += step
        return len(steps)

    wait(job, metrics, lambda: len(metrics.of_epoch(epoch)) >= begin() + COMPARED, f"{COMPARED} steps behind {settled} s of epoch {epoch}")
    if metrics.last["epoch"] != epoch:
        raise RuntimeError(f"epoch {epoch} has not stayed")
    return statistics.median(metrics.of_epoch(epoch)[begin():])


def step_ratio(job, lost, profile=None):
    """A step without these ranks, in steps with all, as the simulator has them under a device profile, or from shapes alone; None where it does not say."""
    command = ["phalanx", "plan", job, "--lost", ",".join(map(str, lost)), "-o", "json"]
    if profile:
        command += ["--device-profile", profile, "--items", str(jobs.ITEMS)]
    try:
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, timeout=60).stdout).get("step_ratio")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def memory_used():
    """MiB in use on each GPU."""
    command = boards.query("memory.used", "--format=csv,noheader,nounits")
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
        wait(job, metrics, lambda: pinned(output, epoch), "pinned copies")
    if options.standby:
        wait(job, metrics, lambda: standby_ready(output), "standby communicators")
    healthy = statistics.median(metrics.of_epoch(epoch)[1:])
    memory = {"memory_mib": memory_used(), **of_processes(job.pid)}
    time.sleep(draw.uniform(0, healthy))
    metrics.read()
    epoch = metrics.last["epoch"]  # another one may have begun in between
    victim = draw.choice(sorted(ranks_below(job.pid)))
    before = len(incidents(output))
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait(job, metrics, lambda: metrics.last["epoch"] > epoch, "a step of the next layout")
    seconds, reduced = time.monotonic() - killed, metrics.last
    lost = max(0, metrics.decided_before(reduced["epoch"]) + 1 - metrics.first_of(reduced["epoch"]))
    figures = {"healthy_step_seconds": healthy, **memory, "seconds": seconds, "steps_lost": lost}
    wait(job, metrics, lambda: len(incidents(output)) > before, "the loss's incident")
    return of_the_loss(figures, incidents(output)[before], reduced), reduced, before


def of_the_loss(figures, loss, reduced):
    # The next writer of metrics may begin with a line that the one before owed.
    seconds = max(figures["seconds"], (phases(loss)["first_step"][1] or 0) / 1e3)
    return {**figures, "seconds": seconds, "step": reduced["step"], "steps_redone": loss["steps_redone"], "communicators": loss["communicators"],
            "phases_ms": phases(loss)}


def kill_one(job, metrics, options, draw, world, figures):
    """Adds the figures of one kill, and then of the return behind it."""
    of_kill, reduced, before = kill_a_rank(job, metrics, options, draw, world)
    figures.update(of_kill)
    # Back again: the next epoch has every rank.
    wait(job, metrics, lambda: metrics.last["epoch"] > reduced["epoch"], "a step with every rank")
    back = len(metrics.lines) - 1
    while metrics.lines[back - 1]["epoch"] == metrics.last["epoch"]:
        back -= 1
    wait(job, metrics, lambda: len(incidents(options.output)) >= before + 2, "the return's incident")
    loss, comes_back = incidents(options.output)[before:before + 2]
    paused = pause(comes_back)
    figures.update({
        **of_the_loss(figures, loss, reduced), "step_seconds": statistics.median(metrics.of_epoch(reduced["epoch"])),
        "return_seconds": metrics.seen[back] - metrics.seen[back - 1],
        "return_pause_seconds": paused, "return_pause_in_steps": None if paused is None else paused / figures["healthy_step_seconds"],
        "return_phases_ms": phases(comes_back), "return": comes_back["summary"]})


def kill_for_good(job, metrics, options, draw, world, figures):
    """Adds the figures of one kill behind which nobody comes back."""
    before = settled_step(job, metrics)
    of_kill, reduced, number = kill_a_rank(job, metrics, options, draw, world)
    figures.update({**of_kill, "healthy_step_seconds": before})
    figures["step_seconds"] = settled_step(job, metrics)
    if metrics.last["epoch"] != reduced["epoch"]:
        raise RuntimeError("the job has not stayed without the rank")
    figures["lost"] = incidents(options.output)[number]["lost"]
    figures["step_ratio"] = step_ratio(options.job, figures["lost"], options.profile)


def write(path, content):
    """Whole or not at all, for what reads it may come at any moment."""
    with open(path + ".draft", "w") as file:
        json.dump(content, file, indent=1)
    os.replace(path + ".draft", path)


def cut(number, frame):
    raise RuntimeError("cut before its end")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("job")
    parser.add_argument("output")
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float)
    parser.add_argument("--lose", type=int, metavar="STEPS")
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--stay-out", action="store_true")
    parser.add_argument("--profile", metavar="FILE", help="with --stay-out: of the devices, for the simulator")
    options = parser.parse_args()
    if options.stay_out and options.kills != 1:
        parser.error("--stay-out: there is one kill")
    return options


def main():
    options = parse()
    os.makedirs(options.output, exist_ok=True)
    signal.signal(signal.SIGTERM, cut)
    with open(os.path.join(options.output, "run.log"), "w") as log:
        job = subprocess.Popen(["phalanx", "run", options.job, "--output", options.output, "--allow-inject"], stdout=log, stderr=log)
    job.stalls = Stalls(os.path.join(options.output, "stalls.log"))
    metrics = Metrics(os.path.join(options.output, "metrics.jsonl"))
    figures, draw, before, after = [], random.Random(options.seed), None, None
    kills_path, summary_path = (os.path.join(options.output, name) for name in ("kills.json", "summary.json"))

    def save():
        write(kills_path, figures)
        write(summary_path, kill_figures.summary(figures, before, after, options))

    try:
        wait(job, metrics, lambda: metrics.last["step"] >= 6, "step 6")
        before = settled_step(job, metrics, SETTLED_SECONDS if options.stay_out else WARM_SECONDS)
        world = len(ranks_below(job.pid))
        for _ in range(options.kills):
            kill = kill_for_good if options.stay_out else kill_one
            figures.append({"ranks": world})
            kill(job, metrics, options, draw, world, figures[-1])
            print(json.dumps(figures[-1]), flush=True)
            save()
        after = None if options.stay_out else healthy_step(job, metrics)
    except RuntimeError as error:
        print(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left to do is short
    save()
    with open(os.path.join(options.output, "ranks.log"), "w") as file:
        file.write(logs(options.output))
    job.send_signal(signal.SIGTERM)
    try:
        job.wait(timeout=60)
    except subprocess.TimeoutExpired:
        print("the job has not ended within 60 s")
        job.kill()
        job.wait()
    if line := kill_figures.summary_line(kill_figures.summary(figures, before, after, options)):
        print(line)
    if known := [figure for figure in figures if "phases_ms" in figure]:
        kill_figures.print_phases(known)
    return 0 if kill_figures.judge(figures, options) else 1


if __name__ == "__main__":
    sys.exit(main())
