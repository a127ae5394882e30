#!/usr/bin/env bash
# Each alert of deploy/monitoring fires for what it is there for, and not before. Exits with 77, and says
# why, where there is no promtool: scripts/setup brings it.
set -euo pipefail
cd "$(dirname "$0")/../../deploy/monitoring"

deps=${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}
promtool=$(command -v promtool || echo "$deps/promtool/promtool")
[ -x "$promtool" ] || { echo "skipped: no promtool here"; exit 77; }
"$promtool" check config prometheus.yaml
"$promtool" test rules phalanx.rules.test.yaml
