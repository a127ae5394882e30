#!/usr/bin/env python3
"""Draws the losses of runs in bf16 and in FP8 over their steps as one SVG, and says how far apart they end.

    scripts/gpu/draw_losses.py FOLDER NAME

FOLDER has the runs' outputs, NAME-SEED-compute and NAME-SEED-fp8 of each seed, as scripts/gpu/run leaves them; the picture is
FOLDER/NAME.svg. A point is the mean of ten steps, or of fewer where a run is short. Below the curves stand the means of the last 50 steps.
"""
import json
import math
import pathlib
import re
import statistics
import sys

LEFT, TOP, WIDTH, HEIGHT, LAST, POINTS = 56, 36, 640, 280, 50, 60
COLOURS = ("#1f6feb", "#a1303f", "#2da44e", "#8250df")
STYLE = "text{font:12px sans-serif;fill:#24292f}.r{text-anchor:end}.a{stroke:#d0d7de}.compute,.fp8{fill:none;stroke-width:1.4}.fp8{stroke-dasharray:5 3}"
NAMES = {"compute": "bf16", "fp8": "FP8"}


def losses(path):
    with open(path, encoding="utf-8") as lines:
        found = {entry["step"]: entry["loss"] for entry in map(json.loads, lines) if entry.get("loss") is not None}
    return [found[step] for step in sorted(found)]


def pairs(folder, name):
    """{seed: {precision: losses}} of those that are there in both."""
    found = {}
    for path in sorted(folder.glob(f"{name}-*/metrics.jsonl")):
        known = re.fullmatch(f"{re.escape(name)}-(\\d+)-(compute|fp8)", path.parent.name)
        if known:
            found.setdefault(int(known[1]), {})[known[2]] = losses(path)
    return {seed: runs for seed, runs in sorted(found.items()) if len(runs) == 2 and all(runs.values())}


def smoothed(run):
    """[(step, mean)]"""
    width = max(1, min(10, len(run) // POINTS))
    return [(begin + width / 2 + 0.5, statistics.fmean(run[begin:begin + width])) for begin in range(0, len(run) - width + 1, width)]


def apart(runs):
    """Means of the last steps in bf16 and in FP8, and how much larger the second is."""
    means = [statistics.fmean(runs[kind][-LAST:]) for kind in ("compute", "fp8")]
    return (*means, means[1] / means[0] - 1)


def draw(name, seeds):
    curves = {(seed, kind): smoothed(run) for seed, runs in seeds.items() for kind, run in runs.items()}
    last = max(len(run) for runs in seeds.values() for run in runs.values())
    values = [loss for curve in curves.values() for _, loss in curve]
    low, high = min(values), max(values)
    tick = 10 ** math.floor(math.log10(max(high - low, 1e-6)))
    low, high = math.floor(low / tick) * tick, math.ceil(high / tick) * tick
    high = max(high, low + tick)

    def place(step, loss):
        return f"{LEFT + WIDTH * step / last:.1f},{TOP + HEIGHT * (high - loss) / (high - low):.1f}"

    height = TOP + HEIGHT + 44 + 18 * len(seeds)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 24} {height}"><style>{STYLE}</style>',
           f'<text x="{LEFT}" y="20">{name}: loss over steps, bf16 (solid) and FP8 (dashed)</text>']
    for i in range(5):
        y, loss = TOP + HEIGHT * i / 4, high - (high - low) * i / 4
        out += [f'<path class="a" d="M{LEFT} {y:.1f}h{WIDTH}"/>', f'<text class="r" x="{LEFT - 6}" y="{y + 4:.1f}">{loss:.3g}</text>',
                f'<text class="r" x="{LEFT + WIDTH * i / 4:.1f}" y="{TOP + HEIGHT + 16}">{last * i // 4}</text>']
    for (seed, kind), curve in curves.items():
        colour = COLOURS[list(seeds).index(seed) % len(COLOURS)]
        out.append(f'<polyline class="{kind}" stroke="{colour}" points="{" ".join(place(*point) for point in curve)}"/>')
    for row, (seed, runs) in enumerate(seeds.items()):
        y, (bf16, fp8, more) = TOP + HEIGHT + 38 + 18 * row, apart(runs)
        out += [f'<path stroke="{COLOURS[row % len(COLOURS)]}" stroke-width="3" d="M{LEFT} {y - 4}h18"/>',
                f'<text x="{LEFT + 26}" y="{y}">seed {seed}: mean of the last {LAST} steps {bf16:.4f} in {NAMES["compute"]}, {fp8:.4f} in {NAMES["fp8"]} ({100 * more:+.2f} %)</text>']
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    seeds = pairs(folder, name)
    if not seeds:
        sys.exit(f"{folder}: no seed of {name} has run in bf16 and in FP8")
    (folder / f"{name}.svg").write_text(draw(name, seeds))
    more = [apart(runs)[2] for runs in seeds.values()]
    print(f"{name}: FP8 ends {', '.join(f'{100 * one:+.2f} %' for one in more)} apart from bf16, {100 * statistics.fmean(more):+.2f} % on average; {folder / name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
