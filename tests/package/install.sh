#!/usr/bin/env bash
# Packs a build as Debian packages, and does with them what docs/install.md says: every command block
# marked `sh` there runs, in order, on a copy of this machine's root that is dropped afterwards, with
# a network and processes of its own. Needs root, namespaces, overlayfs and tools that scripts/setup brings:
# says what is missing and skips (77) otherwise, and fails under CI, which names PHALANX_EXIT_WITHOUT_TOOL.
#
#   tests/package/install.sh BUILD_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(realpath "$1")
not_here() { echo "$*"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }

for tool in dpkg-shlibdeps file ip pgrep; do  # scripts/setup brings them
  command -v "$tool" > /dev/null || not_here "no $tool here"
done
[ "$(id -u)" = 0 ] || { echo "packages are installed by root alone"; exit 77; }  # this process may not
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unshare --mount sh -c 'mkdir "$0/u" "$0/w" "$0/o" && mount -t tmpfs tmpfs "$0/u" && mkdir "$0/u/u" "$0/u/w" &&
  mount -t overlay overlay -o "lowerdir=/,upperdir=$0/u/u,workdir=$0/u/w" "$0/o"' "$work" 2> "$work/error" ||
  { cat "$work/error"; exit 77; }  # this process may not mount

cpack --config "$build/CPackConfig.cmake" -B "$work/packages" > "$work/cpack.log" 2>&1 ||
  { cat "$work/cpack.log"; exit 1; }
rm -rf "$work/packages/_CPack_Packages"
ls -s --block-size=M "$work"/packages/*.deb
# Nothing is uploaded to Debian; and Debian 12's lintian does not know zstd, which its dpkg reads.
if command -v lintian > /dev/null; then
  lintian --allow-root --fail-on error,warning \
    --suppress-tags initial-upload-closes-no-bugs,malformed-deb-archive "$work"/packages/*.deb
else
  echo "no lintian here: the packages stay unchecked by it"
fi

# The release behind it: the same programs, and a line more among the coordinator's settings.
mkdir "$work/packages/next"
for package in "$work"/packages/*.deb; do
  version=$(dpkg-deb --field "$package" Version)
  dpkg-deb --raw-extract "$package" "$work/raw"
  sed -i "s/${version//./\\.}/$version.1/g" "$work/raw/DEBIAN/control"
  settings=$work/raw/etc/phalanx/coordinator.env
  if [ -e "$settings" ]; then echo '# of the next release' >> "$settings"; fi
  dpkg-deb -Zzstd -z1 --build "$work/raw" "$work/packages/next" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
  rm -rf "$work/raw"
done

# The page as a script: its blocks marked `sh`, but those that say that no test runs them, and between
# them the checks that its comments name.
awk '/^<!-- not run: / {skip = 1} /^```/ {inside = /^```sh$/ && !skip; if (/^```$/) skip = 0; next}
  inside {print} /^<!-- test: / {print "check", $3}' \
  "$source/docs/install.md" > "$work/packages/commands"
grep -q 'apt-get install' "$work/packages/commands" || { echo "docs/install.md: no commands found"; exit 1; }
install "$here/systemctl" "$here/inside.sh" "$work/packages/"
unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
  "$here/enter.sh" "$work" /bin/bash "$work/packages/inside.sh" "$work/packages"
