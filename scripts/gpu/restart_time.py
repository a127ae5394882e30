#!/usr/bin/env python3
"""How long `torchrun --max-restarts` takes from a kill to its next new step, for comparison with kill_ranks.py.

    scripts/gpu/restart_time.py OUTPUT KILLS EVERY -- COMMAND...

COMMAND starts the program under torchrun; it adds a line `SECONDS step N pid P ...` to the file {mark} at the end of each step, writes a checkpoint
every EVERY steps and goes on from it, kept beside that file (as checkpoint_every.py does with torch_fsdp_bench.py --ckpt 1 --mark {mark}). The process P is killed
KILLS times, each time so many steps behind a checkpoint as the kills are spread evenly over all that there can be, and none while one is being written.
OUTPUT/restarts.json has, as soon as it is known, of each kill the seconds to the end of the first step of the next processes, the steps that were done again, and the seconds until a step was
done that had not been done before.
"""
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 180  # seconds, for whatever is waited for
STEPS_BETWEEN = 6  # at least, of each start


def steps_of(mark):
    """[(time, step, process)]"""
    try:
        lines = mark.read_text().rpartition("\n")[0].splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [(float(line[0]), int(line[2]), int(line[4])) for line in words]


def wait(process, mark, enough, what):
    end = time.monotonic() + PATIENCE
    while True:
        steps = steps_of(mark)
        if enough(steps):
            return steps
        if process.poll() is not None:
            raise RuntimeError(f"the program ended while {what} was waited for")
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come within {PATIENCE} s")
        time.sleep(0.02)


def steps_behind(kill, kills, every):
    """How many steps behind a checkpoint that kill comes: 1, .., every - 1, for one that is just being written would be damaged."""
    if every == 1:
        return 0
    return 1 + kill * (every - 2) // max(1, kills - 1)


def kill_once(process, mark, behind, every):
    begun = len(steps_of(mark))

    def far_enough(steps):
        return len(steps) >= begun + STEPS_BETWEEN and (steps[-1][1] + 1) % every == behind

    steps = wait(process, mark, far_enough, f"a step {behind} behind a checkpoint")
    killed, (_, step, victim) = time.time(), steps[-1]
    os.kill(victim, signal.SIGKILL)
    steps = wait(process, mark, lambda steps: any(pid != victim and n > step for _, n, pid in steps[begun:]), "a step that is new")
    after = [entry for entry in steps if entry[0] > killed and entry[2] != victim]
    new = next(entry for entry in after if entry[1] > step)
    return {"seconds_to_a_step": round(after[0][0] - killed, 2), "steps_again": max(0, step + 1 - after[0][1]),
            "seconds_to_a_new_step": round(new[0] - killed, 2)}


def cut(number, frame):
    raise RuntimeError("cut before its end")


def words_of(values):
    return f"{statistics.median(values):.1f} (most {max(values):.1f})"


def main():
    if len(sys.argv) < 6 or sys.argv[4] != "--":
        sys.exit(__doc__)
    output, kills, every = pathlib.Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3])
    output.mkdir(parents=True, exist_ok=True)
    mark = output / f"mark-{time.time_ns()}"
    command = [word.replace("{mark}", str(mark)) for word in sys.argv[5:]]
    figures = []
    signal.signal(signal.SIGTERM, cut)  # the command has a session of its own, and would go on
    with open(output / "run.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for kill in range(kills):
            figures.append(kill_once(process, mark, steps_behind(kill, kills, every), every))
            print(json.dumps(figures[-1]), flush=True)
            (output / "restarts.json").write_text(json.dumps(figures, indent=1) + "\n")
    except RuntimeError as error:
        print(error)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for kept in output.glob(f"{mark.name}.ckpt*"):
            kept.unlink()
    if figures:
        print(f"{len(figures)} of {kills} kills, a checkpoint every {every} steps: {words_of([f['seconds_to_a_step'] for f in figures])} s to a step, "
              f"{words_of([f['seconds_to_a_new_step'] for f in figures])} s to a new one, {words_of([f['steps_again'] for f in figures])} steps done again")
    return 0 if len(figures) == kills else 1


if __name__ == "__main__":
    sys.exit(main())
