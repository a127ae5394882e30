#!/bin/sh
# Writes the labels of this pod's node as flags of phalanx-worker, one a line: node_labels.sh FILE
#
# Keys and values of labels hold letters, digits and ._/- alone, so a shell may split the lines into words.
#   NODE_NAME    the node
#   NODE_LABELS  extended regular expression of the keys that are taken
#   FAILURE_DOMAIN  key of the label that says what the node fails together with; empty: none does. A node's own
#                phalanx/failure-domain goes before it.
set -eu
account=${SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
api=${KUBERNETES_API:-https://kubernetes.default.svc}
# The token goes in by standard input: arguments can be read by others.
{ printf 'Authorization: Bearer '; cat "$account/token"; } |
  curl --fail --silent --show-error --retry 20 --retry-connrefused --retry-delay 3 --max-time 10 \
    --cacert "$account/ca.crt" --header @- --output "$1.node" "$api/api/v1/nodes/$NODE_NAME"
jq --raw-output --arg keys "$NODE_LABELS" --arg domain "$FAILURE_DOMAIN" \
  '(.metadata.labels // {}) as $all
   | ($all["phalanx/failure-domain"] // $all[$domain] // "") as $value
   | $all | with_entries(select(.key | test($keys))) | del(.["phalanx/failure-domain"])
   | if $value == "" then . else .["phalanx/failure-domain"] = $value end
   | to_entries[] | "--label=\(.key)=\(.value)"' "$1.node" > "$1.new"
rm "$1.node"
mv "$1.new" "$1"
echo "node $NODE_NAME: $(wc -l < "$1") labels taken over"
