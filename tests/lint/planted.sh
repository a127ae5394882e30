#!/usr/bin/env bash
# Every planted bug of the simulator (tests/sim/planted) still fits the code that it spoils.
set -uo pipefail
cd "$(dirname "$0")/../.."
status=0
for patch in tests/sim/planted/*.patch; do
  git apply --check "$patch" || { echo "$patch does not apply: make it again"; status=1; }
done
exit $status
