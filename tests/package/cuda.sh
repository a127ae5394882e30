#!/usr/bin/env bash
# Packs the rank for CUDA and looks at the package: what it depends on, what is in it, how its parts find each
# other, what apt makes of it with NVIDIA's repository and without, and that it is refused beside the rank for
# CPU; and installs it, where this process may, on a copy of this machine's root. In every case of
# cmake/package.cmake alone, with a rank that does nothing and LibTorch's CUDA part; and of a build of the preset
# `cuda` where there is one.
#
#   tests/package/cuda.sh BUILD_FOLDER [CUDA_BUILD_FOLDER]    (default: cuda beside the first)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
cuda=${2:-$(realpath "$1")/../cuda}
toolkit=
fail() { echo "FAILED: $*"; exit 1; }
for tool in apt-get cmake dpkg-scanpackages dpkg-shlibdeps file ip readelf; do  # scripts/setup brings them
  command -v "$tool" > /dev/null || { echo "no $tool here"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/cuda_parts.sh"

pack() {  # BUILD_FOLDER FOLDER
  local begin=$SECONDS
  cpack --config "$1/CPackConfig.cmake" -B "$2" > "$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; fail "cpack in $1"; }
  rm -rf "$2/_CPack_Packages"
  ls -s --block-size=M "$2"/*.deb
  echo "packed in $((SECONDS - begin)) s"
}

# Of a package: what it says and what is in it.
examine() {
  local rank=$1 root=$work/root field version library
  version=$(dpkg-deb -f "$rank" Version)
  [ "$(dpkg-deb -f "$rank" Package)" = phalanx-rank-cuda ] || fail "the package is $(dpkg-deb -f "$rank" Package)"
  for field in Conflicts Replaces; do [ "$(dpkg-deb -f "$rank" $field)" = phalanx-rank ] || fail "$field: $(dpkg-deb -f "$rank" $field)"; done
  [ "$(dpkg-deb -f "$rank" Provides)" = "phalanx-rank (= $version)" ] || fail "Provides: $(dpkg-deb -f "$rank" Provides)"
  dpkg-deb -f "$rank" Depends | tr ',' '\n' | sed 's/^ *//' > "$work/depends"
  libraries_of_cuda | cut -d = -f 2 | sort -u > "$work/nvidia"
  [ "$(grep -cxFf "$work/nvidia" "$work/depends")" = 10 ] || fail "it depends on $(paste -sd ' ' "$work/depends")"
  # The driver belongs to the node: in a container its libraries are the node's, too.
  ! grep -E '^(libcuda1|nvidia-|cuda-drivers|libnvidia)' "$work/depends" || fail "it depends on a driver"
  grep -q '^libc6 ' "$work/depends" || fail "it does not depend on what Debian brings"
  rm -rf "$root"
  dpkg-deb -x "$rank" "$root"
  (cd "$root" && find . -type f -not -path './usr/share/doc/*/libtorch/*' | sort) > "$work/files"
  diff - "$work/files" << 'FILES' || fail "other files are in it"
./usr/bin/phalanx-rank
./usr/lib/phalanx/libtorch/libc10.so
./usr/lib/phalanx/libtorch/libc10_cuda.so
./usr/lib/phalanx/libtorch/libcudart.so.13
./usr/lib/phalanx/libtorch/libcupti.so.13
./usr/lib/phalanx/libtorch/libgomp.so.1
./usr/lib/phalanx/libtorch/libtorch_cpu.so
./usr/lib/phalanx/libtorch/libtorch_cuda.so
./usr/lib/phalanx/libtorch/libtorch_cuda_linalg.so
./usr/lib/phalanx/libtorch/libtorch_nvshmem.so
./usr/share/doc/phalanx-rank-cuda/changelog.Debian.gz
./usr/share/doc/phalanx-rank-cuda/copyright
./usr/share/man/man1/phalanx-rank.1.gz
FILES
  path_of() { readelf --dynamic "$1" | sed -n 's/.*(R\(UN\)\?PATH).*\[\(.*\)\]$/\2/p'; }
  [ "$(path_of "$root/usr/bin/phalanx-rank")" = '$ORIGIN/../lib/phalanx/libtorch' ] || fail "the rank looks in $(path_of "$root/usr/bin/phalanx-rank")"
  for library in "$root"/usr/lib/phalanx/libtorch/libtorch*.so "$root"/usr/lib/phalanx/libtorch/libc10*.so; do
    [ "$(path_of "$library")" = '$ORIGIN' ] || fail "$library looks in $(path_of "$library")"
  done
  du -sh --apparent-size "$root" | awk '{print "installed: " $1}'
  rm -rf "$root"
}

# What apt would do on this machine if SOURCE were its only repository: apt SOURCE PACKAGE...
apt_would() {
  local state=$work/apt sources=$1
  shift
  rm -rf "$state"
  mkdir -p "$state"/{lists/partial,archives/partial,parts,empty}
  echo "$sources" > "$state/sources.list"
  local options=(-o "Dir::Etc::SourceList=$state/sources.list" -o "Dir::Etc::SourceParts=$state/parts"
    -o "Dir::Etc::Preferences=$state/none" -o "Dir::Etc::PreferencesParts=$state/empty"
    -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state" -o "Dir::State::status=$state/status")
  # A rank that is installed here is not what is asked about.
  awk -v RS= -v ORS='\n\n' '!/^Package: phalanx-/' /var/lib/dpkg/status > "$state/status"
  LC_ALL=C apt-get "${options[@]}" -qq update > "$work/apt.log" 2>&1 || { cat "$work/apt.log"; return 1; }
  LC_ALL=C apt-get "${options[@]}" install --simulate --no-install-recommends "$@" > "$work/apt.log" 2>&1
}

choose() {  # FOLDER of packages
  local packages=("$1"/phalanx-client_*.deb "$1"/phalanx-worker_*.deb "$1"/phalanx-rank-cuda_*.deb)
  ! apt_would '' "${packages[@]}" || fail "apt installs it without NVIDIA's repository"
  while read -r package; do
    grep -q "Depends: $package but it is not installable" "$work/apt.log" ||
      { cat "$work/apt.log"; fail "apt does not say that $package is missing"; }
  done < "$work/nvidia"
  apt_would "deb [trusted=yes] file:$work/nvidia-packages ./" "${packages[@]}" || { cat "$work/apt.log"; fail "apt does not install it"; }
  while read -r package; do
    grep -q "^Inst $package " "$work/apt.log" || fail "apt leaves out $package"
  done < "$work/nvidia"
  # A rank for CPU, which says of itself what this one does.
  mkdir -p "$work/cpu/DEBIAN"
  dpkg-deb -f "$1"/phalanx-rank-cuda_*.deb | sed -e 's/phalanx-rank-cuda/phalanx-rank-cpu/' -e '/^Depends:/d' > "$work/cpu/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$work/cpu" "$work/phalanx-rank-cpu.deb" > /dev/null
  ! apt_would "deb [trusted=yes] file:$work/nvidia-packages ./" "${packages[@]}" "$work/phalanx-rank-cpu.deb" ||
    fail "apt installs two kinds of ranks beside each other"
  grep -q 'Conflicts: phalanx-rank' "$work/apt.log" || { cat "$work/apt.log"; fail "apt does not say that ranks conflict"; }
}

# Client, worker and rank from the packages alone, as on a node with NVIDIA's repository; and off it again.
install_it() {  # FOLDER of packages, with NVIDIA's in `nvidia` below
  local folder=$1
  local enter=(unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private "$here/enter.sh" "$work")
  mkdir "$work/u" "$work/o"
  if [ "$(id -u)" != 0 ] || ! "${enter[@]}" true 2> /dev/null; then
    echo "skipped: to install it, which takes root, namespaces and overlayfs"
    return
  fi
  cat > "$folder/inside.sh" << 'INSIDE'
set -euo pipefail
cd "$1"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
fail() { echo "FAILED: $*"; exit 1; }
echo "deb [trusted=yes] file:$PWD/nvidia ./" > nvidia.list
alone=(-o "Dir::Etc::SourceList=$PWD/nvidia.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -qq)
apt-get "${alone[@]}" update
apt-get "${alone[@]}" install --no-install-recommends ./phalanx-{client,worker,rank-cuda}_*.deb > install.log 2>&1 || { cat install.log; fail "apt does not install it"; }
status() { dpkg-query --show --showformat '${db:Status-Status}' "$1" 2> /dev/null || true; }
for package in phalanx-client phalanx-worker phalanx-rank-cuda $(< names); do
  [ "$(status "$package")" = installed ] || fail "$package is $(status "$package")"
done
dpkg --verify phalanx-rank-cuda phalanx-worker phalanx-client
ldd /usr/bin/phalanx-rank > libraries
! grep 'not found' libraries || fail "libraries are missing"
grep -q '/usr/bin/../lib/phalanx/libtorch/libtorch_cuda.so' libraries || fail "LibTorch is another one: $(< libraries)"
grep -q 'libnccl.so.2 => /lib/x86_64-linux-gnu/' libraries || fail "NCCL is another one: $(< libraries)"
apt-get "${alone[@]}" remove phalanx-rank-cuda > remove.log 2>&1 || { cat remove.log; fail "apt does not remove it"; }
[ ! -e /usr/bin/phalanx-rank ] && [ ! -e /usr/lib/phalanx/libtorch ] || fail "it leaves files behind"
[ "$(status phalanx-client)" = installed ] || fail "phalanx-client went with it"
INSIDE
  local begin=$SECONDS
  "${enter[@]}" /bin/bash "$folder/inside.sh" "$folder"
  echo "installed and removed in $((SECONDS - begin)) s"
}

echo "== the package of a rank that does nothing"
stand_in_build "$work/stand-in" > "$work/build.log" 2>&1 ||
  { grep -q 'Could NOT find LibTorch' "$work/build.log" && { echo "no LibTorch here"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }
    cat "$work/build.log"; fail "the build of nothing but packages"; }
pack "$work/stand-in/build" "$work/packages"
examine "$work"/packages/phalanx-rank-cuda_*.deb
nvidia_packages "$work/nvidia-packages" > /dev/null
choose "$work/packages"
cp -r "$work/nvidia-packages" "$work/packages/nvidia"
cp "$work/nvidia" "$work/packages/names"
install_it "$work/packages"

echo "== what no package brings, and what nothing loads"
for change in 's/libnccl.so.2=libnccl2//' 's/libnccl.so.2=libnccl2/&;libcuother.so.1=libcuother/'; do
  table=$(libraries_of_cuda | paste -sd ';' | sed -e "$change" -e 's/;;/;/')
  cmake "-DPHALANX_CUDA_LIBRARIES=$table" "$work/stand-in/build" > /dev/null
  ! cpack --config "$work/stand-in/build/CPackConfig.cmake" -B "$work/refused" > "$work/cpack.log" 2>&1 || fail "packed with $change"
  grep -E 'brings libnccl.so.2, which the rank loads|has libcuother.so.1, which the rank does not load' "$work/cpack.log" || { cat "$work/cpack.log"; fail "another error"; }
  rm -rf "$work/refused"
done

if [ ! -x "$cuda/bin/phalanx-rank" ] || ! grep -q '^set(CPACK_DEBIAN_RANK_PACKAGE_NAME "phalanx-rank-cuda")' "$cuda/CPackConfig.cmake"; then
  echo "skipped: a rank for CUDA; there is no build of the preset cuda in $cuda (it needs the CUDA toolkit)"
  exit 0
fi
echo "== the package of a build for CUDA"
rm -rf "$work/packages"
pack "$cuda" "$work/packages"
examine "$work"/packages/phalanx-rank-cuda_*.deb
choose "$work/packages"
