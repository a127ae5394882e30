#!/usr/bin/env python3
"""Draws an incident and what it did to training as one SVG.

    scripts/draw_incident.py TIMELINE.svg HIT/metrics.jsonl WHOLE/metrics.jsonl > incident.svg

TIMELINE.svg is what `phalanx incidents show JOB N --svg` drew. Below it are the losses of the run that was
hit over those of the same run without a failure, and how far both are apart, relative to the loss. Where
lines of the first file change their epoch something had happened: a mark with the new epoch stands there.
"""

import json
import re
import sys

# Pixels: the columns of the timeline (core/wire/incident_svg.cc).
LEFT, PLOT = 168, 620
LOSSES, DIFFERENCES, GAP = 200, 64, 40
STYLE = (".hit{stroke:#a1303f;stroke-width:1.5;fill:none}.whole{stroke:#9ecae1;stroke-width:5;fill:none}"
         ".apart{stroke:#7d8590;stroke-width:1;fill:none}.epoch{stroke:#a1303f;stroke-dasharray:3 3}")


def read(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["step"]: line for line in lines if line.get("loss") is not None}


def line(points, kind):
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def text(x, y, words, kind=""):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{words}</text>'


def draw_losses(top, hit, whole):
    """The picture's lines, and where it ends."""
    steps = sorted(hit.keys() & whole.keys())
    if len(steps) < 2:
        sys.exit("the runs have fewer than two steps in common")
    high = max(run[step]["loss"] for run in (hit, whole) for step in steps) * 1.02
    apart = {step: abs(hit[step]["loss"] - whole[step]["loss"]) / abs(whole[step]["loss"]) for step in steps}
    worst = max(apart.values())
    bottom = top + LOSSES
    floor = bottom + GAP + DIFFERENCES

    def x_of(step):
        return LEFT + PLOT * (step - steps[0]) / (steps[-1] - steps[0])

    def y_of(loss):
        return bottom - LOSSES * loss / high

    out = []
    for i in range(5):
        y = y_of(high * i / 4)
        out.append(f'<path class="a" d="M{LEFT} {y:.1f}H{LEFT + PLOT}"/>')
        out.append(text(LEFT - 8, y + 4, f"{high * i / 4:.1f}", "r"))
    out.append(text(LEFT - 8, top - 14, "loss", "r"))
    out.append(line([(x_of(step), y_of(whole[step]["loss"])) for step in steps], "whole"))
    out.append(line([(x_of(step), y_of(hit[step]["loss"])) for step in steps], "hit"))
    for before, step in zip(steps, steps[1:]):
        if hit[before]["epoch"] != hit[step]["epoch"]:
            out.append(f'<path class="epoch" d="M{x_of(step):.1f} {top - 8}V{floor}"/>')
            out.append(text(x_of(step) + 4, top + 4, f'epoch {hit[step]["epoch"]}'))
    beside = LEFT + PLOT + 8
    for i, (kind, words) in enumerate([("whole", "without a failure"), ("hit", "with it")]):
        out.append(f'<path class="{kind}" d="M{beside} {top + 18 * i}h20"/>')
        out.append(text(beside + 28, top + 18 * i + 4, words))
    out.append(text(LEFT - 8, floor + 4, "0", "r"))
    out.append(text(LEFT - 8, floor - DIFFERENCES + 4, f"{worst:.1e}", "r"))
    out.append(text(LEFT - 8, floor - DIFFERENCES / 2 + 4, "difference, relative", "r"))
    if worst > 0:
        out.append(line([(x_of(step), floor - DIFFERENCES * apart[step] / worst) for step in steps], "apart"))
    out.append(f'<path class="a" d="M{LEFT} {floor}H{LEFT + PLOT}"/>')
    for i in range(6):
        step = steps[0] + (steps[-1] - steps[0]) * i // 5
        out.append(text(x_of(step), floor + 18, step, "x"))
    out.append(text(LEFT - 8, floor + 18, "step", "r"))
    return out, floor + 30


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        timeline = file.read()
    size = re.match(r'<svg [^>]*viewBox="0 0 ([0-9.]+) ([0-9.]+)"', timeline)
    if size is None:
        sys.exit(f"{sys.argv[1]}: not a timeline")
    width, top = float(size.group(1)), float(size.group(2))
    losses, foot = draw_losses(top + GAP, read(sys.argv[2]), read(sys.argv[3]))
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {foot:.0f}" width="{width:.0f}" role="img">')
    # The timeline's style, paper and colours, which it has for light and dark, hold for both.
    print(f'<style>{STYLE}</style>\n<path class="p" d="M0 0H{width:.0f}V{foot:.0f}H0z"/>')
    print(timeline.strip())
    print("\n".join(losses))
    print("</svg>")


main()
