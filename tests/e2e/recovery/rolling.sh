#!/usr/bin/env bash
# A cluster of the release before is upgraded while a job trains (rolling_test.cc): its programs, ranks included, are
# built from its sources first, which takes as long as a build of Phalanx.
#
#   PHALANX_OLDER_TEST=on [PHALANX_OLDER_PROGRAMS=FOLDER] tests/e2e/recovery/rolling.sh TEST_PROGRAM
#
# FOLDER: of such programs that are built already. Skips (77) unless it is asked for.
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }

[ "${PHALANX_OLDER_TEST:-off}" = on ] || skip "takes a build of the release before; PHALANX_OLDER_TEST=on asks for it"
if [ -z "${PHALANX_OLDER_PROGRAMS:-}" ]; then
  PHALANX_OLDER_PROGRAMS=$("$(dirname "$0")/../../../scripts/record_older" --build)
fi
for program in phalanx-coordinator phalanx-worker phalanx-rank; do
  [ -x "$PHALANX_OLDER_PROGRAMS/$program" ] || { echo "no $program in $PHALANX_OLDER_PROGRAMS"; exit 1; }
done
export PHALANX_OLDER_PROGRAMS
exec "$1" --gtest_filter='RollingTest.*'
