#!/usr/bin/env python3
"""Every figure of a machine with two, four or eight GPUs, in parts of under 25 minutes each.

    scripts/gpu/two   PACK.tar.xz WORK OUTPUT [--part 1|2|3|4|5|6] ...
    scripts/gpu/four  PACK.tar.xz WORK OUTPUT [--part 1|2|3|4] [--only NAME,...] [--seconds 1500] [--dry-run]
    scripts/gpu/eight PACK.tar.xz WORK OUTPUT ...

PACK from scripts/gpu/pack; WORK a scratch folder. Each measurement is a command with a budget, after which it is cut; none begins
that would not fit into what is left of --seconds. OUTPUT/results.json has each with its command, exit code, seconds and last lines as soon as
it has ended, and OUTPUT/page.md is the same to read, below a header that says what machine it was. What succeeded is not measured again: the second part
goes on in the same OUTPUT. --dry-run prints commands and budgets, and runs nothing.

The environment names programs of others: ANCHOR takes the flags of torch_fsdp_bench.py, LIMIT those of sustained_budget.py; what
needs one that is not there is left out, by name.
"""
import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import jobs  # noqa: E402
import kill_ranks  # noqa: E402
import predicted_layouts  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
MAKER = HERE.parent.parent / "examples" / "make_synthetic.py"
KILL_BUDGET = "budget: {total: 1000}"
LINES_MAX = 40  # of a command's output, on the page
H200_MEMORY = "139Gi"  # where a plan is made without devices
GRACE = 90  # seconds that a command which is cut has to end: phalanx run waits for its worker up to 60


@dataclasses.dataclass
class Measurement:
    name: str
    point: str  # of which issue, and the goal in its words
    command: list
    seconds: int
    job: str = ""  # text of the job file, which the command names
    needs: tuple = ()  # variables of the environment
    part: int = 1
    environment: dict = dataclasses.field(default_factory=dict)


