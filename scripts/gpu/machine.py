#!/usr/bin/env python3
"""Every figure of a machine with one, two, four or eight GPUs, in parts of under 25 minutes each.

    scripts/gpu/one   PACK.tar.xz WORK OUTPUT [--part 1|2|3] ...
    scripts/gpu/two   PACK.tar.xz WORK OUTPUT [--part 1|2|3|4|5|6|7] ...
    scripts/gpu/four  PACK.tar.xz WORK OUTPUT [--part 1|2|3|4|5|6] [--only NAME,...] [--seconds 1500] [--dry-run] [--verdicts]
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

The environment names programs of others: ANCHOR takes the flags of torch_fsdp_bench.py, LIMIT those of sustained_budget.py; what
needs one that is not there is left out, by name. PROFILE is a device profile, where none was measured in OUTPUT.
"""
import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import anchors  # noqa: E402
import boards  # noqa: E402
import jobs  # noqa: E402
import kill_ranks  # noqa: E402
import predicted_layouts  # noqa: E402
import verdicts  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
MAKER = HERE.parent.parent / "examples" / "make_synthetic.py"
PROFILE = HERE.parent.parent / "core" / "schedule" / "profiles" / "h200.json"
KILL_BUDGET = "budget: {total: 1000}"
LINES_MAX = 40  # of a command's output, on the page
H200_MEMORY = "139Gi"  # where a plan is made without devices
GRACE = 90  # seconds that a command which is cut has to end: phalanx run waits for its worker up to 60
SECONDS_MAX = 1500  # of a part
SIZES = {"1p6b": ["--hidden", "2048", "--ffn", "8192"], "5b": ["--hidden", "4096", "--ffn", "14336"]}
# Seconds of a step on H200s, of the other program in bf16 and float8, of ours in bf16 and in FP8; of how many devices does not matter much.
STEPS = {"1p6b": (0.65, 0.6, 0.58, 0.48), "5b": (1.0, 0.8, 0.8, 0.565)}
START = 25  # seconds of a job, until it trains and behind its last step


@dataclasses.dataclass
class Measurement:
    name: str
    point: str  # of which issue, and the goal in its words
    command: list  # @profile@, @anchor-MODEL@ and @samples-MODEL@ stand for what is known when it begins
    seconds: int  # after which it is cut
    usual: int  # seconds that it takes
    job: str = ""  # text of the job file, which the command names
    needs: tuple = ()  # variables of the environment
    part: int = 1
    environment: dict = dataclasses.field(default_factory=dict)
    after: tuple = ()  # names of those that come before it
    makes: object = None  # a file that others need: where it is not there the measurement is made again
    figures: object = None  # the file of its figures; None: the last line of JSON that it prints
    folder: object = None  # of that file and of nothing else: it is taken away before the measurement is made again
    by_exit: bool = False  # its only figure is whether it succeeds


