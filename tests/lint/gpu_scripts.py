#!/usr/bin/env python3
"""What runs on borrowed machines is tried here first, as far as it goes without their GPUs: gpu_scripts.py SOURCE PHALANX

Every part of scripts/gpu/two, four and eight fits into its time, by its own --dry-run; the program takes every job that they
and scripts/gpu/shapes.py make; what layouts of four GPUs take is predicted, and stands beside what is measured;
scripts/gpu/steady.py tells a run that grows from one that does not; scripts/gpu/kill_ranks.py tells the phases of losses; scripts/gpu/restart_time.py measures a program that goes on from its checkpoints; what a command that is cut has started has ended before the next.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
SOURCE, PHALANX = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(SOURCE / "scripts" / "gpu"))
import checkpoint_every  # noqa: E402
import compare_predictions  # noqa: E402
import kill_ranks  # noqa: E402
import machine  # noqa: E402
import predicted_layouts  # noqa: E402
import restart_time  # noqa: E402
import shapes  # noqa: E402
import steady  # noqa: E402

faults = []


def check(holds, what):
    if not holds:
        faults.append(what)


def dry_runs(folder):
    for name, parts in (("two", "123456"), ("four", "1234"), ("eight", "12")):
        for part in parts:
            command = [SOURCE / "scripts" / "gpu" / name, "pack.tar.xz", folder / "work", folder / "output", "--part", part, "--dry-run"]
            done = subprocess.run(command, capture_output=True, text=True)
            check(done.returncode == 0 and " measurements, at most " in done.stdout,
                  f"{name} --part {part} --dry-run: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr}")
    check(not any(folder.iterdir()), "a dry run leaves files")


def valid(file, text):
    file.write_text(text)
    done = subprocess.run([PHALANX, "validate", file], capture_output=True, text=True)
    check(done.returncode == 0, f"{file.name}: {done.stdout}{done.stderr}")


def jobs(folder):
    for devices, measurements in machine.MACHINES.items():
        plan = machine.Plan(devices, folder / "pack", folder / str(devices), folder / "output")
        measurements(plan)
        names = [measurement.name for measurement in plan.list]
        check(len(set(names)) == len(names), f"{devices} GPUs: a name twice in {names}")
        written = set()  # by a command
        for measurement in plan.list:
            machine.write_jobs(plan, measurement)
            if "--write" in measurement.command:
                written.add(measurement.command[measurement.command.index("--write") + 1])
            for word in measurement.command:
                if word.startswith(str(plan.data)) and word.endswith(".yaml"):
                    check(word in written or pathlib.Path(word).exists(), f"{devices} GPUs, {measurement.name}: nobody writes {word}")
        for file in sorted(plan.data.glob("*.yaml")):
            valid(file, file.read_text())
    for name, shape in shapes.SHAPES.items():
        valid(folder / f"{name}.yaml", shapes.job_text({**shapes.BASE, **shape}, 40, "selective"))


def predictions(folder):
    """Of the real program, beside made-up measurements."""
    plan = machine.Plan(4, folder / "pack", folder / "work", folder / "output")
    machine.four(plan)
    names = [m.name for m in plan.list]
    order = [m for m in plan.list if m.name == "predictions"][0]
    whole = ("dp4", "tp2-dp2", "tp4", "pp4", "pp2-dp2", "vision-apart", "phases-chunks", "interleaved", "zero-bubble", "tp2-apart")
    check(all(names.index("predictions") < names.index(name) for name in whole), "a layout is measured before it is predicted")
    machine.write_jobs(plan, order)
    done = subprocess.run(order.command, capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{pathlib.Path(PHALANX).parent}{os.pathsep}{os.environ['PATH']}"})
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


def refused_jobs(plan):
    """What does not fit is predicted as it is written, and says so; no other failure is passed over."""
    job, profile = str(plan.path_of("dp4")), str(machine.HERE / "profiles" / "h200.json")
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


def judged(seen, allocator=None, host=1.0):
    rank = {"rank": 0, "steps": 1900, "step_seconds": 10.0, "host_seconds": host,
            "allocator": allocator or {"allocations": 3, "frees": 0, "retries": 0}}
    return steady.judge(seen, 2000, 200, [rank])[1]


def steadiness():
    check(judged(samples(0)) == [], f"a steady run: {judged(samples(0))}")
    check("resident memory grows" in str(judged(samples(1 << 16))), "resident memory that grows")
    check("device memory grows" in str(judged(samples(0, 1))), "device memory that grows")
    check("processor seconds" in str(judged(samples(0, slower=1.5))), "steps that become slower")
    check("retries" in str(judged(samples(0), {"allocations": 0, "frees": 0, "retries": 1})), "an allocation that is retried")
    check("the host works" in str(judged(samples(0), host=4.0)), "a host that works for most of a step")
    check("too few" in str(judged(samples(0)[:12])), "a run that is too short")


def phases():
    figures = [{"phases_ms": {"planned": [0, 3], "communicators_ready": [begin, end], "safe_again": [90, None]}} for begin, end in ((10, 30), (20, 70), (15, 40))]
    lines = kill_ranks.phase_lines(figures, "phases_ms", "phases:")
    check(lines == ["phases:", "  planned: ended after 3 ms (most 3), took 3 ms (most 3)",
                    "  communicators_ready: ended after 40 ms (most 70), took 25 ms (most 50)"], f"phases of losses: {lines}")


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
    code = machine.end(process)
    check(not machine.lives(process.pid), "what a command has started that is cut outlives it")
    check(code == -signal.SIGTERM and process.stdout.read() == "ended\n", f"a command that is cut: exit code {code}")


with tempfile.TemporaryDirectory() as folder:
    dry_runs(pathlib.Path(folder))
    jobs(pathlib.Path(folder))
    predictions(pathlib.Path(folder) / "predicted")
    restarts(pathlib.Path(folder))
phases()
cuts()
steadiness()
for fault in faults:
    print(fault)
sys.exit(1 if faults else 0)
