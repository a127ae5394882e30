#!/usr/bin/env python3
"""Steps with and without a table of algorithms of products: compare_products.py RUNS OUTPUT

RUNS has what the stage products-speed of scripts/gpu/run leaves: LINEAR-TURN.json, the line of phalanx-bench train, and LINEAR-TURN,
the folder of its run, of the turns 1-none, 2-table, 3-table, 4-none. Writes OUTPUT.json and OUTPUT.txt; fails where a run is missing or
one with the table took no algorithm from it."""
import glob
import json
import pathlib
import sys

KEYS = ("tokens_per_s", "step_ms", "joules_per_token", "watts", "mhz")


def read(runs, linear, turn):
    line = json.loads((runs / f"{linear}-{turn}.json").read_text().strip().splitlines()[-1])
    figures = {key: line[key]["median"] if key == "step_ms" else line[key] for key in KEYS if key in line}
    products = [product for path in glob.glob(str(runs / f"{linear}-{turn}" / "ranks" / "*.json"))
                for product in json.loads(pathlib.Path(path).read_text()).get("products", [])]
    figures["loss_last"] = line["loss_last"]
    figures["products"], figures["by_table"] = len(products), sum(product["by_table"] for product in products)
    return figures


def mean(figures, key):
    values = [one[key] for one in figures if key in one]
    return sum(values) / len(values) if values else None


def compare(runs):
    """({linear: {turn: figures}}, lines of text, what is wrong)"""
    all_figures, lines, faults = {}, [], []
    for linear in ("compute", "fp8"):
        of = all_figures.setdefault(linear, {})
        for turn in ("1-none", "2-table", "3-table", "4-none"):
            try:
                of[turn] = read(runs, linear, turn)
            except (OSError, ValueError, LookupError) as error:
                faults.append(f"{linear} {turn}: {error!r}")
        without, by = ([figures for turn, figures in of.items() if turn.endswith(word)] for word in ("none", "table"))
        faults += [f"{linear}: a run without the table took algorithms from one" for figures in without if figures["by_table"]]
        faults += [f"{linear}: a run with the table took no algorithm from it" for figures in by if not figures["by_table"]]
        if not without or not by:
            continue
        for key in KEYS:
            before, after = mean(without, key), mean(by, key)
            if before and after:
                lines.append(f"{linear} {key}: {before:.6g} without the table, {after:.6g} with it ({100 * (after / before - 1):+.2f} %)")
        lines.append(f"{linear}: {by[0]['by_table']} of {by[0]['products']} products by the table; losses at the end "
                     + ", ".join(f"{figures['loss_last']:.4f}" for figures in of.values()))
    return all_figures, lines, faults


def main():
    runs, output = pathlib.Path(sys.argv[1]), sys.argv[2]
    figures, lines, faults = compare(runs)
    pathlib.Path(f"{output}.json").write_text(json.dumps(figures, indent=2) + "\n")
    pathlib.Path(f"{output}.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines + faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