class Plan:
    """Measurements of a machine with `devices` GPUs, in order, and the goals that are judged by them."""

    def __init__(self, devices, pack, work, output, device_memory=H200_MEMORY):
        self.devices, self.pack, self.work, self.output = devices, pack, work, output
        self.device_memory = device_memory  # of each, as phalanx plan takes it
        self.data = work / "synthetic-noise"
        self.stages = output / "stages"  # of scripts/gpu/run, which has logs of its own there
        self.seconds_each = 60  # of each timed run beside another program
        self.list, self.goals = [], []

    def add(self, name, point, command, seconds, **rest):
        self.list.append(Measurement(name, point, [str(word) for word in command], seconds, **rest))

    def goal(self, figure, wanted, needs, judge):
        self.goals.append(verdicts.Goal(figure, wanted, (needs,) if isinstance(needs, str) else tuple(needs), judge))

    def path_of(self, name):
        return self.data / f"{name}.yaml"

    def python(self, script, *arguments):
        return [sys.executable, HERE / script, *arguments]

    def make_data(self):
        self.add("data", "samples of noise and of the whole vocabulary",
                 [sys.executable, MAKER, self.data, "--samples", 64, "--noise", "--words", 128227], 60, usual=40)

    def everywhere(self, name, model, micro, **rest):
        """A job of data parallelism over all modules on all ranks, a microbatch a step."""
        ranks = f"{{ranks: {self.devices}}}"
        return jobs.job(name, self.devices, model, ranks, ranks, batch=micro * self.devices, micro=micro, **rest)

    def profile(self, part):
        path = self.output / "profile.json"
        self.add("profile", "what the first board and the links to the second can do, for predictions", ["phalanx-bench", "profile", "--output", path], 200, usual=165,
                 part=part, makes=path)

    def search(self, model, batch, micro, part):
        name, ranks = f"search-{model}", f"{{ranks: {self.devices}}}"
        written = self.path_of(f"found-{model}")
        self.add(name, "the fastest layouts as the search predicts them, before any is measured",
                 ["phalanx", "plan", self.path_of(name), "--search", "--devices", self.devices, "--device-memory", self.device_memory,
                  "--device-profile", "@profile@", "--items", jobs.ITEMS, "--write", written], 10, usual=3, part=part, makes=written,
                 job=jobs.job(name, self.devices, model, ranks, ranks, batch=batch, micro=micro, steps=26))

    def found(self, model, part):
        self.add(f"found-{model}", "the search's first choice: within 3 % of the best of ten layouts",
                 self.python("step_time.py", self.path_of(f"found-{model}"), self.work / "runs"), 75, usual=55, part=part, after=(f"search-{model}",))

    def speed(self, model, micro, goals, part, float8=False, once=0):
        """`goals`: tokens/s of ours in bf16 and in FP8, or how many times the other program's; `once`: the part in which one home of state stands beside them."""
        name = f"speed-{model}"
        anchor = (f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {self.devices} @anchor-{model}@ {' '.join(SIZES[model])} "
                  f"--warmup 0 --steps {{steps}} --mark {{mark}} @samples-{model}@")
        others = {f"FSDP2 {model}, labelled rows": (anchor, STEPS[model][0])}
        if float8:
            others[f"FSDP2 {model} float8, labelled rows"] = (f"{anchor} --float8 1", STEPS[model][1])
        ours = {f"ours {model} bf16": ("compute", STEPS[model][2]), f"ours {model} fp8": ("fp8", STEPS[model][3])}

        def command(stage, flag, ours):
            words = self.python("compare_speed.py", self.work / stage, self.output / stage, "--seconds", self.seconds_each,
                                "--tokens", micro * self.devices * 4096, "--labelled-share", 0.4375)
            for label, (linear, step) in ours.items():
                words += [flag, f"{label}: {self.path_of(f'{stage}-{linear}')}", "--step", f"{label}: {step}"]
            return words

        def texts(stage, recovery):
            return "".join(f"# {stage}-{linear}\n" + self.everywhere(f"{stage}-{linear}", model, micro, linear=linear, steps=40, recovery=recovery)
                           for linear in ("compute", "fp8"))

        words = command(name, "--ours", ours)
        for label, (other, step) in others.items():
            words += ["--other", f"{label}: {other}", "--step", f"{label}: {step}"]
        each = self.seconds_each + START
        usual = round(2 * (len(others) * (each + 25) + len(ours) * each + 10 * sum(STEPS[model])))
        self.add(name, f"data parallel on {self.devices}, beside the other program", words, usual + 60, usual=usual, job=texts(name, "{}"), needs=("ANCHOR",), part=part,
                 figures=self.output / name / "speed.json", folder=self.output / name)
        last = list(others)[-1]
        for (label, _), wanted, share, limit in zip(ours.items(), goals, (0.96, 0.92), ("bf16", "fp8")):
            if float8:
                other = last if limit == "fp8" else list(others)[0]
                self.goal(f"{label}, data parallel on {self.devices}", f"at least {wanted} times {other}", name,
                          verdicts.times_other(name, label, other, wanted, self.seconds_each))
            else:
                self.goal(f"{label}, data parallel on {self.devices}", f"at least {wanted:,} tokens/s or {share:.0%} of the limit, whichever is lower", name,
                          verdicts.speed(name, label, wanted, share, f"limit-{model}-{limit}", last, self.seconds_each))
        if self.devices > 1:
            self.goal(f"exposed communication of {model} in data parallel", "under 1.5 % of a step", name, verdicts.waiting(name, list(ours), 0.015))
        if once:
            stage = f"{name}-one-home"
            single = {f"{label}, one home": of for label, of in ours.items()}
            self.add(stage, "the same with one home of state", command(stage, "--once", single), 2 * each + 60, usual=2 * each + 10, job=texts(stage, "{state_copies: 1}"),
                     part=once, figures=self.output / stage / "speed.json", folder=self.output / stage)
            self.goal(f"{model} with one home of state (`state_copies: 1`)", "stands beside", stage, verdicts.beside(stage, list(single)))

    def anchors(self, model, micro, part):
        path = self.output / f"anchors-{model}.json"
        self.add(f"anchors-{model}", "the other program's fastest setting, which what is measured behind it takes",
                 self.python("anchors.py", path, self.devices, micro, *SIZES[model]), 330, usual=270, needs=("ANCHOR",), part=part, figures=path)
        self.goal(f"FSDP2 {model} by its settings", "the fastest stands beside ours", f"anchors-{model}", verdicts.anchors(f"anchors-{model}"))

    def limit(self, model, part):
        hidden, ffn, pointwise, casts = {"1p6b": (2048, 8192, 18, 15), "5b": (4096, 14336, 36, 29)}[model]
        for fp8 in (0, 1):
            self.add(f"limit-{model}-{'fp8' if fp8 else 'bf16'}", "what the boards keep up",
                     self.python("limit.py", self.devices, "--seconds", 8, "--hidden", hidden, "--ffn", ffn,
                      "--rows", 7168, "--dp", self.devices, "--fp8", fp8, "--pointwise", pointwise + casts * fp8), 60, usual=30, needs=("LIMIT",), part=part)

    def layout(self, name, point, seconds, usual, *, lost=None, bound=None, part=1, after=(), **layout):
        command = self.python("step_time.py", self.path_of(name), self.work / "runs")
        if lost:
            command += ["--lost", lost]
        if bound:
            command += ["--bound", bound]
        self.add(name, point, command, seconds, usual=usual, part=part, after=after, job=jobs.job(name, self.devices, **layout))

    def guarded(self, microbatches, part, most=None):
        """All of fault tolerance, in the order without, with, with, without."""
        whole, none = f"{{ranks: {self.devices}}}", "{ladder: [], state_copies: 1, standby: none}"
        names = [f"guarded-{microbatches}-{turn}" for turn in range(4)]
        for name, recovery in zip(names, (none, "{}", "{}", none)):
            self.layout(name, "fault tolerance costs under 1 % of a step at 4 microbatches; without, with, with, without", 65, 42, part=part, model="1p6b",
                        language=whole, vision=whole, batch=4 * self.devices * microbatches, micro=4, recovery=recovery, steps=60 if microbatches == 1 else 26)
        self.goal(f"fault tolerance where nothing fails, {microbatches} microbatch{'es' if microbatches > 1 else ''}",
                  "what it is" if most is None else f"under {most:.0%} of a step", names, verdicts.guarded(names, most))

    def predict_layouts(self, part):
        """All of the part that step_time.py measures whole, before the first of them; with the profile of this machine where one was measured."""
        whole = [m for m in self.list if m.part == part and m.command[1].endswith("step_time.py") and "--lost" not in m.command]
        command = self.python("predicted_layouts.py", self.output, "--profile", "@profile@", "--items", jobs.ITEMS,
                              "--device-memory", self.device_memory, *(m.command[2] for m in whole))
        first = self.list.index(whole[0])
        self.add("predictions", "what these layouts take, written down before any of them is measured", command, 60, usual=15, part=part,
                 job="".join(f"# {m.name}\n{m.job}" for m in whole if m.job), figures=self.output / predicted_layouts.FILE,
                 after=tuple(m.name for m in self.list if m.part == part and m.name.startswith("search-")))
        self.list.insert(first, self.list.pop())
        for measurement in whole:
            measurement.after += ("predictions",)

    def stage(self, name, point, seconds, usual, stage=None, **rest):
        self.add(name, point, [HERE / "run", self.pack, self.work, self.stages, stage or name], seconds, usual=usual, **rest)

    def predict_jobs(self, part):
        """Of three models and more, in data parallel on all devices."""
        self.stage("predict", "steps and memory of at least ten jobs of three models: predicted within 5 %", 540, 480, part=part, after=("profile",),
                   environment={"PROFILE": "@profile@", "GPUS": str(self.devices)}, figures=self.stages / "predict" / "measured.json", folder=self.stages / "predict")
        for quantity in ("step", "memory"):
            self.goal(f"{quantity} of jobs of four models on {self.devices}, predicted beforehand", "ten or more, each within 5 %", "predict",
                      verdicts.predicted_jobs("predict", quantity))

    def restart(self, part=2, kills=5, every=10):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", self.devices, "--max-restarts", 2 * kills,
                   "--monitor-interval", 0.1, HERE / "checkpoint_every.py", every, os.environ.get("ANCHOR", "$ANCHOR"), *SIZES["1p6b"], "--mbs", 2, "--skip", 1,
                   "--warmup", 0, "--steps", 100000, "--ckpt", 1, "--mark", "{mark}"]
        folder = self.output / "restart"
        self.add("restart", f"torchrun --max-restarts of the 1.6B model, with a checkpoint of the parameters alone every {every} steps on the same disk, {kills} kills",
                 self.python("restart_time.py", folder, kills, every, "--", *command), 420, usual=340, needs=("ANCHOR",), part=part,
                 figures=folder / "restarts.json", folder=folder)
        self.goal(f"torchrun --max-restarts, a checkpoint every {every} steps", "stands beside", "restart", verdicts.restarts("restart", kills))

    def stay_out(self, name, layout, part, key="of_their_share"):
        label, host = f"stay-out-{name}", "host" in layout.get("recovery", "")
        recovery = ", ".join(text for text in (layout.get("recovery", "").strip("{}"), "rejoin: manual", KILL_BUDGET) if text)
        text = jobs.job(label, self.devices, **{**layout, "recovery": f"{{{recovery}}}", "steps": 100000})
        folder = self.output / label
        self.add(label, "a rank is killed and stays out (rejoin: manual): the throughput of those that are left, beside their share of the devices",
                 self.python("kill_ranks.py", self.path_of(label), folder, 1, "--stay-out", *(("--pinned",) if host else ())), 150 if host else 110,
                 usual=110 if host else 75, job=text, part=part, figures=folder / "summary.json", folder=folder)
        self.goal(f"throughput of {name} behind the loss of a rank",
                  "at least 97 % of " + ("the devices' share" if key == "of_their_share" else "what the simulator says"), label, verdicts.stays_out(label, key))

    def recovery(self, name, layout, kills, part, none=2, each=None):
        """Without standby communicators in part `none`: state that no rank holds has none anyway. `each`: seconds of a kill, with the return behind it."""
        recovery, host = layout.get("recovery", "").strip("{}"), "host" in layout.get("recovery", "")
        each = each or (40 if host else 18)
        for standby in ("auto",) if host else ("auto", "none"):
            label = f"recovery-{name}" + ("" if standby == "auto" else "-without-standby")
            options = ", ".join(part for part in (recovery, f"standby: {standby}", KILL_BUDGET) if part)
            text = jobs.job(label, self.devices, **{**layout, "recovery": f"{{{options}}}", "steps": 100000})
            mirrored = standby == "auto" and not host
            limit = ("--within", 0.4, "--standby") if mirrored else ("--within", 1.0)
            lose = 1 if host else 0  # steps between copies in host memory (state_every)
            limit += ("--lose", lose)
            if host:
                limit += ("--pinned",)
            usual, folder = 40 + each * kills, self.output / label
            self.add(label, f"kill -9 to the first decision of the new layout: at most {limit[1]} s plus a step of it, 19 of 20",
                     self.python("kill_ranks.py", self.path_of(label), folder, kills, *limit), usual + (160 if host else 40), usual=usual, job=text,
                     part=part if standby == "auto" else none, figures=folder / "summary.json", folder=folder)
            how = "copies in host memory" if host else f"{'standby' if mirrored else 'new'} communicators"
            self.goal(f"kill to the next decision of {name}, {how}", f"at most {limit[1]} s and a step of the new layout, 19 of 20", label, verdicts.recovered(label))
            self.goal(f"decided steps that {name} does again, {how}", f"at most {lose}", label, verdicts.steps_lost(label, lose))
            self.goal(f"what {verdicts.KILLS} kills and returns of {name} leave, {how}", "memory flat (1 %), 99 % of the throughput, returns take less than a step", label,
                      verdicts.left_behind(label))


