#!/usr/bin/env bash
# Builds the images of deploy/Containerfile from the packages of a build, on a Debian root of debootstrap,
# looks at what is in them, and runs the pods of deploy/kustomize/single-node: they train the emoji job,
# and a worker that is stopped leaves its job in the queue, from which its next pod takes it up.
#
#   PHALANX_IMAGE_TEST=on tests/image/image.sh BUILD_FOLDER
#   PHALANX_IMAGE_TEST=checkout tests/image/image.sh BUILD_FOLDER checkout
#
# With `checkout` the images are compiled from the checkout, as docs/kubernetes.md has it, with all that scripts/setup
# fetches; what BUILD_FOLDER has is for the image for GPUs alone then.
#
# Needs root, buildah and debootstrap, for the pods podman, runc, catatonit and kubectl too, and a mirror of Debian;
# says what is missing and skips (77) otherwise. Takes minutes, and so skips unless it is asked for.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(realpath "$1")
skip() { echo "skipped: $*"; exit 77; }
fail() { failure=$*; exit 1; }
say() { printf '== %s, %d s\n' "$*" "$SECONDS"; }

mode=${2:-on}
[ "${PHALANX_IMAGE_TEST:-off}" = "$mode" ] || skip "takes minutes; PHALANX_IMAGE_TEST=$mode asks for it"
[ "$(id -u)" = 0 ] || skip "images are built by root alone here"
for tool in buildah debootstrap dpkg-shlibdeps file; do
  command -v "$tool" > /dev/null || skip "no $tool here; apt-get install buildah debootstrap dpkg-dev file"
done
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || skip "apt knows no mirror of Debian 12 here"

failure="a command has failed"
work=$(mktemp -d)
# Images, containers and networks of our own, which go with the folder.
store=(--root "$work/store" --runroot "$work/run")
engine() { podman "${store[@]}" "$@"; }
leave() {
  status=$?
  [ "$status" = 0 ] || [ "$status" = 77 ] || for log in "$work"/*.log; do echo "-- ${log##*/}"; tail -n 15 "$log"; done
  if [ -e "$work/network" ]; then
    engine pod rm --all --force --time 5 > /dev/null 2>&1 || true
    engine network rm --force "$(< "$work/network")" > /dev/null 2>&1 || true
    rm -rf "/var/lib/cni/networks/$(< "$work/network")"  # addresses that it gave
  fi
  buildah "${store[@]}" rm --all > /dev/null 2>&1 || true
  umount "$work/store/overlay" 2> /dev/null || true
  rm -rf "$work"
  [ "$status" = 0 ] || [ "$status" = 77 ] || echo "FAILED: $failure"
}
trap leave EXIT

say "a root of Debian 12 from $mirror"
debootstrap --variant=minbase bookworm "$work/root" "$mirror" > "$work/debootstrap.log" 2>&1 ||
  skip "debootstrap: $(tail -n 1 "$work/debootstrap.log")"
# As its index has it: packages that came since have security's versions.
if [ -e /etc/apt/sources.list.d/debian.sources ]; then cp /etc/apt/sources.list.d/debian.sources "$work/root/etc/apt/sources.list.d/"; fi
# And pip's, for what scripts/setup fetches where the images are compiled.
if [ "$mode" = checkout ] && [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$work/root/etc/"; fi
base=$(buildah "${store[@]}" from scratch)
buildah "${store[@]}" copy --quiet "$base" "$work/root" / > /dev/null
buildah "${store[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$base"
buildah "${store[@]}" commit --quiet --rm "$base" localhost/debian:test > /dev/null
rm -rf "$work/root"

context=$work/context
ignored=$source/.containerignore
if [ "$mode" = checkout ]; then
  context=$source
  # Packages that somebody left there would be taken, and nothing compiled.
  { cat "$ignored"; echo packages/; } > "$work/ignored"
  ignored=$work/ignored
else
  say "packages"
  mkdir "$context"
  cp -a "$source/deploy" "$source/scripts" "$context/"
  cpack --config "$build/CPackConfig.cmake" -B "$context/packages" > "$work/cpack.log" 2>&1 || fail "cpack"
  rm -rf "$context/packages/_CPack_Packages"
fi
for target in coordinator worker; do
  say "image of the $target"
  buildah "${store[@]}" build --isolation chroot --pull-never --target "$target" \
    --build-arg BASE_IMAGE=localhost/debian:test --ignorefile "$ignored" -f "$source/deploy/Containerfile" \
    -t "localhost/phalanx-$target:test" "$context" > "$work/$target.log" 2>&1 || fail "the image of the $target"
done

say "what is in them"
inside() {  # IMAGE COMMAND...
  local container status=0
  container=$(buildah "${store[@]}" from --pull-never "localhost/phalanx-$1:test")
  buildah "${store[@]}" run --isolation chroot "$container" -- "${@:2}" || status=$?
  buildah "${store[@]}" rm "$container" > /dev/null
  return "$status"
}
look_into() {  # IMAGE PROGRAM
  local user writable
  user=$(buildah "${store[@]}" inspect --format '{{.OCIv1.Config.User}}' "localhost/phalanx-$1:test")
  [ "$user" = 65532:65532 ] || fail "the image $1 runs as '$user'"
  [ "$(inside "$1" id -u)" = 65532 ] || fail "the image $1 has another user"
  inside "$1" "$2" --help > /dev/null || fail "$2 does not start in the image $1"
  inside "$1" phalanx version > /dev/null || fail "phalanx does not start in the image $1"
  writable=$(inside "$1" find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/dev/*' 2> /dev/null |
    grep -vxE '/|/(run/lock|tmp|var/tmp|var/lib/phalanx|run/phalanx|run/shm|dev|etc|run|sys)(/.*)?' || true)
  [ -z "$writable" ] || fail "the user of the image $1 can write: $writable"
}
for target in coordinator worker; do look_into $target phalanx-$target; done
inside coordinator sh -c 'command -v curl jq' > /dev/null || fail "no curl or jq in the image of the coordinator"
! inside worker ldd /usr/bin/phalanx-rank | grep 'not found' || fail "libraries of ranks are missing"
buildah "${store[@]}" images --format '{{.Name}} {{.Size}}' | grep phalanx- || true

. "$here/gpu.sh"
. "$here/pods.sh"
say "passed"
