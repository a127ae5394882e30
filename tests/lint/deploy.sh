#!/usr/bin/env bash
# The Kubernetes manifests render, with each component and with all together; every object is valid by the
# published schemas, and none is one that manifests.py refuses. The script that takes labels over from a
# node is tried on a server of the same answers. Skips (77), and says why, where a tool for that is missing,
# which scripts/setup brings; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

missing() { echo "$*"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }
deps=${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}
PATH=$deps/kubectl:$PATH
command -v kubectl > /dev/null || missing "no kubectl here"
kubectl version --client 2> /dev/null | grep -q 'Kustomize Version: v[4-9]' ||
  missing "this kubectl is older than 1.21 and knows no components"
tools=$deps/kubernetes-validate
if command -v kubernetes-validate > /dev/null; then
  validate=(kubernetes-validate)
elif [ -x "$tools/bin/kubernetes-validate" ]; then
  validate=(env "PYTHONPATH=$tools" python3 "$tools/bin/kubernetes-validate")
else
  missing "no kubernetes-validate here"
fi
check() { PYTHONPATH=$tools python3 tests/lint/manifests.py "$@"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# NAME FLAGS: what $work/NAME.yaml has is good. There are no published schemas of the operator's own kinds.
examine() {
  local name=$1
  shift
  awk -v RS='---\n' -v ORS='---\n' '!/apiVersion: (monitoring.coreos.com|cert-manager.io)/' "$work/$name.yaml" > "$work/known.yaml"
  "${validate[@]}" --strict --quiet "$work/known.yaml" || { echo "$name is not valid"; exit 1; }
  check "$@" < "$work/$name.yaml" || { echo "$name is refused"; exit 1; }
}

components=(deploy/kustomize/components/*/)
for folder in deploy/kustomize/*/; do
  name=$(basename "$folder")
  [ "$name" != components ] || continue
  kubectl kustomize "$folder" > "$work/$name.yaml"
  flags=()
  [[ $name != production* ]] || flags=(--apart)
  examine "$name" "${flags[@]}"
done

# BASE [COMPONENT...]: what an overlay of somebody's own is.
combine() {
  mkdir -p "$work/own"
  up=$(realpath --relative-to "$work/own" .)
  {
    printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: phalanx\n'
    printf 'resources:\n- %s\n' "$up/deploy/kustomize/$1"
    shift
    [ $# = 0 ] || printf 'components:\n'
    for component; do
      [ -z "$component" ] || printf -- "- $up/%s\n" "$component"
    done
  } > "$work/own/kustomization.yaml"
  kubectl kustomize "$work/own"
}
for base in base gpu; do
  for component in "${components[@]}"; do
    flags=()
    [[ $component != */infiniband/ ]] || flags=(--node)
    [[ $component != */egress/ ]] || flags=(--egress)
    combine "$base" "$component" > "$work/combined.yaml"
    ! cmp -s "$work/combined.yaml" "$work/$base.yaml" || { echo "$component changes nothing of $base"; exit 1; }
    examine combined "${flags[@]}"
  done
  # cert-manager brings join-token along.
  combine "$base" "${components[@]/*join-token*/}" > "$work/combined.yaml"
  examine combined --node --egress
done

# The check itself: each of these changes is one that it has to see.
planted() {  # FROM [FLAG...] < CHANGES
  local from=$1 change refused
  shift
  while IFS= read -r change; do
    sed -E "$change" "$work/$from.yaml" > "$work/spoiled.yaml"
    ! cmp -s "$work/$from.yaml" "$work/spoiled.yaml" || { echo "changes nothing of $from: $change"; exit 1; }
    refused=0
    check "$@" < "$work/spoiled.yaml" > /dev/null || refused=$?
    [ "$refused" = 3 ] || { echo "not seen by manifests.py in $from: $change"; exit 1; }
  done
}
planted base << 'CHANGES'
s/(image: phalanx-worker):.*/\1/
s/(image: phalanx-coordinator):.*/\1:latest/
s/(image: phalanx-coordinator):.*/\1@sha256:12/
/^ +limits:$/,+1d
/^ +cpu: /d
s/runAsNonRoot: true/runAsNonRoot: false/
s/runAsUser: .*/runAsUser: 0/
/runAsUser: /d
s/allowPrivilegeEscalation: false/allowPrivilegeEscalation: true/
s/readOnlyRootFilesystem: true/readOnlyRootFilesystem: false/
s/( +)terminationGracePeriodSeconds: .*/\1hostNetwork: true/
s/( +)- ALL/\1- ALL\n\1add: [IPC_LOCK]/
s/emptyDir: *$/hostPath: {path: \/tmp}/;s/^ +(medium|sizeLimit): .*//
s/automountServiceAccountToken: false/automountServiceAccountToken: true/
s/--grace=.*/--grace=55/
s/sizeLimit: 4Gi/sizeLimit: 40Gi/
s/livenessProbe:/xProbe:/
/^ +- phalanx-worker$/,$s/livenessProbe:/xProbe:/
/^ +- phalanx-worker$/,$s/startupProbe:/xProbe:/
s/path: \/livez/path: \/readyz/
s/--metrics=0.0.0.0:4446/--metrics=0.0.0.0:4447/
/--metrics=0.0.0.0:4446/d
/--write-folder/d
s/--write-folder=.*/--write-folder=\//
s/path: \/readyz/path: \/livez/
s/enforce: restricted/enforce: privileged/
s/(kind: PodDisruptionBudget)/\1/;s/kind: StatefulSet/kind: DaemonSet/
s/kind: NetworkPolicy/kind: Other/
s/kind: PodDisruptionBudget/kind: Other/
s/--listen=0.0.0.0:4444/--listen=0.0.0.0:4443/
s/--http=0.0.0.0:4445/--http=0.0.0.0:4447/
s/name: POD_NAME/name: OTHER/
s/mountPath: \/dev\/shm/mountPath: \/dev\/other/
s/medium: Memory/medium: ""/
s/--store=.*/--store=\/tmp\/store/
s/--coordinator=.*/--coordinator=phalanx-coordinator:4443/
s/--coordinator=.*/--coordinator=other:4444/
s/targetPort: grpc/targetPort: other/
s/serviceName: phalanx-worker/serviceName: other/
s/serviceAccountName: phalanx/serviceAccountName: other/
/app.kubernetes.io\/instance:/d
/app.kubernetes.io\/managed-by:/d
/app.kubernetes.io\/component:/d
/^kind: Namespace/,/^---/{/app.kubernetes.io\/version:/d}
s/(app.kubernetes.io\/version): .*/\1: 0.2.0/
s/(app.kubernetes.io\/component): coordinator/\1: worker/
s/^( +)matchLabels:/&\n\1  app.kubernetes.io\/part-of: phalanx/
/volumeClaimTemplates:/,$s/^( +)name: (store|state)$/&\n\1labels: {a: b}/
CHANGES
planted gpu << 'CHANGES'
s/--devices=8/--devices=4/
s/nvidia.com\/gpu: 8/nvidia.com\/gpu: 4/
/nvidia.com\/gpu: 8/d
s/key: nvidia.com\/gpu.present/key: other/
s/key: nvidia.com\/gpu$/key: other/
s/effect: NoSchedule/effect: NoExecute/
s/name: ZONE/name: OTHER/
CHANGES
combine gpu deploy/kustomize/components/infiniband/ > "$work/infiniband.yaml"
planted infiniband --node << 'CHANGES'
/hostNetwork: true/d
/dnsPolicy: /d
s/- IPC_LOCK/- SYS_ADMIN/
s/path: \/dev\/infiniband/path: \/dev/
s/mountPath: \/dev\/infiniband/mountPath: \/dev\/other/
CHANGES
combine gpu deploy/kustomize/components/node-labels/ > "$work/labelled.yaml"
planted labelled << 'CHANGES'
s/^  - get$/  - "*"/
s/^  - nodes$/  - secrets/
s/kind: ClusterRoleBinding/kind: Other/
/kind: ClusterRoleBinding/,$s/namespace: phalanx$/namespace: other/
s/kind: ServiceAccount$/kind: Other/
CHANGES
planted production --apart << 'CHANGES'
s/topologyKey: .*/topologyKey: zone/
/^ +- phalanx-coordinator$/d
s/podAntiAffinity:/podAffinity:/
CHANGES
planted production-gpu --apart << 'CHANGES'
s/operator: NotIn/operator: In/
CHANGES
# What asks for plaintext, in each overlay.
for folder in deploy/kustomize/*/; do
  base=$(basename "$folder")
  [ "$base" != components ] || continue
  flags=()
  [[ $base != production* ]] || flags=(--apart)
  planted "$base" "${flags[@]}" << 'CHANGES'
s/^( +)- --listen=.*/&\n\1- --plaintext/
s/^( +)- --coordinator=.*/&\n\1- --plaintext/
s/^( +)- --metrics=.*/&\n\1- --metrics-plaintext/
s/^( +)- --http=.*/&\n\1- --http-plaintext/
s/^( +)- --store=.*/&\n\1- --etcd-plaintext/
CHANGES
done
for base in base gpu; do
  planted $base << 'CHANGES'
s/scheme: HTTPS/scheme: HTTP/
/^ +- --coordinator=/,$s/scheme: HTTPS/scheme: HTTP/
/^ +scheme: HTTPS/d
s/--tls-ca=.*/--plaintext/
s/--metrics-certificate=.*/--metrics-plaintext/
s/name: POD_NAME/name: PHALANX_PLAINTEXT/
s/^( +)prometheus.io\/scheme: https/\1prometheus.io\/scheme: http/
/prometheus.io\/scheme/d
s/^( +)targetPort: grpc/&\n\1appProtocol: kubernetes.io\/h2c/
s/defaultMode: 288/defaultMode: 420/
s/--tls-ca=.*/--tls-ca=\/data\/ca.pem/
/--tls-ca=/d
/--tls-key=/d
/--tls-certificate=/d
/--metrics-key=/d
/--metrics-certificate=/d
s/--metrics-key=.*/--metrics-key=\/data\/key.pem/
/--tls-revoked=/d
s/--tls-revoked=.*/--tls-revoked=\/data\/revoked.pem/
/^ +- --coordinator=/,${/--tls-revoked=/d}
/^ +readinessProbe:/,/httpGet:/s/httpGet:/grpc: {port: 4444}\n          other:/
CHANGES
done
for base in base gpu; do
  combine $base deploy/kustomize/components/{service-monitor,cert-manager,etcd-store}/ > "$work/issued-$base.yaml"
  examine "issued-$base"
  PYTHONPATH=$tools tests/lint/issued.py < "$work/issued-$base.yaml" || { echo "certificates of $base are refused"; exit 1; }
done
while IFS= read -r change; do
  sed -E "$change" "$work/issued-base.yaml" > "$work/spoiled.yaml"
  ! cmp -s "$work/issued-base.yaml" "$work/spoiled.yaml" || { echo "changes nothing of certificates: $change"; exit 1; }
  ! PYTHONPATH=$tools tests/lint/issued.py < "$work/spoiled.yaml" > /dev/null || { echo "not seen by issued.py: $change"; exit 1; }
done << 'CHANGES'
s/^    secretName: phalanx-ca$/    secretName: other/
s/^  secretName: phalanx-join-authority$/  secretName: other/
s/name: phalanx-coordinator-certificate/name: other/
s/name: phalanx-metrics-certificate/name: other/
s/rotationPolicy: Never/rotationPolicy: Always/
s/isCA: true/isCA: false/
s/^  - server auth/  - client auth/
s/^  - client auth/  - server auth/
s/phalanx:viewer/phalanx:submitter/
s/^  - phalanx-coordinator-1$/  - other/
s/^  - phalanx-worker$/  - other/
/^  issuerRef:/,+2s/name: phalanx$/name: other/
CHANGES
planted issued-base << 'CHANGES'
s/defaultMode: 288/defaultMode: 420/
/--tls-revoked=/d
CHANGES
combine base deploy/kustomize/components/egress/ > "$work/held.yaml"
planted held --egress << 'CHANGES'
s/^  - Egress$//
/^  egress:/,/^  ingress:/s/cidr: .*/cidr: 0.0.0.0\/0/
s/k8s-app: kube-dns/k8s-app: other/
s/phalanx\/etcd: "true"/other: "true"/
s/^    - port: 443$/    - port: 443\n      protocol: TCP\n  - ports:\n    - port: 80/
/^    - ipBlock:/,+1d
/^  egress:/,/^  ingress:/s/app.kubernetes.io\/name: phalanx-coordinator/app.kubernetes.io\/name: phalanx-worker/
/^  egress:/,/^  ingress:/{/^    - port: (443|2379)$/,+1d}
CHANGES
for base in base gpu production production-gpu; do
  flags=()
  [[ $base != production* ]] || flags=(--apart)
  combine $base deploy/kustomize/components/etcd-store/ > "$work/several-$base.yaml"
  examine "several-$base" "${flags[@]}"
done
planted several-base << 'CHANGES'
s/replicas: 2/replicas: 1/
s/--advertise=.*/--advertise=phalanx-coordinator:4444/
s/--advertise=.*/--advertise=$(POD_NAME):4445/
/--advertise=/d
/--etcd-ca=/d
/--etcd-key=/d
/--etcd-certificate=/d
s/--etcd-key=.*/--etcd-key=\/data\/key.pem/
s/name: POD_NAME/name: OTHER/
s/--coordinator=.*/--coordinator=phalanx-coordinator-0:4444/
s/--coordinator=.*/--coordinator=phalanx-coordinator:4444/
s/--store=.*/--store=\/var\/lib\/phalanx\/store/
s/(statefulset.kubernetes.io\/pod-name: phalanx-coordinator)-1/\1-0/
/statefulset.kubernetes.io\/pod-name: /d
s/topologyKey: .*/topologyKey: zone/
/^kind: PodDisruptionBudget/,/^---/s/phalanx-coordinator$/phalanx-worker/
s/defaultMode: 288/defaultMode: 420/
/readinessProbe:/,/scheme:/s/path: \/readyz[?]standby=ready/path: \/readyz/
s/^( +)- --store=.*/&\n\1- --etcd-plaintext/
CHANGES
combine base deploy/kustomize/components/service-monitor/ > "$work/monitored.yaml"
examine monitored
planted monitored << 'CHANGES'
/kind: ServiceMonitor/,$s/(app.kubernetes.io\/name: phalanx)-coordinator/\1-other/
/kind: PodMonitor/,$s/port: metrics/port: other/
s/scheme: https/scheme: http/
/kind: ServiceMonitor/,/^---/s/scheme: https/scheme: http/
/kind: PodMonitor/,/^---/s/scheme: https/scheme: http/
/kind: ServiceMonitor/,/^---/s/tlsConfig:/otherConfig:/
/kind: PodMonitor/,/^---/s/keySecret:/otherSecret:/
CHANGES
for base in production production-gpu gpu; do
  combine $base deploy/kustomize/components/join-token/ > "$work/joining-$base.yaml"
  examine "joining-$base"
done
for base in production production-gpu gpu; do
  planted joining-$base << 'CHANGES'
/join-token-file/d
s/--join-token-file=.*/&\n        - --tls-certificate=\/x/
s/--join-token-file=.*/--join-token-file=\/etc\/phalanx\/token/
s/subPathExpr: token-.*/subPathExpr: token/
/subPathExpr/d
s/defaultMode: 288/defaultMode: 292/
/defaultMode: 288/d
/fsGroup: /d
/--join-ca-key/d
/--join-ca-certificate/d
CHANGES
done
planted joining-production << 'CHANGES'
s/subPathExpr: token-\$\(POD_NAME\)/subPathExpr: token-$(NODE_NAME)/
CHANGES

python3 tests/lint/node_labels.py deploy/kustomize/components/node-labels/node_labels.sh
awk '/^FROM/ {user = ""} /^USER [1-9]/ {user = $2} END {exit user == ""}' deploy/Containerfile ||
  { echo "deploy/Containerfile: runs as root"; exit 1; }
awk '/^FROM/ {wrong = wrong || !($2 ~ /^\$\{[A-Z_]+\}$/ || $2 in stages); stages[$4]; ++count} END {exit wrong || count < 4}' deploy/Containerfile ||
  { echo "deploy/Containerfile: a stage begins with an image that no argument names"; exit 1; }