def one(plan):
    plan.make_data()
    plan.stage("shapes", "many shapes of models and samples, nowhere below 1.15 times the other program, median 1.2", 600, 570, needs=("ANCHOR",),
               figures=plan.stages / "shapes" / "shapes.json")
    plan.goal("shapes of models and samples", "nowhere below 1.15 times FSDP2 + compile, median 1.2", "shapes", verdicts.all_shapes("shapes"))
    plan.speed("1p6b", 8, (55_500, 66_250), part=1, once=2)
    plan.limit("1p6b", part=1)
    for name, steps, seconds, usual in (("steady", "2,000 steps", 330, 250), ("steady-fp8", "500 steps in FP8", 140, 90)):
        plan.stage(name, f"{steps} of samples that differ: nothing grows", seconds, usual, part=2, figures=plan.stages / name / "steady.json", folder=plan.stages / name)
        plan.goal(f"{steps} of samples that differ", "memory, allocations, plans and host time stay as they are", name, verdicts.steady(name))
    plan.profile(part=2)
    plan.predict_jobs(part=2)
    seeds = [f"fp8-1p6b-{seed}" for seed in (17, 18, 19)]
    for name in seeds:
        plan.stage(name, "300 steps of the 1.6B model on pictures and names, FP8 within 1 % of bf16's loss", 470, 420, stage="fp8-1p6b", part=3,
                   environment={"SEEDS": name.rpartition("-")[2]})
    plan.goal("loss of the 1.6B model in FP8 beside bf16, mean of the last 50 of 300 steps", "within 1 %, three seeds", seeds[:1], verdicts.losses(seeds))


