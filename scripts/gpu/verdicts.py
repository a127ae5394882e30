"""What was measured beside what was wanted. A Goal names the measurements whose figures it needs and a function that judges them; machines.py has
the goals of each machine, and machine.py writes what became of them beside its results."""
import dataclasses
import statistics

import shapes

REACHED, MISSED, NO_GOAL, IN_PART, NOT_MEASURED = "reached", "missed", "no goal", "in part", "not measured"
KILLS = 20  # in a row
LAYOUTS = 10
PREDICTED = 0.05  # how far a prediction may be off


class InPart(Exception):
    """Too little was measured to tell; its text says what there is."""


@dataclasses.dataclass
class Goal:
    figure: str  # what is measured
    wanted: str
    needs: tuple  # names of measurements
    judge: object  # of the figures of all measurements by name: (text, whether it is reached; None: there is nothing to reach)


def verdict(goal, results):
    of = {"figure": goal.figure, "wanted": goal.wanted, "of": list(goal.needs)}
    figures = {name: result["figures"] for name, result in results.items() if result.get("figures") is not None}
    missing = [name for name in goal.needs if name not in figures]
    if missing:
        failed = [name for name in missing if name in results]
        return {**of, "state": NOT_MEASURED, "value": f"failed: {', '.join(failed)}" if failed else ""}
    try:
        value, reached = goal.judge(figures)
    except InPart as part:
        return {**of, "state": IN_PART, "value": str(part)}
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return {**of, "state": NOT_MEASURED, "value": f"the figures are not whole: {error!r}"}
    if len({results[name].get("machine") for name in goal.needs}) > 1:
        value += "; on several machines"
    return {**of, "state": NO_GOAL if reached is None else REACHED if reached else MISSED, "value": value}


def table(verdicts):
    """Lines of Markdown."""
    lines = ["| figure | wanted | measured | |", "|---|---|---|---|"]
    for one in verdicts:
        lines.append("| " + " | ".join(text.replace("|", "/") for text in (one["figure"], one["wanted"], one["value"], one["state"])) + " |")
    counts = ", ".join(f"{sum(one['state'] == state for one in verdicts)} {state}" for state in (REACHED, MISSED, NO_GOAL, IN_PART, NOT_MEASURED))
    return [*lines, "", f"{len(verdicts)} figures: {counts}."]


def percent(part, digits=1):
    return f"{100 * part:.{digits}f} %"


def runs_of(figures, name, label, seconds=0.0, count=1):
    """Of compare_speed.py."""
    runs = [run for run in figures[name] if run["label"] == label]
    if len(runs) < count or any(run["seconds"] < 0.98 * seconds for run in runs):
        raise InPart(", ".join(f"{run['tokens_per_s']:,} tokens/s over {run['seconds']} s" for run in runs))
    return runs


def mean_rate(runs):
    return statistics.fmean(run["tokens_per_s"] for run in runs)


def rates_text(runs):
    labelled = [run["labelled_tokens_per_s"] for run in runs if "labelled_tokens_per_s" in run]
    text = " and ".join(f"{run['tokens_per_s']:,}" for run in runs) + " tokens/s"
    return text + (f" ({round(statistics.fmean(labelled)):,} labelled)" if labelled else "")


def speed(name, label, goal, share, limit, other, seconds):
    """Tokens a second of two runs of so many seconds in one microbatch a step: the goal, or that share of the boards' limit where it was measured and is lower."""
    def judge(figures):
        runs = runs_of(figures, name, label, seconds, 2)
        wanted, text = goal, rates_text(runs)
        if limit in figures:
            kept_up = figures[limit]["tokens_per_s"]
            wanted = min(goal, share * kept_up)
            text += f", {percent(mean_rate(runs) / kept_up)} of the limit of {kept_up:,}"
        beside = [run for run in figures[name] if run["label"] == other]
        if beside:
            text += f", {mean_rate(runs) / mean_rate(beside):.2f} times {other}"
        lowered = sorted({one for run in runs for one in run.get("lowered", ())})
        text += "".join(f", {one}" for one in lowered)
        return f"{text}; wanted {wanted:,.0f}", mean_rate(runs) >= wanted and not any(one.startswith("batch.micro") for one in lowered)
    return judge


