#!/usr/bin/env python3
"""What runs on borrowed machines is tried here first, as far as it goes without their GPUs: gpu_scripts.py SOURCE PHALANX

Every part of scripts/gpu/one, two, four and eight fits into its time, by its own --dry-run; the program takes every job that they
and scripts/gpu/shapes.py make; what layouts of four GPUs take is predicted, and stands beside what is measured; goals are reached, missed or not measured, as figures say;
scripts/gpu/compare_speed.py runs programs in the order A B B A, and without one that fails; scripts/gpu/steady.py tells a run that grows from one that does not;
scripts/gpu/draw_losses.py draws what runs have left; scripts/compare_builds.py tells a build that is slower from one that is not;
scripts/gpu/kill_figures.py tells the phases of losses, and kills that were good from others; scripts/gpu/restart_time.py measures a program that goes on from its checkpoints;
what a command that is cut has started has ended before the next, and a signal ends a measurement and keeps what there is.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree

sys.dont_write_bytecode = True
SOURCE, PHALANX = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(SOURCE / "scripts" / "gpu"))
import anchor_variant  # noqa: E402
import anchors  # noqa: E402
import boards  # noqa: E402
import checkpoint_every  # noqa: E402
import compare_predictions  # noqa: E402
import draw_losses  # noqa: E402
import kill_figures  # noqa: E402
import kill_ranks  # noqa: E402
import limit  # noqa: E402
import machine  # noqa: E402
import machines  # noqa: E402
import plans  # noqa: E402
import predicted_layouts  # noqa: E402
import restart_time  # noqa: E402
import running  # noqa: E402
import shapes  # noqa: E402
import steady  # noqa: E402
import verdicts  # noqa: E402

faults = []


def check(holds, what):
    if not holds:
        faults.append(what)


def dry_runs(folder):
    for name, parts in (("one", 8), ("two", 10), ("four", 7), ("eight", 3)):
        for part in range(1, parts + 1):
            command = [SOURCE / "scripts" / "gpu" / name, "pack.tar.xz", folder / "work", folder / "output", "--part", str(part), "--dry-run"]
            done = subprocess.run(command, capture_output=True, text=True)
            check(done.returncode == 0 and " measurements, at most " in done.stdout,
                  f"{name} --part {part} --dry-run: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr}")
        done = subprocess.run([*command[:4], "--verdicts"], capture_output=True, text=True)
        check(done.returncode == 0 and " 0 reached, 0 missed, " in done.stdout, f"{name} --verdicts: {done.stdout}{done.stderr}")
    check(not any(folder.iterdir()), "a dry run leaves files")


def valid(file, text):
    file.write_text(text)
    done = subprocess.run([PHALANX, "validate", file], capture_output=True, text=True)
    check(done.returncode == 0, f"{file.name}: {done.stdout}{done.stderr}")


def least_steps():
    """Of a job that phalanx-bench train runs."""
    text = (SOURCE / "tests" / "bench" / "train" / "main.cc").read_text()
    return sum(int(re.search(rf"constexpr size_t {name} = (\d+);", text)[1]) for name in ("kWarmupSteps", "kStepsMin"))


def jobs(folder):
    least = least_steps()
    for devices, measurements in machines.MACHINES.items():
        plan = plans.Plan(devices, folder / "pack", folder / str(devices), folder / "output")
        measurements(plan)
        names = [measurement.name for measurement in plan.list]
        check(len(set(names)) == len(names), f"{devices} GPUs: a name twice in {names}")
        needed = [name for goal in plan.goals for name in goal.needs] + [name for measurement in plan.list for name in measurement.after]
        check(set(needed) <= set(names), f"{devices} GPUs: nobody measures {set(needed) - set(names)}")
        check(all(measurement.usual < measurement.seconds for measurement in plan.list), f"{devices} GPUs: a budget that is too small")
        written = set()  # by a command
        for measurement in plan.list:
            running.write_jobs(plan, measurement)
            if "--write" in measurement.command:
                written.add(measurement.command[measurement.command.index("--write") + 1])
            if "--bound" in measurement.command:
                steps = int(re.search(r"(?m)^  steps: (\d+)$", measurement.job)[1])
                check(steps >= least, f"{devices} GPUs, {measurement.name}: {steps} steps, of which phalanx-bench train takes no fewer than {least}")
            for word in measurement.command:
                if word.startswith(str(plan.data)) and word.endswith(".yaml"):
                    check(word in written or pathlib.Path(word).exists(), f"{devices} GPUs, {measurement.name}: nobody writes {word}")
        for file in sorted(plan.data.glob("*.yaml")):
            valid(file, file.read_text())
    for devices in (1, 2):
        for name, shape in shapes.of_devices(devices).items():
            valid(folder / f"{name}.yaml", shapes.job_text({**shapes.BASE, **shape}, 40, "selective", devices))


def predictions(folder):
    """Of the real program, beside made-up measurements."""
    plan = plans.Plan(4, folder / "pack", folder / "work", folder / "output")
    machines.four(plan)
    names = [m.name for m in plan.list]
    order = [m for m in plan.list if m.name == "predictions"][0]
    whole = ("dp4", "tp2-dp2", "tp4", "pp4", "pp2-dp2", "vision-apart", "phases-chunks", "interleaved", "zero-bubble", "tp2-apart")
    check(all(names.index("predictions") < names.index(name) for name in whole), "a layout is measured before it is predicted")
    running.write_jobs(plan, order)
    command = running.command_of(plan, order)
    environment = {**os.environ, "PATH": f"{pathlib.Path(PHALANX).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    check(done.returncode == 0 and "found-1p6b: left out" in done.stdout, f"predictions: {done.stdout}{done.stderr}")
    predicted = json.loads((plan.output / predicted_layouts.FILE).read_text())
    check(set(whole) <= set(predicted), f"predicted are {list(predicted)}")
    check(all(predicted[name]["fits"] for name in whole), "layouts that an H200 holds are refused")
    refused_jobs(plan)
    one = predicted["dp4"]
    figures = {"step_ms": 1e3 * one["step"] / 1.02, "memory_gb": one["memory"] / 0.9 / 1e9}
    results = {"dp4": {"exit_code": 0, "last_lines": ["a warning", json.dumps(figures)]}, "tp4": {"exit_code": 3, "last_lines": []}}
    lines = predicted_layouts.write_table(plan.output, results)
    check((plan.output / "predicted.md").read_text() == "\n".join(lines) + "\n", "predicted.md is the table")
    page = machine.page(4, {}, {}, lines)
    check(all(line in page for line in lines), "the page has the table")
    rows = {line.split(" | ")[0].strip("| "): line for line in lines if line.startswith("| ")}
    check(f"| {1e3 * one['step']:,.1f} ms | {figures['step_ms']:,.1f} ms | +2.0 % |" in rows["dp4"], f"time of a row: {rows['dp4']}")
    check(f"| {one['memory'] / 1e9:,.1f} GB | {figures['memory_gb']:,.1f} GB | -10.0 % |" in rows["dp4"], f"memory of a row: {rows['dp4']}")
    check("failed, exit code 3" in rows["tp4"] and "not measured" in rows["pp4"], f"{rows['tp4']} {rows['pp4']}")
    check(lines[-2:] == ["step: 1 of 1 within 5 %, mean error 2.0 %, largest 2.0 %.",
                         "memory: 0 of 1 within 5 %, mean error 10.0 %, largest 10.0 %."], f"below the table: {lines[-2:]}")
    check(predicted_layouts.write_table(folder / "nothing", results) == [], "a table without predictions")
    path = plan.output / predicted_layouts.FILE
    path.write_text(json.dumps({**predicted, "dp4": {**one, "step": 1.5}}))
    subprocess.run(command, capture_output=True, env=environment)
    check(json.loads(path.read_text())["dp4"]["step"] == 1.5, "what is predicted is predicted again")


def refused_jobs(plan):
    """What does not fit is predicted as it is written, and says so; no other failure is passed over."""
    job, profile = str(plan.path_of("dp4")), str(running.PROFILE)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{pathlib.Path(PHALANX).parent}{os.pathsep}{path}"
    try:
        small = compare_predictions.predict("dp4", "4", job, profile, "1Gi")
        check(not small["fits"] and "as it is written" in compare_predictions.line(small, None), f"a job that does not fit: {small}")
        check("as it is written" in predicted_layouts.row("dp4", small, None), "the row of a job that does not fit")
        for memory in ("many", "0"):
            try:
                compare_predictions.predict("dp4", "4", job, profile, memory)
                check(False, f"device memory of `{memory}` is passed over")
            except subprocess.CalledProcessError:
                pass
    finally:
        os.environ["PATH"] = path


def samples(growth, device_growth=0, slower=1.0):
    """Of a run of 2,000 steps of a rank: resident memory that grows by so many bytes a step, and so on."""
    return [(step, (1 << 30) + device_growth * step,
             {7: ((1 << 30) + growth * step, step * 0.01 + max(0, step - 1100) * 0.01 * (slower - 1))})
            for step in range(0, 2000, 20)]


def judged(seen, host=1.0, prepared_at=0, **allocator):
    rank = {"rank": 0, "steps": 1900, "step_seconds": 10.0, "host_seconds": host,
            "allocator": {"allocations": 3, "frees": 0, "retries": 0, "last_step": 1099, **allocator},
            "prepared": {"attention_trials": 4, "attention_plans": 8, "fp8_products": 0, "last_step": prepared_at}}
    return steady.judge(seen, 2000, 200, [rank])[1]


def steadiness():
    check(judged(samples(0)) == [], f"a steady run: {judged(samples(0))}")
    check("resident memory grows" in str(judged(samples(1 << 16))), "resident memory that grows")
    check("device memory grows" in str(judged(samples(0, 1))), "device memory that grows")
    check("processor seconds" in str(judged(samples(0, slower=1.5))), "steps that become slower")
    check("retries" in str(judged(samples(0), retries=1)), "an allocation that is retried")
    check("takes memory in step 1100" in str(judged(samples(0), last_step=1100)), "memory that is taken in the second half")
    check(judged(samples(0), prepared_at=1099) == [], "plans that are made in the first half")
    check("plans are made in step 1100 (4 attention trials" in str(judged(samples(0), prepared_at=1100)), "plans that are made in the second half")
    check("the host works" in str(judged(samples(0), host=4.0)), "a host that works for most of a step")
    check("too few" in str(judged(samples(0)[:12])), "a run that is too short")


def phases():
    figures = [{"phases_ms": {"planned": [0, 3], "communicators_ready": [begin, end], "safe_again": [90, None]}} for begin, end in ((10, 30), (20, 70), (15, 40))]
    lines = kill_figures.phase_lines(figures, "phases_ms", "phases:")
    check(lines == ["phases:", "  planned: ended after 3 ms (most 3), took 3 ms (most 3)",
                    "  communicators_ready: ended after 40 ms (most 70), took 25 ms (most 50)"], f"phases of losses: {lines}")


def kill(number, **other):
    return {"ranks": 4, "seconds": 0.6, "step_seconds": 0.45, "healthy_step_seconds": 0.32, "memory_mib": [50000 + 100 * (number % 3), 51000], "resident_mib": 9000, "descriptors": 400 + 4 * number, "processes": 7, "steps_lost": 0,
            "steps_redone": 1, "communicators": "standby", "return_seconds": 0.4, "return_pause_in_steps": 0.5, **other}


def kills_judged(figures, kills=20, **other):
    options = argparse.Namespace(**{"kills": kills, "within": 0.4, "lose": 0, "stay_out": False, **other})
    return kill_figures.judge(figures, options), kill_figures.summary(figures, 0.320, 0.322, options)


def kills():
    good = [kill(number) for number in range(20)]
    late = kill(3, seconds=0.9)
    judged, of = kills_judged(good)
    check(judged and of["complete"] and of["within"] == 20 and of["steps_lost_max"] == 0 and abs(of["memory_growth"]) < 0.01, f"twenty good kills: {of}")
    grown = of["growth_of_processes"]
    check(grown["resident_mib"] == 0 and grown["processes"] == 0 and 0.05 < grown["descriptors"] < 0.15, f"what processes have: {grown}")
    check(kills_judged([late, *good[1:]])[0] and not kills_judged([late, late, *good[2:]])[0], "of twenty kills one may be late")
    check(not kills_judged([late, *good[1:5]], kills=5)[0], "of five kills none may be late")
    judged, of = kills_judged([*good[:13], {"ranks": 4, "seconds": 0.6}])
    check(not judged and of["kills"] == 13 and not of["complete"], f"kills that were cut: {of}")
    check(not kills_judged([*good[:19], kill(19, steps_lost=1)])[0] and kills_judged([*good[:19], kill(19, steps_lost=1)], lose=1)[0], "a decided step that is done again")
    grows = [kill(number, memory_mib=[50000 + 100 * number, 50000 + 100 * number]) for number in range(20)]
    check(not kills_judged(grows)[0], "memory that grows")
    gone = kill(0, healthy_step_seconds=0.3, step_seconds=0.41, lost=[3], step_ratio=4 / 3)
    of = kills_judged([gone], kills=1, stay_out=True, within=None, lose=None)[1]
    check(abs(of["of_their_share"] - 0.9756) < 1e-4 and abs(of["of_the_simulated"] - 0.9756) < 1e-4, f"a rank that stays out: {of}")
    return kills_judged(good)[1]


def speed_run(label, tokens_per_s, **other):
    return {"label": label, "tokens_per_s": tokens_per_s, "seconds": 61.0, "wait": 0.004, "labelled_tokens_per_s": tokens_per_s // 2, **other}


def states(plan, results):
    return {one["figure"]: one["state"] for one in (verdicts.verdict(goal, results) for goal in plan.goals)}


def goals(folder, recovered):
    plan = plans.Plan(4, folder / "pack", folder / "work", folder / "output")
    machines.four(plan)
    check(set(states(plan, {}).values()) == {verdicts.NOT_MEASURED}, "a goal is reached before anything is measured")
    runs = [speed_run(label, rate) for label, rate in (("ours 1p6b bf16", 220_000), ("ours 1p6b fp8", 270_000), ("FSDP2 1p6b, labelled rows", 200_000))] * 2
    rates = {"dp4": 226_000, "tp2-dp2": 190_000, "dp4-without-rank-3": 171_000, "found-1p6b": 221_000}
    figures = {"speed-1p6b": runs, "limit-1p6b-bf16": {"tokens_per_s": 228_000}, "recovery-dp4": recovered, "recovery-tp2-dp2": {**recovered, "kills": 13, "complete": False},
               "predictions": {"dp4": {"step": 0.9, "memory": 70e9}}, "copies": {"passed": True},
               "tp4-without-rank-3": {"tokens_per_s": 110_000, "step_ratio": 1.3}, "tp4": {"tokens_per_s": 150_000},
               **{name: {"tokens_per_s": rate, "step_ms": 880.0, "memory_gb": 71.0} for name, rate in rates.items()},
               **{f"guarded-4-{turn}": {"step_ms": step} for turn, step in enumerate((1000, 1012, 1010, 1001))}}
    results = {name: {"figures": of, "machine": "a"} for name, of in figures.items()} | {"restart": {"figures": None, "exit_code": 1}}
    of = states(plan, results)
    how = "standby communicators"
    for figure, state in (("ours 1p6b bf16, data parallel on 4", verdicts.REACHED), ("ours 1p6b fp8, data parallel on 4", verdicts.REACHED),
                          ("exposed communication of 1p6b in data parallel", verdicts.REACHED), ("dp4 with one device lost", verdicts.REACHED),
                          ("tp4 with one device lost", verdicts.MISSED), ("tp2-dp2 with one device lost", verdicts.NOT_MEASURED),
                          ("fault tolerance where nothing fails, 4 microbatches", verdicts.MISSED), ("the search's first choice", verdicts.IN_PART),
                          ("step of ten layouts, predicted beforehand", verdicts.IN_PART), (f"kill to the next decision of dp4, {how}", verdicts.REACHED),
                          (f"what 20 kills and returns of dp4 leave, {how}", verdicts.REACHED), (f"kill to the next decision of tp2-dp2, {how}", verdicts.IN_PART),
                          ("torchrun --max-restarts, a checkpoint every 10 steps", verdicts.NOT_MEASURED)):
        check(of.get(figure) == state, f"{figure}: {of.get(figure)}, and not {state}")
    results["speed-1p6b"]["figures"] = [{**run, "lowered": ["batch.micro is 4 instead of 8"]} for run in runs]
    check(states(plan, results)["ours 1p6b bf16, data parallel on 4"] == verdicts.MISSED, "two microbatches a step where one is wanted")
    results["speed-1p6b"]["figures"] = [{**run, "seconds": 40.0} for run in runs]
    check(states(plan, results)["ours 1p6b bf16, data parallel on 4"] == verdicts.IN_PART, "a run that is too short is told as a whole one")
    lines = verdicts.table([verdicts.verdict(goal, results) for goal in plan.goals])
    check(len(lines) == len(plan.goals) + 4 and all(line.count("|") == 5 for line in lines[:-2]), f"a table: {lines[-3:]}")


def raced(slower):
    figures = {"yardstick": {"races": 40, "slower": slower, "slowest": [1.07 if slower else 1.03, "RoPE"], "limit": 1.05}}
    return verdicts.races("yardstick")(figures)


def kernels_and_shapes():
    check(raced([])[1] and not raced(["RoPE"])[1] and "over 1.05: RoPE" in raced(["RoPE"])[0], f"races of kernels: {raced(['RoPE'])}")
    check(not verdicts.races("none")({"none": {"races": 0, "slower": [], "slowest": [0, ""], "limit": 1.05}})[1], "no race is a race that is won")
    profile = {"seconds": 0.5, "waiting": 0.01, "parts": {"products": {"seconds": 0.4, "share": 0.39}, "ours": {"seconds": 0.1, "share": 0.1}}}
    of = {"parts": {"tokens_per_s": 900, "step_ms": {"mean": 500.0}, "profiles": [{**profile, "waiting": 0.02}, profile]}, "limit": {"tokens_per_s": 1000}}
    text = "500.0 ms: products 390.0, ours 100.0, waiting 10.0; the limit's step 450.0 ms"
    check(verdicts.parts("parts", "limit")(of) == (text, None), f"a step by part: {verdicts.parts('parts', 'limit')(of)}")
    keys = [key for key, _, _ in shapes.measurements({**shapes.BASE}, 2)]
    check(keys[:4] == ["anchor 2 x 1", "anchor 2 x 1, resharding", "anchor 1 x 2", "anchor 1 x 2, resharding"], f"settings of a shape: {keys}")
    check([key for key, _, _ in shapes.measurements({**shapes.BASE, "micro": 1}, 1)][:2] == ["anchor 1 x 1", "anchor 1 x 1, resharding"], "a sample in two microbatches")
    check(not shapes.wanted(keys[1], {}) and shapes.wanted(keys[1], {keys[0]: {"error": "out of memory"}}), "gathering again is measured where keeping fits")
    entry = {"ours": {"tokens_per_s": 130}, "anchor 2 x 1": {"tokens_per_s": 100}}
    figures = {"shapes": {name: entry for name in shapes.of_devices(2)}}
    check(verdicts.all_shapes("shapes", 2)(figures)[1], "shapes of two GPUs")


def curves(folder):
    for seed in (17, 18):
        for kind, more in (("compute", 1.0), ("fp8", 1.01)):
            run = folder / f"fp8-emoji-{seed}-{kind}"
            run.mkdir(parents=True)
            run.joinpath("metrics.jsonl").write_text("".join(json.dumps({"step": step, "loss": more * (2 + 400 / step)}) + "\n" for step in range(1, 501)))
    command = [sys.executable, SOURCE / "scripts" / "gpu" / "draw_losses.py", folder]
    done = subprocess.run([*command, "fp8-emoji"], capture_output=True, text=True)
    check(done.returncode == 0 and "+1.00 % on average" in done.stdout, f"draw_losses.py: {done.stdout}{done.stderr}")
    drawn = (folder / "fp8-emoji.svg").read_text()
    lines = xml.etree.ElementTree.fromstring(drawn).findall("{*}polyline")
    check([line.get("class") for line in lines] == ["compute", "fp8"] * 2 and all(len(line.get("points").split()) > 40 for line in lines), "a line for each run")
    check("seed 18: mean of the last 50 steps 2.8420 in bf16, 2.8704 in FP8 (+1.00 %)" in drawn, f"how far curves end apart: {drawn[-400:]}")
    check(len(draw_losses.smoothed([1.0, 2.0, 3.0])) == 3, "a short run")
    check(subprocess.run([*command, "fp8-1p6b"], capture_output=True).returncode == 1, "curves of no runs")


# As phalanx-bench train JOB OUTPUT: its step is in a file beside it.
BENCH = """
import json, pathlib, sys
step = float((pathlib.Path(__file__).parent / "step").read_text())
print(json.dumps({"step_ms": {"median": step}, "loss_last": 2.5}))
"""


def builds(folder):
    for name, step in (("old", 100), ("new", 101), ("slow", 104)):
        (folder / name).mkdir(parents=True)
        (folder / name / "step").write_text(str(step))
        (folder / name / "phalanx-bench").write_text(f"#!{sys.executable}{BENCH}")
        (folder / name / "phalanx-bench").chmod(0o755)
    job = folder / "job.yaml"
    job.write_text("  steps: 500\n")
    for name, code, told in (("new", 0, "+1.0 %"), ("slow", 1, "+4.0 %")):
        done = subprocess.run([sys.executable, SOURCE / "scripts" / "compare_builds.py", folder / "old", folder / name, job, "--rounds", "1"], capture_output=True, text=True)
        check(done.returncode == code and told in done.stdout, f"compare_builds.py: {done.returncode} {done.stdout}{done.stderr}")
    check(sorted(path.name for path in folder.iterdir()) == ["job.yaml", "new", "old", "slow"], "files that are left")


def order(folder):
    options = machine.parse(["4", "pack", str(folder / "work"), str(folder / "output"), "--only", "tp4-without-rank-3,dp4", "--dry-run"])
    names = [measurement.name for measurement in machine.chosen(options).list]
    check(names == ["data", "search-1p6b", "predictions", "tp4", "tp4-without-rank-3", "dp4"], f"--only: {names}")


def others_setting(folder):
    plan = plans.Plan(4, folder / "pack", folder / "work", folder / "output")
    plan.output.mkdir(parents=True)
    os.environ["ANCHOR"] = "bench.py"
    check(running.filled(plan, "@anchor-5b@ @samples-5b@") == "bench.py --mbs 4 --acc 1 --skip 1", "the other program as it is")
    runs = [{**setting, "tokens_per_s": 1000 + number} for number, setting in enumerate(anchors.settings(4))]
    of = anchors.summary(runs, 4)
    check(of["fastest"]["micro"] == 2 and of["beside"] == {"micro": 2, "parts": 2, "reshard": 0, "skip": 1, "tokens_per_s": 1005}, f"the fastest settings: {of}")
    small = plans.Plan(1, folder / "pack", folder / "work", folder / "small", "81559Mi")
    machines.one(small)
    of_small = [m for m in small.list if m.name == "speed-1p6b"][0]
    check("micro: 4" in of_small.job and running.filled(small, "@samples-1p6b@") == "--mbs 4 --acc 1 --skip 1" and "ours 1p6b bf16: 0.29" in of_small.command,
          f"samples of a smaller device: {of_small.command}")
    (plan.output / "anchors-5b.json").write_text(json.dumps(anchors.summary(runs[:2], 4)))
    check("--mbs 4 --acc 1" in running.filled(plan, "@samples-5b@"), "more samples a step than ours are taken")
    (plan.output / "anchors-5b.json").write_text(json.dumps(of))
    text = running.filled(plan, "@anchor-5b@ @samples-5b@")
    check("anchor_variant.py 0 bench.py --mbs 2 --acc 2" in text, f"the other program's fastest setting: {text}")
    check("reshard_after_forward=False" in anchor_variant.with_resharding(anchor_variant.CALL, False) and anchor_variant.with_resharding("", True) == "", "resharding")
    check(running.filled(small, "@pointwise-1p6b-bf16-18@") == "18", "pointwise passes of which nothing is known")
    ranks = small.work / "runs" / "parts-1p6b-bf16" / "ranks"
    ranks.mkdir(parents=True)
    parts = (("ours", "Norm", 0.012), ("ours", "AdamWKernel", 0.01), ("copies", "", 0.002), ("products", "gemm", 0.3))
    (ranks / "rank-0.json").write_text(json.dumps({"profile": {"kernels": [{"part": part, "name": name, "seconds": seconds} for part, name, seconds in parts]}}))
    check(running.filled(small, "@pointwise-1p6b-bf16-18@") == "14.0", "pointwise passes as they were measured")
    changed, left = limit.as_in_training(f"{limit.CAST}\n{limit.STEP}{limit.LAYERS}")
    compile(changed, "limit", "exec")
    check(not left and "last_layer()" in changed and "448" in changed, f"the limit's program: {left}")
    check(limit.as_in_training("pass\n") == ("pass\n", ["last layer", "scaled operands"]), "a program that is not known is changed")


# As phalanx run JOB --output FOLDER: a step of 0.05 s for each of the job's. As the other program: a line for each step. As nvidia-smi: no boards.
FAKES = {
    "phalanx": """
