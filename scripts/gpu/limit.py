#!/usr/bin/env python3
"""What all boards keep up at once for a step's work, by the program of the environment variable LIMIT.

    LIMIT=sustained_budget.py scripts/gpu/limit.py DEVICES [FLAG...]

Runs it with these flags on each of so many devices at the same time, prints their lines, and one of the tokens a second of all:
as many times the slowest.
"""
import os
import re
import subprocess
import sys


def main():
    devices, flags = int(sys.argv[1]), sys.argv[2:]
    processes = [subprocess.Popen([sys.executable, os.environ["LIMIT"], *flags], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "CUDA_VISIBLE_DEVICES": str(device)}) for device in range(devices)]
    texts = [process.communicate()[0] for process in processes]
    print(*(text.strip() for text in texts), sep="\n")
    rates = [int(rate.replace(",", "")) for text in texts for rate in re.findall(r"([\d,]+) tokens/s a GPU", text)]
    if len(rates) != devices or any(process.returncode for process in processes):
        return 1
    print(f"limit: {devices * min(rates):,} tokens/s on {devices}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
