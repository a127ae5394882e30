#!/usr/bin/env bash
# The Kubernetes manifests render, and every object is valid by the published schemas. Exits with 77,
# and says why, where a tool for that is missing: scripts/setup brings both.
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

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in deploy/kustomize/*/; do
  name=$(basename "$folder")
  kubectl kustomize "$folder" > "$work/$name.yaml"
  "${validate[@]}" --strict --quiet "$work/$name.yaml"
  images=$(grep -cE '^ +(- )?image: .+(:.+|@sha256:.+)$' "$work/$name.yaml" || true)
  all=$(grep -cE '^ +(- )?image:' "$work/$name.yaml" || true)
  [ "$all" -gt 0 ] && [ "$images" = "$all" ] || { echo "$folder: an image has neither tag nor digest"; exit 1; }
  ! grep -nE 'runAsUser: 0$|privileged: true|allowPrivilegeEscalation: true' "$work/$name.yaml" ||
    { echo "$folder: asks for root or privileges"; exit 1; }
done
grep -qE '^USER [1-9][0-9]*' deploy/Containerfile || { echo "deploy/Containerfile: runs as root"; exit 1; }