def two(plan):
    whole = "{ranks: 2}"
    plan.make_data()
    short = {"batch": 8, "micro": 2, "vision": whole}
    layouts = {
        "dp2": {"language": whole},
        "tp2-host": {"language": "{ranks: 2, tp: 2}", "recovery": "{state_home: host}"},
        "pp2-host": {"language": "{ranks: 2, pp: 2}", "recovery": "{state_home: host}"},
    }
    for (name, layout), part in zip(layouts.items(), (1, 3, 6)):
        plan.recovery(f"{name}-1p6b", {**short, **layout, "model": "1p6b"}, 20, part=part, none=3)
        plan.stay_out(name, {**short, **layout, "model": "1p6b"}, part={"dp2": 1, "tp2-host": 2, "pp2-host": 6}[name],
                      key="of_the_simulated" if "pp" in name else "of_their_share")
        if name != "dp2":  # mirrors of this model and their move take more than a device has
            plan.recovery(f"{name}-5b", {**short, **layout, "model": "5b"}, 4, part=2)
    plan.restart()
    plan.guarded(1, part=1)
    plan.guarded(4, part=1, most=0.01)
    plan.speed("5b", 4, (41_000, 57_500), part=4, once=4)
    plan.limit("5b", part=4)
    plan.anchors("5b", 4, part=4)
    plan.speed("1p6b", 8, (111_000, 132_500), part=5, once=6)
    plan.limit("1p6b", part=5)
    plan.anchors("1p6b", 8, part=7)
    pipelines = {
        "pp2": {"language": "{ranks: 2, pp: 2}", "vision": whole},
        "vision-apart": {"language": "{ranks: 1}", "vision": "{ranks: 1}", "together": False},
    }
    for name, layout in pipelines.items():
        for schedule in ("1f1b", "zero_bubble_h1"):
            label = f"{name}-{schedule.replace('_', '-')}"
            plan.layout(label, "16 microbatches: at least 95 % of the bound of its sustained pass times", 140, 105, part=5, bound=0.95,
                        model="1p6b", batch=32, micro=2, steps=40, schedule=f"{{name: {schedule}}}", **layout)
            plan.goal(f"pipeline of {name}, {schedule}, 16 microbatches", "at least 95 % of its bound", label, verdicts.bound(label, 0.95))
    plan.profile(part=7)
    plan.predict_jobs(part=7)


