#!/usr/bin/env python3
"""What a device profile predicts of jobs, and what they then take: step time and memory.

    scripts/gpu/compare_predictions.py WORK OUTPUT --profile FILE --device-memory BYTES
        --job 'LABEL: ITEMS: JOB.yaml' ...

ITEMS: images or sounds of a sample. First `phalanx plan --device-profile` predicts every job, which is written to
OUTPUT/predictions.json; only then is each trained that fits the memory of a device, one after the other, until
--seconds are over. A step is the median from the 6th on, and memory what the rank that has most has in use at the
end, which never gave any back. Writes OUTPUT/predicted.txt, a line a job with relative errors of the predictions,
and OUTPUT/measured.json, with the predictions, both as jobs end. `phalanx` comes from the PATH.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

WARM_UP = 5  # steps
RUN_SECONDS_MAX = 240
REFUSED = 65  # exit code of a plan that its devices do not hold


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--profile", required=True, metavar="FILE", help="as phalanx-bench profile writes it")
    parser.add_argument("--device-memory", type=int, required=True, metavar="BYTES", help="of each device")
    parser.add_argument("--seconds", type=float, default=3600, help="no job is begun after so many")
    parser.add_argument("--job", action="append", required=True, metavar="'LABEL: ITEMS: JOB.yaml'")
    return parser.parse_args()


def predict(label, items, job, profile, device_memory=None):
    """`device_memory`: of each device, as `phalanx plan` takes it. Then the plan is the one that a job on such devices gets,
    with what admission lowers; a job that does not fit them is predicted as it is written, and `fits` is false."""
    command = ["phalanx", "plan", job, "-o", "json", "--device-profile", profile, "--items", items]
    done = subprocess.run(command + (["--device-memory", str(device_memory)] if device_memory else []), stdout=subprocess.PIPE, timeout=60)
    fits = done.returncode != REFUSED
    if not fits:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60)
    done.check_returncode()
    plan = json.loads(done.stdout)
    return {"label": label, "job": job, "world": plan["world"], "fits": fits, **plan["prediction"]}


def train(prediction, work, output):
    """Median seconds of a step and bytes of the fullest rank. Errors: RuntimeError with the end of the log."""
    name = re.sub("[^A-Za-z0-9]+", "-", prediction["label"])
    run, log = work / f"run-{name}-{time.time_ns()}", output / f"{name}.log"
    with open(log, "w", encoding="utf-8") as file:
        command = ["phalanx", "run", prediction["job"], "--output", str(run)]
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=RUN_SECONDS_MAX).returncode
    if status != 0:
        raise RuntimeError(f"ended with {status}:\n" + log.read_text(errors="replace")[-2000:])
    log.unlink()
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if len(steps) <= WARM_UP:
        raise RuntimeError(f"{len(steps)} steps; at least {WARM_UP + 1} are needed")
    ranks = [json.loads(path.read_text()) for path in run.glob("ranks/*.json")]
    return {
        "step": statistics.median(step["step_seconds"] for step in steps[WARM_UP:]),
        "memory": max(rank["memory_bytes"] for rank in ranks),
        "labelled_share": sum(step["labelled_tokens"] for step in steps) / sum(step["tokens"] for step in steps),
    }


def error(predicted, measured):
    return f"{100 * (predicted / measured - 1):+6.1f} %"


def line(prediction, measured):
    text = f"{prediction['label']:<44} {1e3 * prediction['step']:9.1f} ms {prediction['memory'] / 2**30:7.1f} GiB"
    if measured is None:
        return text if prediction["fits"] else f"{text}, refused and predicted as it is written"
    return (f"{text} | {1e3 * measured['step']:9.1f} ms {error(prediction['step'], measured['step'])}"
            f" {measured['memory'] / 2**30:7.1f} GiB {error(prediction['memory'], measured['memory'])}"
            f"  labelled {measured['labelled_share']:.4f}")


def summary(pairs):
    """Of each quantity the mean and the largest error, without its sign."""
    texts = []
    for quantity in ("step", "memory"):
        errors = [abs(prediction[quantity] / measured[quantity] - 1) for prediction, measured in pairs]
        within = sum(one <= 0.05 for one in errors)
        texts.append(f"{quantity}: {within} of {len(errors)} within 5 %, mean error {100 * statistics.mean(errors):.1f} %, "
                     f"largest {100 * max(errors):.1f} %")
    return "\n".join(texts)


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    predictions = [predict(*job.split(": ", 2)[:3], options.profile, options.device_memory) for job in options.job]
    (options.output / "predictions.json").write_text(json.dumps(predictions, indent=1) + "\n")
    print("predicted, before anything is trained:")
    for prediction in predictions:
        print(line(prediction, None), flush=True)
    pairs, failed = [], False
    print("predicted | measured, error of the prediction:")
    with open(options.output / "predicted.txt", "w", encoding="utf-8") as table:

        def tell(text):
            print(text, flush=True)
            print(text, file=table, flush=True)

        for prediction in predictions:
            if not prediction["fits"] or prediction["memory"] > options.device_memory:
                tell(line(prediction, None) + " | left out: more than a device has")
            elif time.monotonic() - begin > options.seconds:
                tell(line(prediction, None) + " | left out: no time")
            else:
                try:
                    measured = train(prediction, options.work, options.output)
                except (RuntimeError, subprocess.TimeoutExpired) as failure:
                    failed = True
                    tell(line(prediction, None) + f" | failed: {failure}")
                    continue
                pairs.append((prediction, measured))
                tell(line(prediction, measured))
                written = [{"label": of["label"], **seen, "predicted": {"step": of["step"], "memory": of["memory"]}} for of, seen in pairs]
                (options.output / "measured.json").write_text(json.dumps(written, indent=1) + "\n")
        if pairs:
            tell(summary(pairs))
    return 1 if failed or not pairs else 0


if __name__ == "__main__":
    sys.exit(main())