def times_other(name, label, other, factor, seconds):
    def judge(figures):
        runs, beside = (runs_of(figures, name, one, seconds, 2) for one in (label, other))
        ratio = mean_rate(runs) / mean_rate(beside)
        return f"{rates_text(runs)}, {ratio:.2f} times {other}", ratio >= factor
    return judge


def beside(name, labels):
    """Runs that stand beside others."""
    def text(runs):
        lowered = sorted({one for run in runs for one in run.get("lowered", ())})
        return rates_text(runs) + "".join(f", {one}" for one in lowered)
    return lambda figures: ("; ".join(f"{label}: {text(runs_of(figures, name, label))}" for label in labels), None)


def products(name):
    """Steps with a table of algorithms of products beside steps without."""
    def judge(figures):
        texts = []
        for linear, turns in figures[name].items():
            without, by = (statistics.mean(turns[turn]["tokens_per_s"] for turn in pair) for pair in (("1-none", "4-none"), ("2-table", "3-table")))
            texts.append(f"{linear}: {by:,.0f} tokens/s instead of {without:,.0f} ({by / without - 1:+.1%})")
        return "; ".join(texts), None
    return judge


def waiting(name, labels, most):
    """The most that a rank waited for others."""
    def judge(figures):
        waits = {label: max(run["wait"] for run in runs_of(figures, name, label)) for label in labels}
        return ", ".join(f"{label} {percent(wait, 2)}" for label, wait in waits.items()), max(waits.values()) < most
    return judge


def anchors(name):
    def judge(figures):
        of = figures[name]
        text = "; ".join(f"micro batch {one['micro']} x {one['parts']}, resharding {'on' if one['reshard'] else 'off'}, "
                         f"{'labelled' if one['skip'] else 'all'} rows {one['tokens_per_s']:,} tokens/s"
                         for one in sorted((one for one in of["runs"] if "tokens_per_s" in one), key=lambda one: -one["tokens_per_s"]))
        if len(of["runs"]) < 7:
            raise InPart(text)
        return text, None
    return judge


def throughput(name, base, factor):
    def judge(figures):
        rate = figures[name]["tokens_per_s"]
        return f"{rate:,} tokens/s, {rate / base:.2f} times {base:,}", rate >= factor * base
    return judge


def kept(name, whole, share, least=0.97):
    """Of the healthy layout's tokens a second, a share is left."""
    def judge(figures):
        part = figures[name]["tokens_per_s"] / figures[whole]["tokens_per_s"] / share
        return f"{figures[name]['tokens_per_s']:,} of {figures[whole]['tokens_per_s']:,} tokens/s: {percent(part)} of {percent(share, 0)}", part >= least
    return judge


def simulated(name, whole, least=0.97):
    """The same, of what the simulator says is left."""
    def judge(figures):
        ratio = figures[name]["step_ratio"]
        part = figures[name]["tokens_per_s"] / figures[whole]["tokens_per_s"] * ratio
        return (f"{figures[name]['tokens_per_s']:,} of {figures[whole]['tokens_per_s']:,} tokens/s, where the simulator has {percent(1 / ratio)}: "
                f"{percent(part)} of that"), part >= least
    return judge


def first_choice(name, layouts, within=0.03):
    """The search's, beside the best of those layouts that were measured."""
    def judge(figures):
        known = {layout: figures[layout]["tokens_per_s"] for layout in layouts if "tokens_per_s" in figures.get(layout, {})}
        best = max(known, key=known.get)
        part = figures[name]["tokens_per_s"] / known[best]
        text = f"{figures[name]['tokens_per_s']:,} tokens/s, {percent(part)} of {best}, the best of {len(known)}"
        if len(known) < LAYOUTS:
            raise InPart(text)
        return text, part >= 1 - within
    return judge


