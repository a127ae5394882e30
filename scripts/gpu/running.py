"""Runs one measurement of a plan: fills in what is known as it begins, cuts it behind its budget or at SIGTERM, and reads its figures."""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time

import anchors
import kill_ranks

PROFILE = pathlib.Path(__file__).resolve().parent.parent.parent / "core" / "schedule" / "profiles" / "h200.json"
LINES_MAX = 40  # of a command's output, on the page
GRACE = 90  # seconds that a command which is cut has to end: phalanx run waits for its worker up to 60


class Stopped(Exception):
    """SIGTERM has come."""


def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Stopped


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
    setting = setting or {"micro": plan.samples[model], "parts": 1, "reshard": 1, "skip": 1}
    return shlex.join(anchors.program(setting["reshard"])), shlex.join(anchors.flags(setting))


LIMIT_SAMPLES = 4  # of a step of the program of LIMIT


def pointwise_of(plan, model, label, otherwise):
    """Milliseconds of a step of LIMIT_SAMPLES in which memory is what kernels wait for, but for AdamW's, where `parts-MODEL-LABEL` was measured."""
    try:
        rank = next((plan.work / "runs" / f"parts-{model}-{label}" / "ranks").glob("rank-*.json"))
        kernels = json.loads(rank.read_text())["profile"]["kernels"]
    except (OSError, ValueError, LookupError, StopIteration):
        return otherwise
    seconds = sum(one["seconds"] for one in kernels if one["part"] in ("ours", "other", "copies") and "AdamW" not in one["name"])
    return f"{1e3 * seconds * LIMIT_SAMPLES / plan.samples[model]:.1f}"


def filled(plan, text):
    """With what is known as a measurement begins."""
    text = text.replace("@profile@", profile_of(plan))
    text = re.sub("@pointwise-([^-@]+)-([^-@]+)-([^-@]+)@", lambda at: pointwise_of(plan, *at.groups()), text)
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
    return code == 0 or isinstance(figures, dict) and (figures.get("complete") is True or any(key in figures for key in ("of_bound", "faults", "races")))


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
