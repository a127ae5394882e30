#!/usr/bin/env python3
"""Draws the losses of a run that was hit over those of one that was not, as SVG.

    scripts/draw_losses.py HIT/metrics.jsonl WHOLE/metrics.jsonl > losses.svg

Where lines of the first file change their epoch something had happened: a mark stands there. Below, on a
scale of its own, is how far both are apart, relative to the loss.
"""

import json
import sys

WIDTH, LEFT, RIGHT = 720, 56, 12
TOP, HEIGHT, GAP, BELOW = 28, 200, 44, 64
FONT = 'font-family="sans-serif" font-size="12"'


def read(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["step"]: line for line in lines if "loss" in line and line.get("loss") is not None}


def path_of(points, colour, width=1.5):
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def main():
    hit, whole = read(sys.argv[1]), read(sys.argv[2])
    steps = sorted(hit.keys() & whole.keys())
    losses = [run[step]["loss"] for run in (hit, whole) for step in steps]
    low, high = 0.0, max(losses) * 1.02
    apart = {step: abs(hit[step]["loss"] - whole[step]["loss"]) / abs(whole[step]["loss"]) for step in steps}
    worst = max(apart.values())

    def x_of(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - steps[0]) / max(1, steps[-1] - steps[0])

    def y_of(loss):
        return TOP + HEIGHT * (1 - (loss - low) / (high - low))

    bottom = TOP + HEIGHT
    floor = bottom + GAP + BELOW
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {floor + 32}" width="{WIDTH}">',
           f'<rect width="{WIDTH}" height="{floor + 32}" fill="white"/>',
           f'<text x="{LEFT}" y="16" {FONT}>loss: thin and dark with a failure, wide and light without one</text>']
    for i in range(5):
        loss = low + (high - low) * i / 4
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(loss):.1f}" y2="{y_of(loss):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y_of(loss) + 4:.1f}" text-anchor="end" {FONT}>{loss:.1f}</text>')
    out.append(path_of([(x_of(s), y_of(whole[s]["loss"])) for s in steps], "#9ecae1", 5))
    out.append(path_of([(x_of(s), y_of(hit[s]["loss"])) for s in steps], "#08519c"))
    for before, step in zip(steps, steps[1:]):
        if hit[before]["epoch"] == hit[step]["epoch"]:
            continue
        x = x_of(step)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}" stroke="#cb181d" stroke-dasharray="3 3"/>')
        out.append(f'<text x="{x + 3:.1f}" y="{TOP + 10}" fill="#cb181d" {FONT}>{hit[step]["epoch"]}</text>')
    out.append(f'<text x="{LEFT}" y="{bottom + GAP - 8}" {FONT}>difference, relative: at most {worst:.1e}</text>')
    if worst > 0:
        out.append(path_of([(x_of(s), floor - BELOW * apart[s] / worst) for s in steps], "#636363", 1))
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" stroke="#999"/>')
    for i in range(6):
        step = steps[0] + (steps[-1] - steps[0]) * i // 5
        out.append(f'<text x="{x_of(step):.1f}" y="{floor + 16}" text-anchor="middle" {FONT}>{step}</text>')
    out.append(f'<text x="{WIDTH - RIGHT}" y="{floor + 28}" text-anchor="end" {FONT}>step; dashed: an epoch begins</text>')
    out.append("</svg>")
    print("\n".join(out))


main()
