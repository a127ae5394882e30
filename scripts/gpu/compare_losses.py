#!/usr/bin/env python3
"""Compares two runs' losses: compare_losses.py REFERENCE/metrics.jsonl OTHER/metrics.jsonl TOLERANCE [STEPS] [--last N]

Prints the largest relative difference of a step over the first STEPS steps (default 50) and fails if it exceeds TOLERANCE;
with --last, the same of the means over the last N steps of both, which it also prints as JSON.
"""
import argparse
import json
import sys


def losses(path):
    with open(path, encoding="utf-8") as lines:
        return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}


def compare_means(reference, other, last, tolerance):
    if sorted(reference) != sorted(other) or len(reference) < last:
        print(f"{len(reference)} and {len(other)} steps: not the same ones, or fewer than {last}")
        return False
    means = [sum(run[step] for step in sorted(run)[-last:]) / last for run in (reference, other)]
    difference = abs(means[1] - means[0]) / means[0]
    print(f"{len(reference)} steps: mean of the last {last} {means[0]:.6f} and {means[1]:.6f}, "
          f"relative difference {difference:.3e}, tolerance {tolerance:g}")
    print(json.dumps({"steps": len(reference), "last": last, "means": means, "difference": difference, "tolerance": tolerance}))
    return difference <= tolerance


def compare_steps(reference, other, steps, tolerance):
    worst_step, worst = max(((step, abs(other[step] - reference[step]) / reference[step])
                             for step in range(1, steps + 1)), key=lambda pair: pair[1])
    print(f"{steps} steps: largest relative difference {worst:.3e} at step {worst_step} "
          f"({reference[worst_step]:.6f} and {other[worst_step]:.6f}), tolerance {tolerance:g}")
    return worst <= tolerance


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reference")
    parser.add_argument("other")
    parser.add_argument("tolerance", type=float)
    parser.add_argument("steps", type=int, nargs="?", default=50)
    parser.add_argument("--last", type=int)
    arguments = parser.parse_args()
    reference, other = losses(arguments.reference), losses(arguments.other)
    if arguments.last:
        return 0 if compare_means(reference, other, arguments.last, arguments.tolerance) else 1
    return 0 if compare_steps(reference, other, arguments.steps, arguments.tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