import json, pathlib, re, sys
steps, output = int(re.search("steps: (\\d+)", pathlib.Path(sys.argv[2]).read_text())[1]), pathlib.Path(sys.argv[4])
(output / "ranks").mkdir(parents=True)
print("job: batch.micro is 4 instead of 8: without node-0/1 ...", file=sys.stderr)
line = {"step_seconds": 0.05, "loss": 2.5, "tokens": 100, "labelled_tokens": 40}
(output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for _ in range(steps)))
(output / "ranks" / "rank-0.json").write_text('{"exposed_comm_seconds": 0.01, "step_seconds": 1}')
""",
    "other": """
import sys
open(sys.argv[1], "w").write("".join(f"{number * 0.1} step\\n" for number in range(int(sys.argv[2]))))
""",
    "nvidia-smi": "",
}


def speeds(folder):
    folder.mkdir()
    for name, text in FAKES.items():
        (folder / name).write_text(f"#!{sys.executable}{text}" if text else f"#!{sys.executable}\n")
        (folder / name).chmod(0o755)
    job = folder / "job.yaml"
    job.write_text("  steps: 1\n")
    command = [sys.executable, SOURCE / "scripts" / "gpu" / "compare_speed.py", folder / "work", folder / "output", "--seconds", "2", "--tokens", "100",
               "--labelled-share", "0.4", "--other", "other: other {mark} {steps}", "--other", "broken: false", "--step", "other: 0.2", "--ours", f"ours: {job}",
               "--once", f"once: {job}"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
    check(done.returncode == 1 and done.stdout.count("broken: left out") == 1, f"a program that fails: {done.stdout}{done.stderr}")
    runs = json.loads((folder / "output" / "speed.json").read_text())
    check([run["label"] for run in runs] == ["other", "ours", "once", "ours", "other"], f"the order of programs: {[run['label'] for run in runs]}")
    check([run["steps"] for run in runs] == [11, 40, 40, 40, 20], f"steps of programs: {[run['steps'] for run in runs]}")
    check(runs[1]["lowered"] == ["batch.micro is 4 instead of 8"] and "lowered" not in runs[0], f"what was lowered: {runs[:2]}")
    check(runs[1]["tokens_per_s"] == 2000 and runs[1]["labelled_tokens_per_s"] == 800 and runs[1]["wait"] == 0.01 and runs[0]["labelled_tokens_per_s"] == 400,
          f"figures of programs: {runs[:2]}")


def chosen_boards():
    before = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    check(boards.query("uuid") == ["nvidia-smi", "--query-gpu=uuid"], "all boards")
    os.environ["CUDA_VISIBLE_DEVICES"] = "2, 3"
    check(boards.query("uuid", "-l") == ["nvidia-smi", "-i", "2,3", "--query-gpu=uuid", "-l"], "two boards of four")
    os.environ.pop("CUDA_VISIBLE_DEVICES")
    if before is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


# As torchrun: starts the program again when that is killed. As the program: goes on from its last checkpoint, tells each step. A start takes 0.3 s.
RESTARTS = """
import pathlib, signal, subprocess, sys
while subprocess.run([sys.executable, *sys.argv[1:]]).returncode == -signal.SIGKILL:
    pass
