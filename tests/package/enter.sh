#!/usr/bin/env bash
# In namespaces of its own: runs COMMAND in a copy of this machine's root, which is in memory and goes
# with the namespaces: enter.sh FOLDER COMMAND...
set -euo pipefail
folder=$1
shift
mount -t tmpfs tmpfs "$folder/u"
mkdir "$folder/u/upper" "$folder/u/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/u/upper,workdir=$folder/u/work" "$folder/o"
mount --rbind /proc "$folder/o/proc"
mount --rbind /dev "$folder/o/dev"
mount -t tmpfs tmpfs "$folder/o/dev/shm"
mount -t tmpfs tmpfs "$folder/o/run"
# The packages, where the root is on another file system than the temporary folder.
mkdir -p "$folder/o$folder/packages"
mount --bind "$folder/packages" "$folder/o$folder/packages"
ip link set lo up
exec chroot "$folder/o" "$@"