def errors_text(errors):
    off = sorted(errors.items(), key=lambda pair: -abs(pair[1]))
    good = sum(abs(error) <= PREDICTED for error in errors.values())
    return f"{good} of {len(errors)} within {percent(PREDICTED, 0)}; furthest off: " + ", ".join(f"{name} {100 * error:+.1f} %" for name, error in off[:4])


def judge_errors(errors, count):
    if len(errors) < count:
        raise InPart(errors_text(errors) if errors else "")
    return errors_text(errors), all(abs(error) <= PREDICTED for error in errors.values())


def predicted(name, layouts, quantity):
    """What was predicted of layouts, in `predictions`, beside what step_time.py measured: `step` or `memory`."""
    def judge(figures):
        errors = {}
        for layout in layouts:
            seen = figures.get(layout, {})
            if "step_ms" in seen and layout in figures[name]:
                measured = seen["step_ms"] / 1e3 if quantity == "step" else seen["memory_gb"] * 1e9
                errors[layout] = figures[name][layout][quantity] / measured - 1
        return judge_errors(errors, LAYOUTS)
    return judge


def predicted_jobs(name, quantity):
    """Of compare_predictions.py."""
    return lambda figures: judge_errors({one["label"]: one["predicted"][quantity] / one[quantity] - 1 for one in figures[name]}, LAYOUTS)


def guarded(names, most):
    """More time of a step with all of fault tolerance than with none: without, with, with, without."""
    def judge(figures):
        steps = [figures[name]["step_ms"] for name in names]
        more = (steps[1] + steps[2]) / (steps[0] + steps[3]) - 1
        return f"{', '.join(f'{step:,.1f}' for step in steps)} ms: {percent(more, 2)} more", None if most is None else more < most
    return judge


def whole_run(of):
    """Of kill_ranks.py: whether there were as many kills as are wanted."""
    return of["kills"] >= KILLS and of["kills"] == of["wanted"]


def recovered(name):
    """From the kill to the first decision, 19 of 20; of fewer kills it is not known."""
    def judge(figures):
        of = figures[name]
        text = (f"{of['within']} of {of['kills']} within {of['limit_seconds']} s and a step of {of['step_seconds']:.2f} s; median {of['seconds_median']:.2f} s, "
                f"most {of['seconds_max']:.2f} s; communicators: {', '.join(of['communicators'])}")
        allowed = of["kills"] // KILLS
        if of["within"] < of["kills"] - max(1, allowed):  # more kills make it no better
            return text, False
        if not whole_run(of):
            raise InPart(text)
        return text, of["within"] >= of["kills"] - allowed
    return judge


def steps_lost(name, most):
    """Steps that had been decided and were done again."""
    def judge(figures):
        of = figures[name]
        return (f"at most {of['steps_lost_max']} by one of {of['kills']} kills, {of['steps_redone_max']} with the one that was under way",
                of["steps_lost_max"] <= most)
    return judge


def left_behind(name):
    """By kills and returns: memory, throughput, and how long training stood still for a return."""
    def judge(figures):
        of, parts, good = figures[name], [], []
        if of["memory_growth"] is not None:
            parts.append(f"memory in use {100 * of['memory_growth']:+.2f} %")
            good.append(of["memory_growth"] <= 0.01)
        if of["throughput_back"] is not None:
            parts.append(f"{percent(of['throughput_back'])} of the throughput is back")
            good.append(of["throughput_back"] >= 0.99)
        if of["return_pause_in_steps_max"] is not None:
            parts.append(f"a return takes {of['return_pause_in_steps']:.2f} of a step (most {of['return_pause_in_steps_max']:.2f})")
            good.append(of["return_pause_in_steps_max"] < 1)
        if all(good) and (len(good) < 3 or not whole_run(of)):
            raise InPart("; ".join(parts))
        return "; ".join(parts), all(good)
    return judge


