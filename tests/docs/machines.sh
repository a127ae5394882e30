#!/usr/bin/env bash
# The machines of a page that needs several, each with a root, a network, processes and a name of its own:
#
#   machines.sh make FOLDER                    of each, standard input has a line: NAME ADDRESS [SHARED]
#   machines.sh enter FOLDER NAME COMMAND...   runs it there, inside the network of NAME
#
# A root is a copy of this one's, which is in memory and goes with the namespaces that commands.sh makes;
# SHARED is a folder that all who name it have in common. One switch joins them. What a machine has beside
# its root: stand-ins for programs that need more than a root (machine/), and what packages are made of.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
verb=$1 folder=$2
shift 2

make() {
  mkdir -p "$folder"
  mount -t tmpfs tmpfs /run
  mount -t tmpfs tmpfs "$folder"
  ip netns add switch
  ip -n switch link add bridge type bridge
  ip -n switch link set bridge up
  while read -r name address shared; do
    ip netns add "$name"
    ip -n switch link add "$name" type veth peer name eth0 netns "$name"
    ip -n switch link set "$name" master bridge up
    ip -n "$name" address add "$address/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    mkdir -p "$folder/$name"/{upper,work,root} "$folder/shared"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/$name/upper,workdir=$folder/$name/work" "$folder/$name/root"
    ln -s "$name/root" "$folder/$address"
    if [ -n "$shared" ]; then
      mkdir -p "$folder/shared$shared"
      mount --bind "$folder/shared$shared" "$folder/$name/root$shared"
    fi
  done
}

enter() {
  local name=$1 root=$folder/$1/root
  shift
  hostname "$name"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  for one in dev/shm run tmp; do mount -t tmpfs tmpfs "$root/$one"; done
  mkdir -p "$root/run/"{machines,programs,source} "$root/home/me"
  mount --rbind "$folder" "$root/run/machines"
  mount --bind /home/me/phalanx/build/release/bin "$root/run/programs"
  mount --bind /home/source "$root/run/source"
  install "$here"/machine/* "$here/../package/systemctl" "$root/usr/local/bin/"
  # LibTorch, which a package brings: whoever runs ranks has to reach it.
  mkdir -p "$root$PHALANX_DEPS_DIR"
  local above=$PHALANX_DEPS_DIR
  while above=${above%/*} && [ -n "$above" ]; do chmod a+x "$root$above"; done
  mount --bind "$PHALANX_DEPS_DIR" "$root$PHALANX_DEPS_DIR"
  export HOME=/home/me PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  unset PHALANX_DEPS_DIR
  exec chroot "$root" "$@"
}

"$verb" "$@"
