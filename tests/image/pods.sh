# Part of image.sh: the pods of the overlay single-node, as podman plays them.
for tool in podman runc catatonit kubectl; do
  command -v "$tool" > /dev/null || skip "the images are good; no $tool here, so no pods of them"
done
# Containers may open no more than this shell, and no daemon takes events.
cat > "$work/containers.conf" << 'CONF'
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
events_logger = "none"
CONF
export CONTAINERS_CONF=$work/containers.conf
engine run --rm --network none localhost/phalanx-worker:test true > "$work/first.log" 2>&1 ||
  skip "the images are good; no container starts here: $(tail -n 1 "$work/first.log")"
network=phalanx-$$
engine network create "$network" > "$work/network.log" 2>&1 ||
  skip "the images are good; no network for containers here: $(tail -n 1 "$work/network.log")"
echo "$network" > "$work/network"

say "certificates"
command -v openssl > /dev/null || skip "the images are good; no openssl here, so no certificates for pods"
make_ca() { "$source/scripts/make_ca" "$work/ca" "$@" > "$work/make_ca.log" 2>&1 || fail "no certificates"; }
make_ca coordinator phalanx-coordinator
make_ca worker phalanx-worker-0
make_ca node phalanx-worker
make_ca user alice submitter
# For the pods' group, as the secrets of the manifests are: secret NAME FILE...
secret() {
  install -d -m 755 "$work/secrets/$1"
  (cd "$work/ca" && install -m 440 -g 65532 -t "$work/secrets/$1" "${@:2}")
}
secret phalanx-coordinator-tls ca.pem coordinator.pem coordinator-key.pem revoked.pem
secret phalanx-worker-tls ca.pem worker-phalanx-worker-0.pem worker-phalanx-worker-0-key.pem
secret phalanx-worker-metrics-tls node-phalanx-worker.pem node-phalanx-worker-key.pem revoked.pem

say "pods"
kubectl kustomize "$source/deploy/kustomize/single-node" |
  PYTHONPATH=${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}/kubernetes-validate python3 "$here/pods.py" "$work" > "$work/names"
while read -r kind name group; do
  [ "$kind" != volume ] || engine volume create --opt "o=uid=$group,gid=$group" "$name"
done < "$work/names" > /dev/null
play() { engine kube play --network "$network" --log-driver k8s-file "$work/$1.yaml" > "$work/play-$1.log" 2>&1 || fail "podman does not play $1"; }
# Files of this machine, of the pods' user, below /data: put FILE...
put() { tar -C "$work" -c --owner 65532 --group 65532 "$@" | engine exec -i phalanx-coordinator-coordinator tar -C /data -x; }
# As alice, whose certificate is in the pod for that.
ask() {
  engine exec --env PHALANX_SERVER=localhost:4444 --env PHALANX_TLS_CA=/data/ca/ca.pem \
    --env PHALANX_TLS_CERTIFICATE=/data/ca/user-alice.pem --env PHALANX_TLS_KEY=/data/ca/user-alice-key.pem \
    phalanx-coordinator-coordinator phalanx "$@"
}
# Until the words are in what the command prints: await SECONDS WORDS COMMAND...
await() {
  local deadline=$((SECONDS + $1)) words=$2
  shift 2
  until "$@" > "$work/await.log" 2>&1 && grep -q "$words" "$work/await.log"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "no '$words' in: $* ($(tail -n 3 "$work/await.log"))"
    read -r -t 0.5 <> <(:) || true
  done
}

play phalanx-coordinator
put ca/ca.pem ca/user-alice.pem ca/user-alice-key.pem
await 60 'no nodes' ask nodes
play phalanx-worker-0
await 60 ' Ready ' ask nodes
[ "$(engine exec phalanx-worker-0-worker id -u)" = 65532 ] || fail "the worker runs as another user"
! engine exec phalanx-worker-0-worker touch /usr/x 2> /dev/null || fail "the root of the worker can be written"
# As the probe of that path, which podman does not make, and which asks for no name: probe HOST:PORT PATH
probe() { await 20 '^200$' engine exec phalanx-coordinator-coordinator curl --silent --insecure --output /dev/null --write-out '%{http_code}\n' "https://$1$2"; }
for path in /livez /readyz; do
  probe localhost:4445 $path
  probe phalanx-worker-0:4446 $path
done
for port in localhost:4445 phalanx-worker-0:4446; do
  await 20 '^401$' engine exec phalanx-coordinator-coordinator curl --silent --insecure --output /dev/null --write-out '%{http_code}\n' "https://$port/metrics"
  ! engine exec phalanx-coordinator-coordinator curl --silent --fail --max-time 10 --output /dev/null "http://$port/livez" || fail "$port answers in plaintext"
done

say "data"
/usr/bin/python3 "$source/examples/make_emoji.py" "$work/emoji" > "$work/emoji.log" 2>&1 || fail "no data"
sed -e 's/steps: 500/steps: 20/' -e 's/warmup_steps: 60/warmup_steps: 5/' "$source/examples/emoji-captions.yaml" > "$work/emoji/job.yaml"
sed -e 's/name: emoji-captions/name: long/' -e 's/output: .*/output: runs\/long\n  checkpoint: {every: 1000}/' \
  "$source/examples/emoji-captions.yaml" > "$work/emoji/long.yaml"
chmod -R a+rX "$work/emoji"
put emoji

say "the emoji job"
ask submit --wait /data/emoji/job.yaml > "$work/job.log" 2>&1 || fail "the job has not succeeded"
[ "$(engine exec phalanx-worker-0-worker sh -c 'wc -l < /data/emoji/runs/emoji/metrics.jsonl')" = 20 ] || fail "metrics of another number of steps"
tail -n 4 "$work/job.log"

say "a worker that is stopped"
ask submit /data/emoji/long.yaml > "$work/long.log" 2>&1
await 120 '"step": [3-9]' ask get long -o json
# Of the container, as the cluster does: podman takes the network from a pod before its containers have ended.
engine stop --time 60 phalanx-worker-0-worker > /dev/null
await 20 'is drained: it goes on behind step' ask get long -o json
engine pod rm --force phalanx-worker-0 > /dev/null
play phalanx-worker-0
await 120 'Running' ask list --state Running
ask list
ask cancel long > "$work/cancel.log" 2>&1
engine stop --time 60 phalanx-worker-0-worker > /dev/null