class Plan:
    """Measurements of a machine with `devices` GPUs, in order."""

    def __init__(self, devices, pack, work, output, device_memory=H200_MEMORY):
        self.devices, self.pack, self.work, self.output = devices, pack, work, output
        self.device_memory = device_memory  # of each, as phalanx plan takes it
        self.data = work / "synthetic-noise"
        self.seconds_each = 15  # of each timed run beside another program
        self.list = []

    def add(self, name, point, command, seconds, **rest):
        self.list.append(Measurement(name, point, [str(word) for word in command], seconds, **rest))

    def path_of(self, name):
        return self.data / f"{name}.yaml"

    def python(self, script, *arguments):
        return [sys.executable, HERE / script, *arguments]

    def make_data(self):
        self.add("data", "samples of noise and of the whole vocabulary",
                 [sys.executable, MAKER, self.data, "--samples", 64, "--noise", "--words", 128227], 60)

    def everywhere(self, name, model, micro, **rest):
        """A job of data parallelism over all modules on all ranks, a microbatch a step."""
        ranks = f"{{ranks: {self.devices}}}"
        return jobs.job(name, self.devices, model, ranks, ranks, batch=micro * self.devices, micro=micro, **rest)

    def search(self, model, batch, micro):
        name, ranks = f"search-{model}", f"{{ranks: {self.devices}}}"
        self.add(name, "the fastest layouts as the search predicts them, before any is measured",
                 ["phalanx", "plan", self.path_of(name), "--search", "--devices", self.devices, "--device-memory", self.device_memory,
                  "--device-kind", "h200", "--items", 4, "--write", self.path_of(f"found-{model}")], 10,
                 job=jobs.job(name, self.devices, model, ranks, ranks, batch=batch, micro=micro, steps=26))

    def found(self, model, part):
        self.add(f"found-{model}", "the search's first choice: within 3 % of the best of ten layouts",
                 self.python("step_time.py", self.path_of(f"found-{model}"), self.work / "runs"), 75, part=part)

    def speed(self, model, micro, point, seconds, float8=False, copies=2, part=1):
        sizes = {"1p6b": "--hidden 2048 --ffn 8192", "5b": "--hidden 4096 --ffn 14336"}[model]
        anchor = (f"{sys.executable} -m torch.distributed.run --nproc-per-node {self.devices} {os.environ.get('ANCHOR', '$ANCHOR')} {sizes} "
                  f"--warmup 0 --steps {{steps}} --mark {{mark}} --mbs {micro} --acc 1 --skip 1")
        name = f"speed-{model}"
        command = self.python("compare_speed.py", self.work / name, self.output / name, "--seconds", self.seconds_each,
                              "--tokens", micro * self.devices * 4096, "--other", f"FSDP2 {model}, labelled rows: {anchor}")
        if float8:
            command += ["--other", f"FSDP2 {model} float8, labelled rows: {anchor} --float8 1"]
        for linear in ("compute", "fp8"):
            command += ["--ours", f"ours {model} {'bf16' if linear == 'compute' else linear}: {self.path_of(f'{name}-{linear}')}"]
        texts = "".join(f"# {name}-{linear}\n" + self.everywhere(f"{name}-{linear}", model, micro, linear=linear, steps=40,
                                                                        recovery=f"{{state_copies: {copies}}}")
                        for linear in ("compute", "fp8"))
        self.add(name, point, command, seconds, job=texts, needs=("ANCHOR",), part=part)

    def limit(self, model, part=2):
        hidden, ffn, pointwise, casts = {"1p6b": (2048, 8192, 18, 15), "5b": (4096, 14336, 36, 29)}[model]
        for fp8 in (0, 1):
            self.add(f"limit-{model}-{'fp8' if fp8 else 'bf16'}", "what the boards keep up",
                     self.python("limit.py", self.devices, "--seconds", 8, "--hidden", hidden, "--ffn", ffn,
                      "--rows", 7168, "--dp", self.devices, "--fp8", fp8, "--pointwise", pointwise + casts * fp8), 40, needs=("LIMIT",), part=part)

    def layout(self, name, point, seconds, *, lost=None, bound=None, part=1, **layout):
        command = self.python("step_time.py", self.path_of(name), self.work / "runs")
        if lost:
            command += ["--lost", lost]
        if bound:
            command += ["--bound", bound]
        self.add(name, point, command, seconds, part=part, job=jobs.job(name, self.devices, **layout))

    def predict_layouts(self, part):
        """All of the part that step_time.py measures whole, before the first of them."""
        whole = [m for m in self.list if m.part == part and m.command[1].endswith("step_time.py") and "--lost" not in m.command]
        profile = os.environ.get("PROFILE", HERE / "profiles" / "h200.json")
        command = self.python("predicted_layouts.py", self.output, "--profile", profile, "--items", jobs.ITEMS,
                              "--device-memory", self.device_memory, *(m.command[2] for m in whole))
        first = self.list.index(whole[0])
        self.add("predictions", "what these layouts take, written down before any of them is measured", command, 60, part=part,
                 job="".join(f"# {m.name}\n{m.job}" for m in whole if m.job))
        self.list.insert(first, self.list.pop())

    def stage(self, name, point, seconds):
        self.add(name, point, [HERE / "run", self.pack, self.work, self.output, name], seconds)

    def restart(self, part=2, kills=5, every=10):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", self.devices, "--max-restarts", 2 * kills, "--monitor-interval", 0.1,
                   HERE / "checkpoint_every.py", every, os.environ.get("ANCHOR", "$ANCHOR"), "--hidden", 2048, "--ffn", 8192, "--mbs", 2, "--skip", 1,
                   "--warmup", 0, "--steps", 100000, "--ckpt", 1, "--mark", "{mark}"]
        self.add("restart", f"torchrun --max-restarts of the 1.6B model, with a checkpoint of the parameters alone every {every} steps on the same disk, {kills} kills",
                 self.python("restart_time.py", self.output / "restart", kills, every, "--", *command), 420, needs=("ANCHOR",), part=part)

    def stay_out(self, name, layout, part):
        label = f"stay-out-{name}"
        text = jobs.job(label, self.devices, **{**layout, "recovery": f"{{rejoin: manual, {KILL_BUDGET}}}", "steps": 100000})
        self.add(label, "a rank is killed and stays out (rejoin: manual): the throughput of those that are left, beside their share of the devices",
                 self.python("kill_ranks.py", self.path_of(label), self.output / label, 1, "--stay-out"), 120, job=text, part=part)

    def recovery(self, name, layout, kills, seconds, part=2, none=2):
        """Without standby communicators in part `none`: state that no rank holds has none anyway."""
        recovery = layout.get("recovery", "").strip("{}")
        for standby in ("auto",) if "host" in recovery else ("auto", "none"):
            label = f"recovery-{name}" + ("" if standby == "auto" else "-without-standby")
            options = ", ".join(part for part in (recovery, f"standby: {standby}", KILL_BUDGET) if part)
            text = jobs.job(label, self.devices, **{**layout, "recovery": f"{{{options}}}", "steps": 100000})
            mirrored = standby == "auto" and "host" not in recovery
            limit = ("--within", 0.4, "--standby") if mirrored else ("--within", 1.0)
            if "host" in recovery:
                limit += ("--pinned",)
            self.add(label, f"kill -9 to the first decision of the new layout: at most {limit[1]} s plus a step of it, 19 of 20",
                     self.python("kill_ranks.py", self.path_of(label), self.output / label, kills, *limit), seconds, job=text,
                     part=part if standby == "auto" else none)


