#!/usr/bin/env bash
# The commands of README.md and docs/, run as their readers would: commands.sh PROGRAMS [--write] [PAGE...|--without PAGE...]
#
# On a machine of its own, made of namespaces: a network with the addresses of the pages, a copy of the
# checkout at /home/me/phalanx that is dropped afterwards, processes that end with it. Needs root, overlayfs
# and tools that scripts/setup brings: says what is missing and skips (77) otherwise, and fails under CI, which
# names PHALANX_EXIT_WITHOUT_TOOL. --write puts into the pages what was printed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
not_here() { echo "$*"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }
if [ "${1-}" != --inside ]; then
  programs=$(realpath "$1")
  shift
  [ "$(id -u)" = 0 ] || { echo "a machine of its own is made by root alone"; exit 77; }  # this process may not
  for tool in ip openssl unshare; do command -v $tool > /dev/null || not_here "no $tool here"; done
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  unshare --mount sh -c 'mount -t tmpfs tmpfs "$0" && mkdir "$0/u" "$0/w" "$0/o" &&
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$0/u,workdir=$0/w" "$0/o"' "$work" "$source" 2> "$work.error" ||
    { cat "$work.error"; rm "$work.error"; exit 77; }  # this process may not mount
  rm -f "$work.error"
  /usr/bin/python3 "$source/examples/make_emoji.py" --count 200 "$work/emoji" > /dev/null
  unshare --mount --net --uts --pid --fork --kill-child --mount-proc --propagation private \
    "$0" --inside "$programs" "$work" "$@"
  exit
fi

programs=$2 work=$3
shift 3
hostname laptop
ip link set lo up
ip address add 10.0.0.5/32 dev lo
ip address add 10.0.0.6/32 dev lo
mount -t tmpfs tmpfs /home
mkdir -p /home/copy /home/work /home/me/phalanx /home/source
mount -t overlay overlay -o "lowerdir=$source,upperdir=/home/copy,workdir=/home/work" /home/me/phalanx
mount --bind "$source" /home/source
cd /home/me/phalanx
mkdir -p build/release/bin build/emoji
mount --bind "$programs" build/release/bin
cp -r "$work/emoji/." build/emoji/
mount -t tmpfs tmpfs /tmp
for name in $(compgen -e PHALANX_); do
  case $name in PHALANX_DEPS_DIR | PHALANX_EXIT_WITHOUT_TOOL) ;; *) unset "$name" ;; esac
done
# Where LibTorch and Python packages of tests are.
export PHALANX_DEPS_DIR=${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}
export HOME=/home/me LC_ALL=C.UTF-8 TZ=UTC PATH=/home/me/phalanx/build/release/bin:$PHALANX_DEPS_DIR/kubectl:$PHALANX_DEPS_DIR/etcd:$PATH
exec /usr/bin/python3 /home/source/tests/docs/commands.py /home/source "$@"