def four(plan):
    half, whole, chunks = "{ranks: 2}", "{ranks: 4}", "{name: three_phase, encoder_chunks: 4}"
    plan.make_data()
    plan.speed("1p6b", 8, (222_000, 265_000), part=1, once=1)
    plan.limit("1p6b", part=1)
    plan.guarded(4, part=1, most=0.01)
    plan.profile(part=2)
    plan.search("1p6b", 48, 4, part=2)
    plan.layout("dp4", "one of ten layouts; healthy, of dp4 with one lost", 60, 48, part=2, model="1p6b", language=whole, vision=whole, batch=48, micro=4, steps=24)
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
        plan.layout(name, "one of ten layouts, 1.6B: predicted within 5 %, memory within 5 %", 75, 52, part=2, model="1p6b", batch=48, micro=4,
                    steps=22, **layout)
    plan.found("1p6b", part=2)
    layouts = ["dp4", *ten]
    for name, layout, wanted, judge in (
            ("tp2-dp2", {"language": "{ranks: 4, tp: 2}"}, "at least 97 % of 3/4 of healthy", verdicts.kept("tp2-dp2-without-rank-3", "tp2-dp2", 0.75)),
            ("dp4", {"language": whole}, "at least 97 % of 3/4 of healthy", verdicts.kept("dp4-without-rank-3", "dp4", 0.75)),
            ("tp4", {"language": "{ranks: 4, tp: 4}"}, "at least 97 % of what the simulator says", verdicts.simulated("tp4-without-rank-3", "tp4"))):
        label = f"{name}-without-rank-3"
        plan.layout(label, f"{name} with one device lost: {wanted}", 60, 48, part=2, lost="3", after=(name,), model="1p6b", steps=18, vision=whole, batch=48, micro=4, **layout)
        plan.goal(f"{name} with one device lost", wanted, (label, name), judge)
    plan.add("copies", "copies bit-equal over 50 steps",
             [plan.work / "home" / "bin" / "test_gpu_train", "--gtest_filter=*Copies_AfterFiftySteps*/3:*Copies_AfterFiftySteps*/4"], 120, usual=80, part=2, by_exit=True)
    plan.goal("copies bit-equal over 50 steps: dp4, tied head with pp2 dp2 and tp2 pp2, 8 query and 2 key/value heads with tp2 dp2 and tp3",
              "all", "copies", verdicts.passed("copies"))
    plan.add("widths", "layouts of widths two and one train as the CPU does, copies bit-equal",
             [plan.work / "home" / "bin" / "test_gpu_train", "--gtest_filter=*UnequalWidths*/3"], 120, usual=80, part=4, by_exit=True)
    plan.goal("layouts of widths two and one train as the CPU does, copies bit-equal", "all", "widths", verdicts.passed("widths"))
    plan.predict_layouts(part=2)
    plan.goal("the search's first choice", "within 3 % of the best of ten layouts", "found-1p6b", verdicts.first_choice("found-1p6b", layouts))
    for quantity in ("step", "memory"):
        plan.goal(f"{quantity} of ten layouts, predicted beforehand", "each within 5 %", "predictions", verdicts.predicted("predictions", [*layouts, "found-1p6b"], quantity))
    short = {"model": "1p6b", "batch": 16, "micro": 2}
    plan.recovery("dp4", {**short, "language": whole, "vision": whole}, 20, part=6, none=3)
    plan.recovery("tp2-dp2", {**short, "language": "{ranks: 4, tp: 2}", "vision": whole}, 20, part=3, none=3)
    plan.recovery("tp2-pp2-host", {**short, "language": "{ranks: 4, tp: 2, pp: 2}", "vision": whole, "recovery": "{state_home: host}"}, 20, part=4, each=32)
    plan.restart(part=4)
    # 12 microbatches: three for each of four replicas, four for each of three.
    plan.stay_out("dp4", {**short, "batch": 24, "language": whole, "vision": whole}, part=1)
    plan.speed("5b", 4, (82_000, 115_000), part=5, once=5)
    plan.limit("5b", part=5)
    plan.search("5b", 16, 4, part=5)
    for schedule, factor in (("1f1b", 1.25), ("zero_bubble_h1", 1.35)):
        label = f"megatron-{schedule.replace('_', '-')}"
        plan.layout(label, f"vision dp1, language pp3 7/7/4, 16 microbatches: at least {factor} times Megatron-core's 41,844", 120, 85,
                    part=5, model="5b", steps=9, language="{ranks: 3, pp: 3, layers: [7, 7, 4]}", vision="{ranks: 1}", together=False,
                    batch=64, micro=4, schedule=f"{{name: {schedule}}}")
        plan.goal(f"Megatron-core's layout (vision dp1, language pp3 7/7/4), {schedule}", f"at least {factor} times 41,844 tokens/s", label,
                  verdicts.throughput(label, 41_844, factor))
    plan.anchors("5b", 4, part=6)
    plan.anchors("1p6b", 8, part=6)