def two(plan):
    whole, plan.seconds_each = "{ranks: 2}", 60
    plan.make_data()
    short = {"batch": 8, "micro": 2, "vision": whole}
    layouts = {
        "dp2": {"language": whole},
        "tp2-host": {"language": "{ranks: 2, tp: 2}", "recovery": "{state_home: host}"},
        "pp2-host": {"language": "{ranks: 2, pp: 2}", "recovery": "{state_home: host}"},
    }
    for (name, layout), part in zip(layouts.items(), (1, 3, 6)):
        plan.recovery(f"{name}-1p6b", {**short, **layout, "model": "1p6b"}, 20, 420 if name == "dp2" else 1000, part=part, none=3)
        if name != "dp2":  # mirrors of this model and their move take more than a device has
            plan.recovery(f"{name}-5b", {**short, **layout, "model": "5b"}, 4, 230, part=2)
    plan.restart()
    plan.stay_out("dp2", {**short, "model": "1p6b", "language": whole}, part=2)
    for microbatches in (1, 4):
        for turn, recovery in enumerate(("{ladder: [], state_copies: 1, standby: none}", "{}", "{}", "{ladder: [], state_copies: 1, standby: none}")):
            plan.layout(f"guarded-{microbatches}-{turn}", "fault tolerance costs under 1 % of a step at 4 microbatches; without, with, with, without", 75,
                        part=1, model="1p6b", language=whole, vision=whole, batch=8 * microbatches, micro=4, recovery=recovery,
                        steps=60 if microbatches == 1 else 22)
    for part, model, batch, micro, goals in ((4, "5b", 8, 4, "bf16 at least 41,000 tokens/s, FP8 57,500"),
                                             (5, "1p6b", 16, 8, "bf16 at least 111,000 tokens/s, FP8 132,500")):
        plan.speed(model, micro, f"data parallel on 2: {goals}, or 96 and 92 % of the limit", 800, copies=1, part=part)
        plan.limit(model, part=part)
        plan.layout(f"copies-{model}", "the same with a second home of all state, as shipped", 90, part=part, model=model, language=whole, vision=whole, batch=batch,
                    micro=micro, steps=20, recompute="selective" if model == "5b" else None)
    pipelines = {
        "pp2": {"language": "{ranks: 2, pp: 2}", "vision": whole},
        "vision-apart": {"language": "{ranks: 1}", "vision": "{ranks: 1}", "together": False},
    }
    for name, layout in pipelines.items():
        for schedule in ("1f1b", "zero_bubble_h1"):
            plan.layout(f"{name}-{schedule.replace('_', '-')}", "16 microbatches: at least 95 % of the bound of its sustained pass times", 115, part=5, bound=0.95,
                        model="1p6b", batch=32, micro=2, steps=40, schedule=f"{{name: {schedule}}}", **layout)


