#!/usr/bin/env python3
"""Compares two runs' losses step by step: compare_losses.py REFERENCE/metrics.jsonl OTHER/metrics.jsonl TOLERANCE [STEPS]

Prints the largest relative difference over the first STEPS steps (default 50) and fails if it exceeds TOLERANCE.
"""
import json
import sys


def losses(path):
    with open(path, encoding="utf-8") as lines:
        return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}


def main():
    reference, other = losses(sys.argv[1]), losses(sys.argv[2])
    tolerance, steps = float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 50
    worst_step, worst = max(((step, abs(other[step] - reference[step]) / reference[step])
                             for step in range(1, steps + 1)), key=lambda pair: pair[1])
    print(f"{steps} steps: largest relative difference {worst:.3e} at step {worst_step} "
          f"({reference[worst_step]:.6f} and {other[worst_step]:.6f}), tolerance {tolerance:g}")
    return 0 if worst <= tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