def eight(plan):
    whole = "{ranks: 8}"
    plan.make_data()
    plan.search("5b", 32, 4, part=1)
    plan.speed("5b", 4, (1.25, 1.35), part=1, float8=True)
    for schedule in ("1f1b", "zero_bubble_h1"):
        label = f"megatron-{schedule.replace('_', '-')}"
        plan.layout(label, "vision dp2, language pp3 dp2: at least 1.25 times Megatron-core's 74,435", 100, 85, model="5b", steps=9,
                    language="{ranks: 6, pp: 3, layers: [7, 7, 4]}", vision="{ranks: 2}", together=False, batch=128, micro=4,
                    schedule=f"{{name: {schedule}}}")
        plan.goal(f"Megatron-core's layout (vision dp2, language pp3 dp2), {schedule}", "at least 1.25 times 74,435 tokens/s", label,
                  verdicts.throughput(label, 74_435, 1.25))
    plan.stage("widths8", "tp4 dp2 and tp8 with devices lost: at least 97 % of the share that is left", 290, 260, part=3)
    short = {"model": "1p6b", "batch": 32, "micro": 2}
    plan.recovery("dp8", {**short, "language": whole, "vision": whole}, 6, part=2, none=2)
    plan.recovery("tp4-dp2", {**short, "language": "{ranks: 8, tp: 4}", "vision": whole}, 6, part=2, none=2)
    plan.recovery("tp2-pp2-host", {**short, "language": "{ranks: 8, tp: 2, pp: 2}", "vision": whole, "recovery": "{state_home: host}"}, 6, part=2)
    plan.restart(part=3)


