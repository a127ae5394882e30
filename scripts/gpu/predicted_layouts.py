#!/usr/bin/env python3
"""What a device profile predicts of layouts, and the table of it beside what was then measured.

    scripts/gpu/predicted_layouts.py OUTPUT --profile FILE --items N [--device-memory SIZE] JOB.yaml ...

Writes OUTPUT/predictions.json, by the names of the job files, and prints a line each; a file that is not there is left out
by name. What is predicted there already stays as it is, for it may have been measured since. scripts/gpu/machine.py runs it before any of the jobs, and makes OUTPUT/predicted.md of it and its results.
`phalanx` comes from the PATH.
"""
import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare_predictions  # noqa: E402

FILE = "predictions.json"


def measured(result):
    """Seconds of a step and bytes of the fullest rank, as step_time.py printed them; None where it did not."""
    if result is None or result["exit_code"] != 0:
        return None
    for text in reversed(result["last_lines"]):
        try:
            figures = json.loads(text)
            return {"step": figures["step_ms"] / 1e3, "memory": figures["memory_gb"] * 1e9}
        except (ValueError, KeyError, TypeError):
            continue
    return None


def row(name, prediction, result):
    seen = measured(result)
    cells = [name if prediction["fits"] else f"{name} (refused; as it is written)"]
    for quantity, unit, form in (("step", 1e-3, "{:,.1f} ms"), ("memory", 1e9, "{:,.1f} GB")):
        cells.append(form.format(prediction[quantity] / unit))
        if seen is not None:
            cells += [form.format(seen[quantity] / unit), compare_predictions.error(prediction[quantity], seen[quantity]).strip()]
        else:
            cells += ["not measured" if result is None else f"failed, exit code {result['exit_code']}", ""]
    return "| " + " | ".join(cells) + " |"


def table(predictions, results):
    """Lines of Markdown: a row for each prediction, in their order, and how many are within 5 %."""
    lines = ["| layout | step, predicted | measured | off by | memory, predicted | measured | off by |", "|---|---|---|---|---|---|---|"]
    pairs = []
    for name, prediction in predictions.items():
        result = results.get(name)
        lines.append(row(name, prediction, result))
        if measured(result) is not None:
            pairs.append((prediction, measured(result)))
    if pairs:
        lines += ["", *(f"{text}." for text in compare_predictions.summary(pairs).splitlines())]
    return lines


def write_table(output, results):
    """OUTPUT/predicted.md, where there are predictions; its lines, else none."""
    path = output / FILE
    if not path.exists():
        return []
    lines = table(json.loads(path.read_text()), results)
    (output / "predicted.md").write_text("\n".join(lines) + "\n")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--profile", required=True, metavar="FILE", help="as phalanx-bench profile writes it")
    parser.add_argument("--items", required=True, help="images or sounds of a sample")
    parser.add_argument("--device-memory", metavar="SIZE", help="of each device: what admission lowers to fit it is predicted so")
    parser.add_argument("jobs", type=pathlib.Path, nargs="+", metavar="JOB.yaml")
    options = parser.parse_args()
    path, failed = options.output / FILE, False
    predictions = json.loads(path.read_text()) if path.exists() else {}
    for job in options.jobs:
        if job.stem in predictions:
            print(compare_predictions.line(predictions[job.stem], None), flush=True)
            continue
        if not job.exists():
            print(f"{job.stem}: left out: {job} is not there")
            continue
        try:
            predictions[job.stem] = compare_predictions.predict(job.stem, options.items, str(job), options.profile,
                                                                    options.device_memory)
        except (subprocess.SubprocessError, OSError) as failure:  # the others are still worth having
            failed = True
            print(f"{job.stem}: {failure}")
            continue
        print(compare_predictions.line(predictions[job.stem], None), flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(predictions, indent=1) + "\n")
    return 1 if failed or not predictions else 0


if __name__ == "__main__":
    sys.exit(main())