def stays_out(name, key, least=0.97):
    """`of_their_share` of the devices that are left, or `of_the_simulated` throughput without the rank."""
    def judge(figures):
        of = figures[name]
        return f"{percent(of['throughput_kept'])} of the throughput is left, {percent(of[key])} of that", of[key] >= least
    return judge


def restarts(name, kills):
    def judge(figures):
        of = figures[name]
        seconds, again = ([one[key] for one in of] for key in ("seconds_to_a_new_step", "steps_again"))
        text = (f"{len(of)} kills: {statistics.median(seconds):.1f} s to a step that is new (most {max(seconds):.1f}), "
                f"{statistics.median(again):.0f} steps done again (most {max(again)})")
        if len(of) < kills:
            raise InPart(text)
        return text, None
    return judge


def passed(name):
    return lambda figures: ("all passed" if figures[name]["passed"] else "some failed", figures[name]["passed"])


def bound(name, share):
    def judge(figures):
        of = figures[name]
        return f"{of['step_ms']:,.1f} ms, bound {of['bound_ms']:,.1f} ms: {percent(of['of_bound'])}", of["of_bound"] >= share
    return judge


def races(name):
    """Of kernels, ours beside a library's for the same jobs."""
    def judge(figures):
        of = figures[name]
        text = f"{of['races']} jobs; slowest {of['slowest'][0]:.2f} times theirs ({of['slowest'][1]})"
        return text + (f"; over {of['limit']:.2f}: {', '.join(of['slower'])}" if of["slower"] else ""), of["races"] > 0 and not of["slower"]
    return judge


def parts(name, limit):
    """Of phalanx-bench train --profile, the rank that waits least, beside the step that the boards keep up."""
    def judge(figures):
        of = figures[name]
        profile = min(of["profiles"], key=lambda one: one["waiting"])
        text = f"{1e3 * profile['seconds']:,.1f} ms: " + ", ".join(f"{part} {1e3 * one['share']:,.1f}" for part, one in profile["parts"].items())
        text += f", waiting {1e3 * profile['waiting']:,.1f}"
        if limit in figures:
            text += f"; the limit's step {of['step_ms']['mean'] * of['tokens_per_s'] / figures[limit]['tokens_per_s']:,.1f} ms"
        return text, None
    return judge


def all_shapes(name, devices=1):
    def judge(figures):
        ratios, wanted = {}, shapes.of_devices(devices)
        for shape, entry in figures[name].items():
            (ours, _), (other, _) = shapes.best(entry, "ours"), shapes.best(entry, "anchor")
            if ours and other:
                ratios[shape] = ours / other
        if not ratios:
            raise InPart("")
        least = min(ratios, key=ratios.get)
        text = f"{len(ratios)} of {len(wanted)} shapes: least {ratios[least]:.3f} ({least}), median {statistics.median(ratios.values()):.3f}"
        good = ratios[least] >= shapes.GOAL and statistics.median(ratios.values()) >= shapes.GOAL_MEDIAN
        if len(ratios) < len(wanted) and ratios[least] >= shapes.GOAL:
            raise InPart(text)
        return text, good
    return judge


def steady(name):
    return lambda figures: ("; ".join(figures[name]["faults"]) or "nothing grows", not figures[name]["faults"])


def losses(names):
    """Of compare_losses.py --last."""
    def judge(figures):
        known = {name: figures[name] for name in names if name in figures}
        text = ", ".join(f"{of['means'][0]:.4f} and {of['means'][1]:.4f} ({percent(of['difference'], 2)})" for of in known.values())
        good = all(of["difference"] <= of["tolerance"] for of in known.values())
        if good and len(known) < len(names):
            raise InPart(text)
        return text, good
    return judge