MACHINES = {1: one, 2: two, 4: four, 8: eight}


class Stopped(Exception):
    """SIGTERM has come."""


def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Stopped


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


def write(path, text):
    """Whole or not at all, for the machine may go at any moment."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    draft.replace(path)


def profile_of(plan):
    """The one of this machine, where it was measured."""
    own = plan.output / "profile.json"
    return str(own if own.exists() else os.environ.get("PROFILE", PROFILE))


def anchor_of(plan, model):
    """The other program's fastest setting with the samples of our steps, where it was looked for; (program, flags) as texts. Else a
    micro batch of a step's samples, and the program as it is."""
    try:
        setting = json.loads((plan.output / f"anchors-{model}.json").read_text())["beside"]
    except (OSError, ValueError, KeyError):
        setting = None
    setting = setting or {"micro": {"1p6b": 8, "5b": 4}[model], "parts": 1, "reshard": 1, "skip": 1}
    return shlex.join(anchors.program(setting["reshard"])), shlex.join(anchors.flags(setting))


def filled(plan, text):
    """With what is known as a measurement begins."""
    text = text.replace("@profile@", profile_of(plan))
    return re.sub("@(anchor|samples)-([^@]+)@", lambda at: anchor_of(plan, at[2])[at[1] == "samples"], text)


