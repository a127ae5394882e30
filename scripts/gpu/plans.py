"""What a plan of measurements is: each a command with a budget, and goals that are judged by their figures. machines.py has those of each machine,
running.py runs one of them."""
import dataclasses
import os
import pathlib
import sys

import jobs
import predicted_layouts
import verdicts

HERE = pathlib.Path(__file__).resolve().parent
MAKER = HERE.parent.parent / "examples" / "make_synthetic.py"
KILL_BUDGET = "budget: {total: 1000}"
H200_MEMORY = "139Gi"  # where a plan is made without devices
SIZES = {"1p6b": ["--hidden", "2048", "--ffn", "8192"], "5b": ["--hidden", "4096", "--ffn", "14336"]}
SAMPLES = {"1p6b": 8, "5b": 4}  # of a step on each device, in one microbatch
ROOMY = 100  # GiB: devices that have less take half of the samples of the smaller model
# Seconds of such a step on H200s, of the other program in bf16 and float8, of ours in bf16 and in FP8; of how many devices does not matter much.
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


def gib(text):
    return float(text[:-2]) / {"Gi": 1, "Mi": 1024}[text[-2:]]


class Plan:
    """Measurements of a machine with `devices` GPUs, in order, and the goals that are judged by them."""

    def __init__(self, devices, pack, work, output, device_memory=H200_MEMORY):
        self.devices, self.pack, self.work, self.output = devices, pack, work, output
        self.device_memory = device_memory  # of each, as phalanx plan takes it
        self.samples = {**SAMPLES, **({} if gib(device_memory) > ROOMY else {"1p6b": SAMPLES["1p6b"] // 2})}
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
        self.add("profile", "what the slowest board and the links between two can do, for predictions", ["phalanx-bench", "profile", "--output", path], 200, usual=165,
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

    def speed(self, model, goals, part, float8=False, once=0, kept=0, settings=({}, {})):
        """`goals`: tokens/s of ours in bf16 and in FP8, or how many times the other program's; `settings`: of the jobs in either; `once`, `kept`: the part in
        which one home of state, or a job without those settings, stands beside them."""
        name, micro = f"speed-{model}", self.samples[model]
        steps = [seconds * micro / SAMPLES[model] for seconds in STEPS[model]]
        anchor = (f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {self.devices} @anchor-{model}@ {' '.join(SIZES[model])} "
                  f"--warmup 0 --steps {{steps}} --mark {{mark}} @samples-{model}@")
        others = {f"FSDP2 {model}, labelled rows": (anchor, steps[0])}
        if float8:
            others[f"FSDP2 {model} float8, labelled rows"] = (f"{anchor} --float8 1", steps[1])
        ours = {f"ours {model} bf16": ("compute", steps[2]), f"ours {model} fp8": ("fp8", steps[3])}

        def command(stage, flag, ours):
            words = self.python("compare_speed.py", self.work / stage, self.output / stage, "--seconds", self.seconds_each,
                                "--tokens", micro * self.devices * 4096, "--labelled-share", 0.4375)
            for label, (linear, step) in ours.items():
                words += [flag, f"{label}: {self.path_of(f'{stage}-{linear}')}", "--step", f"{label}: {step}"]
            return words

        def texts(stage, bf16=(), fp8=()):
            return "".join(f"# {stage}-{linear}\n" + self.everywhere(f"{stage}-{linear}", model, micro, linear=linear, steps=40, **dict(setting))
                           for linear, setting in (("compute", bf16), ("fp8", fp8)))

        words = command(name, "--ours", ours)
        for label, (other, step) in others.items():
            words += ["--other", f"{label}: {other}", "--step", f"{label}: {step}"]
        each = self.seconds_each + START
        usual = round(2 * (len(others) * (each + 25) + len(ours) * each + 10 * sum(steps)))
        self.add(name, f"data parallel on {self.devices}, beside the other program", words, usual + 60, usual=usual, job=texts(name, *settings), needs=("ANCHOR",), part=part,
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
        one_home = {"recovery": "{state_copies: 1}"}
        variants = (("one home", once, "one home of state (`state_copies: 1`)", one_home), ("all kept", kept, "nothing computed again, in smaller microbatches", {}))
        for word, where, what, setting in variants:
            if not where:
                continue
            stage = f"{name}-{word.replace(' ', '-')}"
            single = {f"{label}, {word}": of for label, of in ours.items()}
            self.add(stage, f"the same with {what}", command(stage, "--once", single), 2 * each + 60, usual=2 * each + 10, job=texts(stage, setting, setting),
                     part=where, figures=self.output / stage / "speed.json", folder=self.output / stage)
            self.goal(f"{model} with {what}", "stands beside", stage, verdicts.beside(stage, list(single)))

    def anchors(self, model, part):
        path = self.output / f"anchors-{model}.json"
        self.add(f"anchors-{model}", "the other program's fastest setting, which what is measured behind it takes",
                 self.python("anchors.py", path, self.devices, self.samples[model], *SIZES[model]), 330, usual=270, needs=("ANCHOR",), part=part, figures=path)
        self.goal(f"FSDP2 {model} by its settings", "the fastest stands beside ours", f"anchors-{model}", verdicts.anchors(f"anchors-{model}"))

    def limit(self, model, part):
        hidden, ffn, pointwise, casts = {"1p6b": (2048, 8192, 18, 15), "5b": (4096, 14336, 36, 29)}[model]
        for fp8, label in ((0, "bf16"), (1, "fp8")):
            self.add(f"limit-{model}-{label}", "what the boards keep up",
                     self.python("limit.py", self.devices, "--seconds", 8, "--hidden", hidden, "--ffn", ffn,
                      "--rows", 7168, "--dp", self.devices, "--fp8", fp8, "--pointwise", f"@pointwise-{model}-{label}-{pointwise + casts * fp8}@"), 60, usual=30, needs=("LIMIT",), part=part)

    def kernels(self, part):
        self.add("kernel-races", "our kernels beside LibTorch's for the same jobs", ["phalanx-bench-kernels", "--races"], 120, usual=45, part=part)
        self.add("yardstick", "our kernels beside Transformer Engine's for the same jobs",
                 [HERE / "yardstick", os.environ.get("TE", "$TE"), self.work / "yardstick", self.output / "yardstick"], 300, usual=200, needs=("TE",), part=part)
        self.add("attention", "attention by cuDNN beside flash attention's, and what one whose backward pass is deterministic costs", ["phalanx-bench-attention"], 360, usual=240,
                 part=part, by_exit=True)
        for name, whose in (("kernel-races", "LibTorch's"), ("yardstick", "Transformer Engine's")):
            self.goal(f"hand-written kernels beside {whose}", "none more than 5 % slower, in one run", name, verdicts.races(name))

    def checked(self, part):
        self.add("kernels-checked", "tests of kernels, those of small sizes under compute-sanitizer as well",
                 [HERE / "kernels", self.pack, self.work, self.output / "kernels", "-"], 780, usual=600, part=part, by_exit=True)
        self.goal("kernels against fp64, repeated, and under memcheck, racecheck and synccheck", "all", "kernels-checked", verdicts.passed("kernels-checked"))

    def parts(self, model, part):
        for linear, label in (("compute", "bf16"), ("fp8", "fp8")):
            name, limit = f"parts-{model}-{label}", f"limit-{model}-{label}"
            folder = self.work / "runs" / name
            self.add(name, f"kernels of one warm step by part, {model} {label}", ["phalanx-bench", "train", self.path_of(name), folder, "--profile"], 130, usual=75,
                     job=self.everywhere(name, model, self.samples[model], linear=linear, steps=40, recovery="{state_copies: 1}"), part=part, folder=folder)
            for known in self.list:
                if known.name == limit:
                    known.after += (name,)  # which says what its pointwise passes take
            self.goal(f"a step of {model} in {label} on {self.devices} by part", "stands beside the limit", name, verdicts.parts(name, limit))

    def products(self, model, part):
        """A table of algorithms of the products of a model, and steps with it beside steps without."""
        size, usual = ("", 400) if model == "1p6b" else (f"-{model}", 456)
        self.stage(f"products{size}", f"algorithms of products of {model}, by energy and time", 420, 275, part=part, makes=self.stages / "products.json", by_exit=True)
        if model == "5b":
            self.stage("products-5b-halves", "the same of microbatches of 2 samples, which two homes of state on two GPUs make of 4", 360, 275, part=part,
                       by_exit=True)
        name = f"products-speed{size}"
        self.stage(name, f"steps of {model} with the table, in the order without, with, with, without", 640, usual, part=part, after=(f"products{size}",),
                   figures=self.stages / f"{name}.json")
        self.goal(f"{model} with a table of algorithms of products", "stands beside steps without", name, verdicts.products(name))

    def losses(self, stage, seconds, usual, what, part):
        """In bf16 and in FP8, a seed a measurement; the curves are OUTPUT/stages/STAGE.svg."""
        names = [f"{stage}-{seed}" for seed in (17, 18, 19)]
        for name in names:
            self.stage(name, f"{what}, FP8 within 1 % of bf16's loss", seconds, usual, stage=stage, part=part, environment={"SEEDS": name.rpartition("-")[2]})
        self.goal(f"loss of {what} in FP8 beside bf16, mean of the last 50", "within 1 %, three seeds", names[:1], verdicts.losses(names))

    def layout(self, name, point, seconds, usual, *, lost=None, bound=None, part=1, after=(), **layout):
        command = self.python("step_time.py", self.path_of(name), self.work / "runs")
        if lost:
            command += ["--lost", lost, "--profile", "@profile@"]
        if bound:
            command += ["--bound", bound]
        self.add(name, point, command, seconds, usual=usual, part=part, after=after, job=jobs.job(name, self.devices, **layout))

    def guarded(self, microbatches, part, most=None, samples=4):
        """All of fault tolerance, in the order without, with, with, without; microbatches of so many samples."""
        whole, none = f"{{ranks: {self.devices}}}", "{ladder: [], state_copies: 1, standby: none}"
        of = f"{microbatches}" if samples == 4 else f"{microbatches}x{samples}"
        names = [f"guarded-{of}-{turn}" for turn in range(4)]
        for name, recovery in zip(names, (none, "{}", "{}", none)):
            self.layout(name, "fault tolerance costs under 1 % of a step at 4 microbatches; without, with, with, without", 65 + 8 * (samples - 4), 42 + 8 * (samples - 4), part=part,
                        model="1p6b", language=whole, vision=whole, batch=samples * self.devices * microbatches, micro=samples, recovery=recovery,
                        steps=60 if microbatches == 1 else 26 if samples == 4 else 18)
        self.goal(f"fault tolerance where nothing fails, {microbatches} microbatch{'es' if microbatches > 1 else ''}" + (f" of {samples}" if samples != 4 else ""),
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
                 self.python("kill_ranks.py", self.path_of(label), folder, 1, "--stay-out", "--profile", "@profile@", *(("--pinned",) if host else ())), 150 if host else 110,
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
            usual, folder = 60 + each * kills, self.output / label
            self.add(label, f"kill -9 to the first decision of the new layout: at most {limit[1]} s plus a step of it, 19 of 20",
                     self.python("kill_ranks.py", self.path_of(label), folder, kills, *limit), usual + (120 if host else 40), usual=usual, job=text,
                     part=part if standby == "auto" else none, figures=folder / "summary.json", folder=folder)
            how = "copies in host memory" if host else f"{'standby' if mirrored else 'new'} communicators"
            self.goal(f"kill to the next decision of {name}, {how}", f"at most {limit[1]} s and a step of the new layout, 19 of 20", label, verdicts.recovered(label))
            self.goal(f"decided steps that {name} does again, {how}", f"at most {lose}", label, verdicts.steps_lost(label, lose))
            self.goal(f"what {verdicts.KILLS} kills and returns of {name} leave, {how}", "memory flat (1 %), 99 % of the throughput, returns take less than a step", label,
                      verdicts.left_behind(label))