"""
STEPS = """
import os, pathlib, sys, time
mark, kept = sys.argv[1], pathlib.Path(sys.argv[1] + ".ckpt.0")
time.sleep(0.3)
for i in range(int(kept.read_text()) if kept.exists() else 0, 10000):
    time.sleep(0.1)
    if i % 4 == 3:
        kept.write_text(str(i + 1))
    with open(mark, "a") as file:
        file.write(f"{time.time():.3f} step {i} pid {os.getpid()} since_start 0\\n")
"""


def restarts(folder):
    check([restart_time.steps_behind(kill, 5, 10) for kill in range(5)] == [1, 3, 5, 7, 9], "kills are spread over the steps behind a checkpoint")
    check(restart_time.steps_behind(0, 1, 10) == 1 and restart_time.steps_behind(2, 3, 1) == 0, "one kill; a checkpoint every step")
    for text in ("", f"{checkpoint_every.CONDITION} {checkpoint_every.CONDITION}"):
        try:
            checkpoint_every.with_interval(text, 10)
            check(False, f"a program with `{text}` is taken")
        except ValueError:
            pass
    runner, program, output = folder / "restarts.py", folder / "steps.py", folder / "restart"
    runner.write_text(RESTARTS)
    program.write_text(STEPS)
    script = SOURCE / "scripts" / "gpu"
    done = subprocess.run([sys.executable, script / "restart_time.py", output, "2", "10", "--", sys.executable, runner,
                           script / "checkpoint_every.py", "10", program, "{mark}"], capture_output=True, text=True)
    check(done.returncode == 0 and "2 of 2 kills, a checkpoint every 10 steps: " in done.stdout, f"restart_time.py: {done.stdout}{done.stderr}")
    figures = json.loads((output / "restarts.json").read_text())
    # Where this machine is busy the program has done more steps than were seen, be it beyond the next checkpoint.
    check(1 <= figures[0]["steps_again"] <= 9 and 0 <= figures[1]["steps_again"] <= 9, f"steps done again: {figures}")
    check(all(0.3 <= figure["seconds_to_a_step"] <= figure["seconds_to_a_new_step"] for figure in figures), f"times: {figures}")
    check(not list(output.glob("*.ckpt*")), "checkpoints are taken away")


# Ends as soon as it is told to, as step_time.py does; what it has started does not.
STARTS_ANOTHER = """
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also of the other, from its beginning
subprocess.Popen([sys.executable, "-c", "import signal; print('there', flush=True); signal.sigwait({signal.SIGTERM}); "
                  "sum(range(10**7)); print('ended', flush=True)"])
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
signal.pause()
"""


def cuts():
    process = subprocess.Popen([sys.executable, "-c", STARTS_ANOTHER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    process.stdout.readline()
    code = running.end(process)
    check(not running.lives(process.pid), "what a command has started that is cut outlives it")
    check(code == -signal.SIGTERM and process.stdout.read() == "ended\n", f"a command that is cut: exit code {code}")


def stopped(folder):
    """A signal while a measurement runs: its figures so far are kept, and nothing of it goes on."""
    plan = plans.Plan(4, folder / "pack", folder / "work", folder / "output")
    plan.output.mkdir(parents=True)
    text = "import signal; print('{\"complete\": false}', flush=True); signal.pause()"
    measurement = plans.Measurement("waits", "", [sys.executable, "-c", text], 60, 50)
    log, done = plan.output / "waits.log", threading.Event()

    def signal_once_it_has_printed():
        while not done.is_set() and "complete" not in kill_ranks.text_of(log):
            done.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, running.stop)
    thread = threading.Thread(target=signal_once_it_has_printed)
    thread.start()
    result, was_stopped = running.run(plan, measurement)
    done.set()
    thread.join()
    signal.signal(signal.SIGTERM, before)
    check(was_stopped and result["cut"] and not result["whole"] and result["figures"] == {"complete": False}, f"a run that a signal stops: {result}")


with tempfile.TemporaryDirectory() as folder:
    dry_runs(pathlib.Path(folder))
    jobs(pathlib.Path(folder))
    predictions(pathlib.Path(folder) / "predicted")
    restarts(pathlib.Path(folder))
    goals(pathlib.Path(folder) / "goals", kills())
    order(pathlib.Path(folder) / "order")
    others_setting(pathlib.Path(folder) / "others")
    speeds(pathlib.Path(folder) / "speeds")
    curves(pathlib.Path(folder) / "curves")
    builds(pathlib.Path(folder) / "builds")
    stopped(pathlib.Path(folder) / "stopped")
chosen_boards()
phases()
cuts()
steadiness()
kernels_and_shapes()
for fault in faults:
    print(fault)
sys.exit(1 if faults else 0)