def command_of(plan, measurement):
    return [filled(plan, word) for word in measurement.command]


def environment_of(plan, measurement):
    return {**os.environ, **{name: filled(plan, value) for name, value in measurement.environment.items()}}


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


def figures_of(measurement, lines):
    """Those in its file, or of the last line of JSON that it has printed; None: there are none."""
    if measurement.figures is not None:
        try:
            return json.loads(measurement.figures.read_text())
        except (OSError, ValueError):
            return None
    for line in reversed(lines):
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        if isinstance(figures, dict):
            return figures
    return None


def is_whole(code, figures):
    """Whether all was measured; it may have missed a goal, which is another thing."""
    return code == 0 or isinstance(figures, dict) and (figures.get("complete") is True or "of_bound" in figures or "faults" in figures)


def run(plan, measurement, machine=""):
    """Its result, and whether it was stopped by a signal."""
    write_jobs(plan, measurement)
    if measurement.folder is not None:
        shutil.rmtree(measurement.folder, ignore_errors=True)
    command, log = command_of(plan, measurement), plan.output / f"{measurement.name}.log"
    began, begin, stopped, cut = time.time(), time.monotonic(), False, False
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment_of(plan, measurement))
        try:
            code = process.wait(timeout=measurement.seconds)
        except subprocess.TimeoutExpired:
            cut = True
            try:
                ask_ranks_where_they_stand(process.pid)
                code = end(process)
            except Stopped:
                stopped, code = True, end(process)
        except Stopped:
            stopped, code = True, end(process)
    keep_logs(plan, measurement.name)
    lines = log.read_text(errors="replace").splitlines()
    figures = {"passed": code == 0} if measurement.by_exit else figures_of(measurement, lines)
    if measurement.by_exit and (cut or stopped):
        figures = None
    return {"point": measurement.point, "command": shlex.join(command), "exit_code": code, "seconds": round(time.monotonic() - begin, 1), "began": round(began, 3),
            "machine": machine, "cut": cut or stopped, "whole": is_whole(code, figures) and not (cut or stopped), "figures": figures,
            "last_lines": lines[-LINES_MAX:]}, stopped


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
    parser.add_argument("devices", type=int, choices=sorted(MACHINES))
    parser.add_argument("pack", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX, help="of all measurements together")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="these, in this order")
    parser.add_argument("--part", type=int, choices=range(1, 8), default=1)
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
    memory = H200_MEMORY if options.dry_run or options.verdicts else device_memory()
    plan = Plan(options.devices, options.pack.absolute(), options.work.absolute(), options.output.absolute(), memory)
    MACHINES[options.devices](plan)
    names = [measurement.name for measurement in plan.list]
    for name in options.only or []:
        if name not in names:
            sys.exit(f"--only: {name}: must be one of {', '.join(names)}")
    # Everything else needs the samples.
    plan.list = with_those_before(["data", *(options.only or [m.name for m in plan.list if m.part == options.part])], plan.list)
    return plan


def print_plan(plan, limit):
    for measurement in plan.list:
        print(f"# {measurement.name}, some {measurement.usual} s, at most {measurement.seconds} s: {measurement.point}\n{shlex.join(command_of(plan, measurement))}")
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
            results.of[measurement.name], stopped = run(plan, measurement, "".join(machine))
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
    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(Stopped):
        measure(plan, results, options.seconds)
    print("\n".join(verdicts.table([one for one in results.judged() if one["state"] != verdicts.NOT_MEASURED])))
    missed = [m.name for m in plan.list if not results.of.get(m.name, {}).get("whole")]
    print(f"{len(plan.list) - len(missed)} of {len(plan.list)} measurements; not there: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