def four(plan):
    half, whole, chunks = "{ranks: 2}", "{ranks: 4}", "{name: three_phase, encoder_chunks: 4}"
    plan.seconds_each = 60
    plan.make_data()
    plan.search("5b", 16, 4)
    plan.search("1p6b", 48, 4)
    plan.speed("5b", 4, "data parallel on 4: bf16 at least 82,000 tokens/s, FP8 115,000, or 96 and 92 % of the limit", 700)
    plan.speed("1p6b", 8, "data parallel on 4: bf16 at least 222,000 tokens/s, FP8 265,000, or 96 and 92 % of the limit", 560)
    for model in ("5b", "1p6b"):
        plan.limit(model, part=1)
    plan.layout("dp4", "one of ten layouts, whose exposed communication is under 1.5 %; healthy, of dp4 with one lost", 50, part=2, model="1p6b",
                language=whole, vision=whole, batch=48, micro=4, steps=24)
    ten = {  # but for dp4
        "tp2-dp2": {"language": "{ranks: 4, tp: 2}", "vision": whole},
        "tp4": {"language": "{ranks: 4, tp: 4}", "vision": whole},
        "pp4": {"language": "{ranks: 4, pp: 4}", "vision": whole},
        "pp2-dp2": {"language": "{ranks: 4, pp: 2}", "vision": whole},
        "vision-apart": {"language": "{ranks: 3, pp: 3}", "vision": "{ranks: 1}", "together": False},
        "phases-chunks": {"language": "{ranks: 4, pp: 4}", "vision": whole, "schedule": chunks},
        "interleaved": {"language": "{ranks: 4, pp: 2}", "vision": whole, "schedule": "{name: interleaved, chunks: 2}"},
        "zero-bubble": {"language": "{ranks: 4, pp: 4}", "vision": whole, "schedule": "{name: zero_bubble_h1}"},
        "tp2-apart": {"language": "{ranks: 2, tp: 2}", "vision": half, "together": False},
    }
    for name, layout in ten.items():
        plan.layout(name, "one of ten layouts, 1.6B: predicted within 5 %, memory within 5 %", 75, part=2, model="1p6b", batch=48, micro=4,
                    steps=22, **layout)
    plan.found("1p6b", part=2)
    for schedule, goal in (("1f1b", 1.25), ("zero_bubble_h1", 1.35)):
        plan.layout(f"megatron-{schedule.replace('_', '-')}", f"vision dp1, language pp3 7/7/4, 16 microbatches: at least {goal} times Megatron-core's 41,844", 120,
                    part=2, model="5b", steps=9, language="{ranks: 3, pp: 3, layers: [7, 7, 4]}", vision="{ranks: 1}", together=False,
                    batch=64, micro=4, schedule=f"{{name: {schedule}}}")
    plan.layout("tp2-dp2-without-rank-3", "tp2 dp2 with one device lost: at least 97 % of 3/4 of healthy", 60, part=2, lost="3", model="1p6b", steps=18,
                language="{ranks: 4, tp: 2}", vision=whole, batch=48, micro=4)
    plan.layout("dp4-without-rank-3", "dp4 with one lost: at least 97 % of 3/4 of healthy", 60, part=2, lost="3", model="1p6b", steps=18,
                language=whole, vision=whole, batch=48, micro=4)
    plan.layout("tp4-without-rank-3", "tp4 losing one: 97 % of what the simulator says, beside tp4", 60, part=2, lost="3", model="1p6b", steps=18,
                language="{ranks: 4, tp: 4}", vision=whole, batch=48, micro=4)
    plan.add("copies", "copies bit-equal over 50 steps",
             [plan.work / "home" / "bin" / "test_gpu_train", "--gtest_filter=*Copies_AfterFiftySteps*/4"], 100, part=2)
    short = {"model": "1p6b", "batch": 16, "micro": 2}
    plan.recovery("dp4", {**short, "language": whole, "vision": whole}, 20, 420, part=3, none=4)
    plan.recovery("tp2-dp2", {**short, "language": "{ranks: 4, tp: 2}", "vision": whole}, 20, 420, part=3, none=4)
    plan.recovery("tp2-pp2-host", {**short, "language": "{ranks: 4, tp: 2, pp: 2}", "vision": whole, "recovery": "{state_home: host}"}, 20, 560, part=3, none=4)
    plan.restart(part=4)
    plan.stay_out("dp4", {**short, "language": whole, "vision": whole}, part=4)
    plan.predict_layouts(part=2)


