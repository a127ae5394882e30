#!/usr/bin/env bash
# Does the simulator find bugs? Plants each of tests/sim/planted/*.patch in a scratch worktree, builds phalanx-sim
# and demands that a seed fails within ten minutes of one processor, whatever else runs beside it:
# scripts/sim_planted.sh [PATCH...], all unless named.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
limit=${PHALANX_SIM_LIMIT:-600}  # seconds of a processor in which each is to be found
scratch=$(mktemp -d)
trap 'git -C "$repository" worktree remove --force "$scratch/tree" 2>/dev/null; rm -rf "$scratch"' EXIT
git worktree add --quiet --detach "$scratch/tree" HEAD
patches=("$@")
[ $# -gt 0 ] || patches=("$repository"/tests/sim/planted/*.patch)
for i in "${!patches[@]}"; do patches[i]=$(realpath "${patches[i]}"); done
cd "$scratch/tree"
cmake --preset release --log-level=WARNING >/dev/null
missed=0
search() {
  ulimit -t "$limit"
  local TIMEFORMAT=%U
  time build/release/tests/phalanx-sim --seed 1 --seeds 1000000 --lines 0 >"$scratch/out.log"
}
for patch in "${patches[@]}"; do
  git apply "$patch"
  if ! cmake --build build/release --target phalanx-sim -- -k 0 >"$scratch/build.log" 2>&1; then
    printf '%-24s does not compile: %s\n' "$(basename "$patch" .patch)" "$(grep -m 1 'error:' "$scratch/build.log")"
    missed=1
    git apply --reverse "$patch"
    continue
  fi
  status=0
  (search) 2>"$scratch/time" || status=$?
  if [ "$status" = 1 ]; then
    printf '%-24s found in %5.1f s: %s\n' "$(basename "$patch" .patch)" "$(tail -1 "$scratch/time")" \
      "$(head -1 "$scratch/out.log") $(tail -1 "$scratch/out.log" | cut -c1-160)"
  else
    printf '%-24s NOT found in %d s (status %d)\n' "$(basename "$patch" .patch)" "$limit" "$status"
    missed=1
  fi
  git apply --reverse "$patch"
done
exit $missed
