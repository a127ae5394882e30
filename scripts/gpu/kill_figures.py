"""What kills of ranks come to (kill_ranks.py): the phases of losses and returns, the summary of a run, and whether that is what was wanted."""
import statistics

FLAT = 0.01  # of the memory in use


def phase_lines(figures, key, title):
    """A line for each phase: how long behind the first evidence it ended, and how long it took, at the median and at most."""
    lines = [title]
    for name in figures[0][key]:
        spans = [figure[key].get(name, [None, None]) for figure in figures]
        ends = [end for _, end in spans if end is not None]
        took = [end - begin for begin, end in spans if None not in (begin, end)]
        if took:
            lines.append(f"  {name}: ended after {statistics.median(ends):.0f} ms (most {max(ends)}), took {statistics.median(took):.0f} ms (most {max(took)})")
    return lines


def print_phases(figures):
    told = [(figures, "phases_ms", "phases of the losses")]
    told.append(([figure for figure in figures if "return_phases_ms" in figure], "return_phases_ms", "phases of the returns"))
    for some, key, title in told:
        if some:
            print("\n".join(phase_lines(some, key, f"{title}, behind the first evidence:")))


def whole(figures, stay_out=False):
    """Those kills behind which everything came that was waited for."""
    return [figure for figure in figures if ("step_ratio" if stay_out else "return_seconds") in figure]


def growth(used):
    """How much more it is, as a part of it, before the later half of the kills than before the earlier one: medians, since it changes from kill to kill
    whose process is new. The first kill is left out, since libraries are loaded behind it. None: too few kills."""
    used = used[1:]
    if len(used) < 8:
        return None
    half = len(used) // 2
    return statistics.median(used[-half:]) / statistics.median(used[:half]) - 1


def memory_growth(figures):
    """Of the devices' memory, the mean over devices."""
    return growth([statistics.mean(figure["memory_mib"]) for figure in figures if figure["memory_mib"]])


def of_processes(figures):
    """What all processes of the job have, and how that grows: resident memory, descriptors, themselves. Kills of releases before tell of none."""
    grown = {}
    for key in ("resident_mib", "anonymous_mib", "descriptors", "processes"):
        more = growth([figure[key] for figure in figures if key in figure])
        if more is not None:
            grown[key] = more
    return grown


def within(figures, seconds):
    return sum(figure["seconds"] <= seconds + figure["step_seconds"] for figure in figures)


def missing_allowed(kills):
    """Of so many kills."""
    return kills // 20


def summary(figures, before, after, options):
    """What the run comes to; `before` and `after` are healthy steps, in seconds, None: there are none."""
    figures = whole(figures, options.stay_out)
    pauses = [figure["return_pause_in_steps"] for figure in figures if figure.get("return_pause_in_steps") is not None]
    of = {
        "kills": len(figures), "wanted": options.kills, "complete": len(figures) == options.kills,
        "healthy_step_seconds_before": before, "healthy_step_seconds_after": after,
        "throughput_back": before / after if before and after else None,
        "return_pause_in_steps": statistics.median(pauses) if pauses else None, "return_pause_in_steps_max": max(pauses) if pauses else None}
    if figures:
        seconds = [figure["seconds"] for figure in figures]
        of.update({
            "seconds": seconds, "seconds_median": statistics.median(seconds), "seconds_max": max(seconds),
            "step_seconds": statistics.median(figure["step_seconds"] for figure in figures), "communicators": sorted({figure["communicators"] for figure in figures}),
            "steps_lost_max": max(figure["steps_lost"] for figure in figures), "steps_redone_max": max(figure["steps_redone"] for figure in figures),
            "memory_growth": memory_growth(figures), "growth_of_processes": of_processes(figures)})
        if options.within is not None:
            of.update({"limit_seconds": options.within, "within": within(figures, options.within)})
        if options.stay_out:
            one, world = figures[0], figures[0]["ranks"]
            kept = one["healthy_step_seconds"] / one["step_seconds"]
            ratio = one["step_ratio"]
            of.update({"throughput_kept": kept, "of_their_share": kept * world / (world - 1), "of_the_simulated": kept * ratio if ratio else None})
    return of


def summary_line(of):
    parts = []
    if of["throughput_back"] is not None:
        parts.append(f"{100 * of['throughput_back']:.1f} % of the throughput is back: a healthy step of {of['healthy_step_seconds_before']:.3f} s before the "
                     f"first kill, of {of['healthy_step_seconds_after']:.3f} s behind the last return")
    if of["return_pause_in_steps"] is not None:
        parts.append(f"a return pauses training for {of['return_pause_in_steps']:.2f} of a step (most {of['return_pause_in_steps_max']:.2f})")
    return "; ".join(parts)


def judge(figures, options):
    """Prints what became of all kills; whether it is what was wanted."""
    figures = whole(figures, options.stay_out)
    if not figures:
        print("no kill behind which all came that was waited for")
        return False
    seconds = sorted(figure["seconds"] for figure in figures)
    if options.stay_out:
        before, after, world = figures[0]["healthy_step_seconds"], figures[0]["step_seconds"], figures[0]["ranks"]
        ratio = figures[0]["step_ratio"]
        print(f"a step of {before:.3f} s before the loss and of {after:.3f} s behind it: {100 * before / after:.1f} % of the throughput with {world - 1} of {world} ranks, "
              f"{100 * before / after * world / (world - 1):.1f} % of their share"
              + (f"; the simulator has a step that is {ratio:.3f} times as long, of whose throughput that is {100 * before / after * ratio:.1f} %" if ratio else ""))
        return len(figures) == options.kills
    print(f"{len(figures)} of {options.kills} kills: the next decision after {statistics.median(seconds):.2f} s (most {seconds[-1]:.2f}), back in "
          f"{statistics.median(figure['return_seconds'] for figure in figures):.2f} s; at most {max(figure['steps_redone'] for figure in figures)} "
          f"steps redone, at most {max(figure['steps_lost'] for figure in figures)} that had been decided; memory of the GPUs in MiB before the first kill "
          f"{figures[0]['memory_mib']}, before the last {figures[-1]['memory_mib']}")
    in_use = memory_growth(figures)
    if in_use is not None:
        print(f"before the later half of the kills {100 * in_use:+.2f} % of memory is in use beside the earlier half: {'flat' if in_use <= FLAT else 'it grows'}")
    for key, more in of_processes(figures).items():
        print(f"{key} of all processes of the job: {figures[0][key]} before the first kill, {figures[-1][key]} before the last, {100 * more:+.2f} % from half to half")
    good = len(figures) == options.kills and (in_use is None or in_use <= FLAT)
    if options.lose is not None:
        good = good and max(figure["steps_lost"] for figure in figures) <= options.lose
    if options.within is None:
        return good
    met = within(figures, options.within)
    print(f"{met} of {len(figures)} within {options.within} s and a step of the new layout")
    return good and met >= len(figures) - missing_allowed(len(figures))
