#!/usr/bin/env bash
# The Kubernetes manifests of base and overlays render, every object is valid by the published schemas,
# and no pod is one that manifests.py refuses. Exits with 77, and says why, where a tool for that is
# missing: scripts/setup brings both.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v kubectl > /dev/null || { echo "skipped: no kubectl here"; exit 77; }
tools=${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}/kubernetes-validate
if command -v kubernetes-validate > /dev/null; then
  validate=(kubernetes-validate)
elif [ -x "$tools/bin/kubernetes-validate" ]; then
  validate=(env "PYTHONPATH=$tools" python3 "$tools/bin/kubernetes-validate")
else
  echo "skipped: no kubernetes-validate here"; exit 77
fi
check() { PYTHONPATH=$tools python3 tests/lint/manifests.py; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in deploy/kustomize/*/; do
  name=$(basename "$folder")
  kubectl kustomize "$folder" > "$work/$name.yaml"
  "${validate[@]}" --strict --quiet "$work/$name.yaml"
  check < "$work/$name.yaml" || { echo "$folder is refused"; exit 1; }
done

# The check itself: each of these changes is one that it has to see.
while IFS= read -r change; do
  sed -E "$change" "$work/base.yaml" > "$work/spoiled.yaml"
  ! cmp -s "$work/base.yaml" "$work/spoiled.yaml" || { echo "changes nothing: $change"; exit 1; }
  ! check < "$work/spoiled.yaml" > /dev/null || { echo "not seen by manifests.py: $change"; exit 1; }
done << 'CHANGES'
s/(image: phalanx):.*/\1/
s/(image: phalanx):.*/\1:latest/
s/(image: phalanx):.*/\1@sha256:12/
/^ +limits:$/,+1d
/^ +cpu: /d
s/runAsNonRoot: true/runAsNonRoot: false/
s/runAsUser: .*/runAsUser: 0/
/runAsUser: /d
s/allowPrivilegeEscalation: false/allowPrivilegeEscalation: true/
s/readOnlyRootFilesystem: true/readOnlyRootFilesystem: false/
s/( +)terminationGracePeriodSeconds: .*/\1hostNetwork: true/
CHANGES
grep -qE '^USER [1-9][0-9]*' deploy/Containerfile || { echo "deploy/Containerfile: runs as root"; exit 1; }
