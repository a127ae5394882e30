#!/usr/bin/env bash
# scripts/quickstart on a fresh Debian 12, which debootstrap makes: how long it takes from a machine without
# a compiler to the first step of training, part by part, what it installs, that none of that is what only
# tests need, and that it takes less than 5 minutes, which two idle cores do. A step later it is stopped.
#
#   PHALANX_QUICKSTART_TEST=on [PHALANX_QUICKSTART_SECONDS=300] tests/package/quickstart.sh
#
# Needs root, debootstrap, a mirror of Debian and whence scripts/setup fetches LibTorch; says what is missing
# and skips (77) otherwise. Takes minutes and both, and so skips unless it is asked for.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; tail -n 15 "$work/log" 2> /dev/null || true; exit 1; }

[ "${PHALANX_QUICKSTART_TEST:-off}" = on ] || skip "takes minutes and a network; PHALANX_QUICKSTART_TEST=on asks for it"
[ "$(id -u)" = 0 ] || skip "a root is made by root alone"
for tool in debootstrap git unshare; do
  command -v "$tool" > /dev/null || skip "no $tool here; apt-get install debootstrap git"
done
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || skip "apt knows no mirror of Debian 12 here"
work=$(mktemp -d)
session=
leave() {
  [ -z "$session" ] || kill -KILL "$session" 2> /dev/null || true  # process 1 of what runs in the root
  rm -rf --one-file-system "$work"
}
trap leave EXIT

debootstrap --variant=minbase bookworm "$work/root" "$mirror" > "$work/debootstrap" 2>&1 ||
  skip "debootstrap: $(tail -n 1 "$work/debootstrap")"
umount "$work/root/proc" "$work/root/sys" 2> /dev/null || true
# As this machine reaches the network: names, security's versions, authorities of its own.
cp /etc/resolv.conf "$work/root/etc/"
if [ -e /etc/apt/sources.list.d/debian.sources ]; then cp /etc/apt/sources.list.d/debian.sources "$work/root/etc/apt/sources.list.d/"; fi
mkdir -p "$work/root/usr/local/share/ca-certificates" "$work/root/home/phalanx"
cp -r /usr/local/share/ca-certificates/. "$work/root/usr/local/share/ca-certificates/"
git -C "$source" ls-files -z | tar -C "$source" --null -T - -c | tar -C "$work/root/home/phalanx" -x

packages() { dpkg-query --admindir "$work/root/var/lib/dpkg" -W -f '${Package} ${Installed-Size}\n' | sort; }
packages > "$work/before"
for path in proc dev; do mkdir -p "$work/root/$path"; done
unshare --mount --pid --fork --kill-child --propagation private env -i HOME=/root TERM=dumb LC_ALL=C.UTF-8 \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c '
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/dev/shm" &&
    exec chroot "$0" /home/phalanx/scripts/quickstart' "$work/root" > "$work/log" 2>&1 &
session=$!
SECONDS=0
metrics=$work/root/home/phalanx/build/emoji/run/metrics.jsonl
until [ -s "$metrics" ]; do
  kill -0 "$session" 2> /dev/null || fail "it ended before a step"
  read -r -t 0.2 <> <(:) || true
done
first=$SECONDS
kill -KILL "$session"
wait "$session" 2> /dev/null || true
session=

grep -E '^== ' "$work/log"
echo "first step after $first s on $(nproc) cores; load average $(cut -d ' ' -f 1-3 /proc/loadavg)"
packages > "$work/after"
comm -13 "$work/before" "$work/after" > "$work/new"
awk '{size += $2} END {printf "%d packages, %d MB installed\n", NR, size / 1024}' "$work/new"
du -sh "$work/root/root/.cache/phalanx/deps" "$work/root/home/phalanx/build" | awk -v root="$work/root" '{sub(root, "", $2); print $2 ": " $1}'
unused=$(awk '$1 ~ /^(espeak|sox|libsox|libpulse|pulseaudio|pipewire|libpipewire|libjack|libasound|libportaudio|speech-dispatcher|clang|chromium|prometheus$|etcd)/ {print $1}' "$work/new")
[ "$first" -lt "${PHALANX_QUICKSTART_SECONDS:-300}" ] || fail "the first step came after $first s, with a load average of $(cut -d ' ' -f 1-3 /proc/loadavg)"
[ -z "$unused" ] || fail "it installed what it does not use: $(echo $unused)"
