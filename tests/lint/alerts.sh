#!/usr/bin/env bash
# Each alert of deploy/monitoring fires for what it is there for, and not before, and the queries of its dashboard
# are some. Skips (77) where there is no promtool, which scripts/setup brings; under CI, which names
# PHALANX_EXIT_WITHOUT_TOOL, it fails.
set -euo pipefail
cd "$(dirname "$0")/../../deploy/monitoring"

deps=${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}
promtool=$(command -v promtool || echo "$deps/promtool/promtool")
[ -x "$promtool" ] || { echo "no promtool here"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }
"$promtool" check config prometheus.yaml
"$promtool" test rules phalanx.rules.test.yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 ../../tests/lint/monitoring.py ../.. --queries > "$work/queries.yaml"
"$promtool" check rules "$work/queries.yaml"
# The check itself: a parenthesis that is missing is one that it has to see.
sed 's/)"/"/' "$work/queries.yaml" > "$work/spoiled.yaml"
! "$promtool" check rules "$work/spoiled.yaml" > /dev/null 2>&1 || { echo "a query with a parenthesis too few passes"; exit 1; }
