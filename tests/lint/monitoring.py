#!/usr/bin/env python3
"""The alerts and the dashboard of deploy/monitoring use metrics that coordinator and workers export, and
docs/sight.md lists every one of them, and the bounds of the buckets of histograms.

monitoring.py SOURCE_ROOT
monitoring.py SOURCE_ROOT --queries   prints those of the dashboard as rules, for a promtool that reads them (alerts.sh)
"""
import json
import pathlib
import re
import sys

NAME = re.compile(r"\bphalanx_[a-z_]+\b")
DECLARED = re.compile(r'(Build(Counter|Gauge|Histogram)\(\)\s*\.Name\(|OfJobs\(gauges,\s*|(?:KnownNow|Counted|GaugeOf|CounterOf)\(\s*)"(phalanx_[a-z_]+)"')
SOURCES = ("coordinator/metrics/metrics.cc", "worker/agent/node_metrics.cc")


BOUNDS = re.compile(r"BucketBoundaries (k\w+) = \{([^}]*)\};")
# One that is added where it is made, or by the name of the member that has it.
BUCKETS = re.compile(r"""\.Name\("(phalanx_[a-z_]+)"\)(?:(?!\.Name)[^;])*?\.Add\(\{\}, (k\w+)\)|series_->([a-z_]+)\.Add\(\{\{(?:(?!\.Add)[^;])*?\}\}, (k\w+)\)""")


def buckets_of(root):
    """Of each histogram the bounds, as numbers."""
    text = (root / SOURCES[0]).read_text(encoding="utf-8")
    bounds = {name: [float(bound) for bound in values.split(",")] for name, values in BOUNDS.findall(text)}
    return {own or "phalanx_" + member: bounds[constant or of_member] for own, constant, member, of_member in BUCKETS.findall(text)}


def buckets_told(page):
    table = page.split("\n| Histogram | Buckets up to |\n")[-1].split("\n\n")[0]
    return {name: [float(bound) for bound in values.split(",")]
            for name, values in re.findall(r"^\| `(phalanx_[a-z_]+)` \| ([0-9., ]+) \|$", table, re.MULTILINE)}


def exported(root):
    """Names of samples, and of families."""
    families = {match[3]: match[2] or "Gauge" for source in SOURCES
                for match in DECLARED.finditer((root / source).read_text(encoding="utf-8"))}
    samples = set()
    for name, kind in families.items():
        samples |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "Histogram" else {name}
    return samples, set(families)


def names_in(text):
    # A quoted word is the value of a label.
    return set(NAME.findall(re.sub(r'"[^"]*"', "", text)))


def queries_of(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def as_rules(queries):
    """JSON is YAML, too. A variable of the dashboard is within a string, where any word does."""
    return json.dumps({"groups": [{"name": "dashboard", "rules": [
        {"record": f"dashboard:query:{number}", "expr": query} for number, query in enumerate(queries)]}]})


def main():
    root = pathlib.Path(sys.argv[1])
    folder = root / "deploy/monitoring"
    if "--queries" in sys.argv[2:]:
        print(as_rules(queries_of(json.loads((folder / "grafana-dashboard.json").read_text(encoding="utf-8")))))
        return 0
    samples, families = exported(root)
    errors = [f"{source}: its metrics are not found any more" for source in SOURCES
              if len(DECLARED.findall((root / source).read_text(encoding="utf-8"))) <= 20]

    rules = (folder / "phalanx.rules.yaml").read_text(encoding="utf-8")
    expressions = re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    alerts = re.findall(r"^ +- alert: (\w+)$", rules, re.MULTILINE)
    if len(alerts) == 0 or len(alerts) != len(expressions):
        errors.append("phalanx.rules.yaml: not one line of expr to an alert")
    dashboard = json.loads((folder / "grafana-dashboard.json").read_text(encoding="utf-8"))
    queries = queries_of(dashboard)
    queries += [re.sub(r"label_values\((\w+),.*", r"\1", variable["query"]["query"])
                for variable in dashboard["templating"]["list"] if isinstance(variable["query"], dict)]
    for where, texts in (("phalanx.rules.yaml", expressions), ("grafana-dashboard.json", queries)):
        used = set().union(*map(names_in, texts))
        if not used:
            errors.append(f"{where}: uses no metric")
        errors += [f"{where}: no program exports {name}" for name in sorted(used - samples)]
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(ids) != len(set(ids)):
        errors.append("grafana-dashboard.json: two panels have one id")

    tests = (folder / "phalanx.rules.test.yaml").read_text(encoding="utf-8")
    errors += [f"phalanx.rules.test.yaml: {alert} is not tried" for alert in alerts
               if len(re.findall(rf"alertname: {alert}\b", tests)) < 2]

    page = (root / "docs/sight.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(phalanx_[a-z_]+)", page, re.MULTILINE))
    errors += [f"docs/sight.md: does not list {name}" for name in sorted(families - told)]
    errors += [f"docs/sight.md: no program exports {name}" for name in sorted(told - families)]

    buckets, listed = buckets_of(root), buckets_told(page)
    histograms = {sample.removesuffix("_bucket") for sample in samples if sample.endswith("_bucket")}
    errors += [f"{SOURCES[0]}: the buckets of {name} are not found" for name in sorted(histograms - set(buckets))]
    errors += [f"docs/sight.md: the buckets of {name} are {buckets.get(name)} and not {listed.get(name)}"
               for name in sorted(set(buckets) | set(listed)) if buckets.get(name) != listed.get(name)]

    print("\n".join(errors) or f"{len(families)} metrics, {len(alerts)} alerts, {len(queries)} queries")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