def eight(plan):
    whole = "{ranks: 8}"
    plan.make_data()
    plan.search("5b", 32, 4)
    plan.speed("5b", 4, "data parallel on 8: bf16 at least 1.25 times FSDP2, FP8 at least 1.35 times FSDP2 with float8", 600, float8=True)
    for schedule in ("1f1b", "zero_bubble_h1"):
        plan.layout(f"megatron-{schedule.replace('_', '-')}", "vision dp2, language pp3 dp2: at least 1.25 times Megatron-core's 74,435", 85, model="5b", steps=9,
                    language="{ranks: 6, pp: 3, layers: [7, 7, 4]}", vision="{ranks: 2}", together=False, batch=128, micro=4,
                    schedule=f"{{name: {schedule}}}")
    plan.stage("widths8", "tp4 dp2 and tp8 with devices lost: at least 97 % of the share that is left", 290)
    short = {"model": "1p6b", "batch": 32, "micro": 2}
    plan.recovery("dp8", {**short, "language": whole, "vision": whole}, 6, 85, part=1)
    plan.recovery("tp2-dp4", {**short, "language": "{ranks: 8, tp: 2}", "vision": whole}, 6, 85, part=1)
    plan.recovery("tp2-pp2-host", {**short, "language": "{ranks: 8, tp: 2, pp: 2}", "vision": whole, "recovery": "{state_home: host}"}, 6, 85, part=1)
    plan.restart()


MACHINES = {2: two, 4: four, 8: eight}


