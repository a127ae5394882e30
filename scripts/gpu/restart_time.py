#!/usr/bin/env python3
"""How long `torchrun --max-restarts` takes from a kill to its next new step, for comparison with kill_ranks.py.

    scripts/gpu/restart_time.py OUTPUT KILLS -- COMMAND...

COMMAND starts the program under torchrun; it adds a line `SECONDS step N pid P ...` to the file {mark} at the end of each step and
goes on from its own checkpoints, kept beside that file (as torch_fsdp_bench.py does with --ckpt 1 --mark {mark}). When so many
steps as STEPS_BETWEEN are done, the process P is killed. OUTPUT/restarts.json has of each kill the seconds to the end of the first step of the next
processes, the steps that were done again, and the seconds until a step was done that had not been done before.
"""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 180  # seconds, for whatever is waited for
STEPS_BETWEEN = 6


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


def kill_once(process, mark):
    begun = len(steps_of(mark))
    steps = wait(process, mark, lambda steps: len(steps) >= begun + STEPS_BETWEEN, f"{STEPS_BETWEEN} more steps")
    killed, (_, step, victim) = time.time(), steps[-1]
    os.kill(victim, signal.SIGKILL)
    steps = wait(process, mark, lambda steps: any(pid != victim and n > step for _, n, pid in steps[begun:]), "a step that is new")
    after = [entry for entry in steps if entry[0] > killed and entry[2] != victim]
    new = next(entry for entry in after if entry[1] > step)
    return {"seconds_to_a_step": round(after[0][0] - killed, 2), "steps_again": max(0, step + 1 - after[0][1]),
            "seconds_to_a_new_step": round(new[0] - killed, 2)}


def main():
    if len(sys.argv) < 5 or sys.argv[3] != "--":
        sys.exit(__doc__)
    output, kills = pathlib.Path(sys.argv[1]).absolute(), int(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    mark = output / f"mark-{time.time_ns()}"
    command = [word.replace("{mark}", str(mark)) for word in sys.argv[4:]]
    figures = []
    with open(output / "run.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(kills):
            figures.append(kill_once(process, mark))
            print(json.dumps(figures[-1]), flush=True)
    except RuntimeError as error:
        print(error)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for kept in output.glob(f"{mark.name}.ckpt*"):
            kept.unlink()
    (output / "restarts.json").write_text(json.dumps(figures, indent=1) + "\n")
    if figures:
        print(f"{len(figures)} of {kills} kills: a step after {statistics.median(f['seconds_to_a_step'] for f in figures):.1f} s, a new one after "
              f"{statistics.median(f['seconds_to_a_new_step'] for f in figures):.1f} s")
    return 0 if len(figures) == kills else 1


if __name__ == "__main__":
    sys.exit(main())