def said(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"


def device_memory():
    """Of the device that has least, as the driver says."""
    text = said(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"])
    try:
        return f"{min(int(line) for line in text.splitlines())}Mi"
    except ValueError:
        sys.exit(f"memory of the devices is not known: {text}")


def header():
    fields = "index,name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,temperature.gpu"
    versions = "import torch; print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())))"
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "gpus": said(["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]),
        "topology": said(["nvidia-smi", "topo", "-m"]),
        "torch, CUDA, NCCL": said([sys.executable, "-c", versions]),
        "phalanx": said(["phalanx", "--version"]),
    }


def write_jobs(plan, measurement):
    """One file, or one for each `# NAME` line."""
    if not measurement.job:
        return
    plan.data.mkdir(parents=True, exist_ok=True)
    texts = {measurement.name: measurement.job}
    if measurement.job.startswith("# "):
        texts = dict(part.split("\n", 1) for part in measurement.job.removeprefix("# ").split("\n# "))
    for name, text in texts.items():
        plan.path_of(name).write_text(text)


def ask_ranks_where_they_stand(pid):
    ranks = kill_ranks.ranks_below(pid)
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(rank, signal.SIGQUIT)
    time.sleep(3 if ranks else 0)


def lives(group):
    """Whether any process of it has not ended; who waits for those that have, and when, is not known."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        state, _, its_group = (kill_ranks.text_of(stat).rpartition(")")[2].split() + ["Z", "", ""])[:3]
        if its_group == str(group) and state not in "ZX":
            return True
    return False


def end(process):
    """With all of its group, which may end after it: only then are devices free for the next."""
    for how, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        until = time.monotonic() + patience
        while lives(process.pid) and time.monotonic() < until:
            time.sleep(0.1)
    return process.wait()


def keep_logs(plan, name):
    """Those of the ranks of the last run of this name, as OUTPUT/NAME-rank-R.log."""
    folders = sorted((plan.work / "runs").glob(f"{name}-[0-9]*/logs"), key=lambda folder: folder.stat().st_mtime)
    for log in folders[-1].glob("rank-*.log") if folders else ():
        shutil.copy(log, plan.output / f"{name}-{log.name}")


def run(plan, measurement):
    write_jobs(plan, measurement)
    log = plan.output / f"{measurement.name}.log"
    begin = time.monotonic()
    with open(log, "w") as file:
        process = subprocess.Popen(measurement.command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, **measurement.environment})
        try:
            code = process.wait(timeout=measurement.seconds)
        except subprocess.TimeoutExpired:
            ask_ranks_where_they_stand(process.pid)
            code = end(process)
    keep_logs(plan, measurement.name)
    lines = log.read_text(errors="replace").splitlines()
    return {"point": measurement.point, "command": shlex.join(measurement.command), "exit_code": code,
            "seconds": round(time.monotonic() - begin, 1), "cut": time.monotonic() - begin >= measurement.seconds,
            "last_lines": lines[-LINES_MAX:]}


def page(devices, heads, results, predicted=()):
    """`predicted`: lines of a table."""
    lines = [f"# Figures on {devices} GPUs", ""]
    for name, text in heads.items():
        lines += [f"{name}:", "", "```", text, "```", ""]
    if predicted:
        lines += ["## Predicted and measured", "", *predicted, ""]
    for name, result in results.items():
        state = "cut at its budget" if result["cut"] else f"exit code {result['exit_code']}"
        lines += [f"## {name}", "", f"{result['point']}. `{result['command']}`; {state} after {result['seconds']} s.", "",
                  "```", *result["last_lines"], "```", ""]
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("devices", type=int, choices=sorted(MACHINES))
    parser.add_argument("pack", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--part", type=int, choices=(1, 2, 3, 4, 5, 6), default=1)
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(arguments)


def chosen(options):
    memory = H200_MEMORY if options.dry_run else device_memory()
    plan = Plan(options.devices, options.pack.absolute(), options.work.absolute(), options.output.absolute(), memory)
    MACHINES[options.devices](plan)
    names = [measurement.name for measurement in plan.list]
    for name in options.only or []:
        if name not in names:
            sys.exit(f"--only: {name}: must be one of {', '.join(names)}")
    if options.only:  # everything else needs the samples
        plan.list = [m for m in plan.list if m.name in options.only or m.name == "data"]
    else:
        plan.list = [m for m in plan.list if m.part == options.part or m.name == "data"]
    return plan


def print_plan(plan, limit):
    for measurement in plan.list:
        print(f"# {measurement.name}, at most {measurement.seconds} s: {measurement.point}\n{shlex.join(measurement.command)}")
    total = sum(measurement.seconds for measurement in plan.list)
    print(f"# {len(plan.list)} measurements, at most {total} s of {limit:.0f}")
    return 0 if total <= limit else 1


def main():
    options = parse(sys.argv[1:])
    plan = chosen(options)
    if options.dry_run:
        return print_plan(plan, options.seconds)
    plan.output.mkdir(parents=True, exist_ok=True)
    path = plan.output / "results.json"
    before = json.loads(path.read_text()) if path.exists() else {"results": {}}
    heads, results = header(), before["results"]
    end = time.monotonic() + options.seconds
    for measurement in plan.list:
        missing = [name for name in measurement.needs if name not in os.environ]
        if missing:
            print(f"{measurement.name}: left out: {', '.join(missing)} is not set", flush=True)
        elif results.get(measurement.name, {}).get("exit_code") == 0 and measurement.name != "data":
            print(f"{measurement.name}: is there already", flush=True)
        elif end - time.monotonic() < measurement.seconds:
            print(f"{measurement.name}: left out: the time is up", flush=True)
        else:
            results[measurement.name] = result = run(plan, measurement)
            print(f"{measurement.name}: exit code {result['exit_code']} after {result['seconds']} s", *result["last_lines"][-4:], sep="\n  ", flush=True)
            path.write_text(json.dumps({"machine": heads, "results": results}, indent=1) + "\n")
            predicted = predicted_layouts.write_table(plan.output, results)
            (plan.output / "page.md").write_text(page(options.devices, heads, results, predicted))
            if measurement.name == "data" and result["exit_code"] != 0:
                sys.exit("without samples nothing else can be measured")
    missed = [m.name for m in plan.list if results.get(m.name, {}).get("exit_code") != 0]
    print(f"{len(plan.list) - len(missed)} of {len(plan.list)} measurements; not there: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
