#!/usr/bin/env bash
# Runs in the copy of the root, in the folder of the packages: the commands of docs/install.md, and
# between them the checks that the page names (`check NAME`).
set -euo pipefail
cd "$1"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
services=(phalanx-coordinator phalanx-worker)
install systemctl /usr/local/bin/systemctl
printf 'quiet "2";\nDpkg::Use-Pty "0";\n' > /etc/apt/apt.conf.d/quiet
# A machine that only runs Phalanx: what it was built with is not there.
rm -rf "${PHALANX_DEPS_DIR:-$HOME/.cache/phalanx/deps}"

fail() {
  echo "FAILED: $*"
  tail -n 20 /var/log/phalanx-*.log 2> /dev/null || true
  exit 1
}
check() {
  "$1"
  echo "== $1: ok, ${SECONDS} s"
}
runs() { pgrep -u phalanx -x "${1:0:15}" > /dev/null; }
# The services' own processes: what checks devices comes and goes.
of_services() { pgrep -u phalanx -x 'phalanx-coordin|phalanx-worker' | sort; }

installed() {
  for program in phalanx phalanx-coordinator phalanx-worker phalanx-rank; do
    [ -x "/usr/bin/$program" ] || fail "no $program"
    [ -e "/usr/share/man/man1/$program.1.gz" ] || fail "no manual page of $program"
  done
  ldd /usr/bin/phalanx-rank > libraries
  ! grep 'not found' libraries || fail "libraries are missing"
  [ "$(grep -c '/usr/bin/../lib/phalanx/libtorch/' libraries)" = 5 ] || fail "LibTorch is another one: $(< libraries)"
  id phalanx > /dev/null || fail "no user phalanx"
  for service in "${services[@]}"; do
    ! runs "$service" || fail "$service was started"
    [ ! -e "/etc/systemd/system/multi-user.target.wants/$service.service" ] || fail "$service was enabled"
    ! command -v systemd-analyze > /dev/null ||
      systemd-analyze verify --man=no "/lib/systemd/system/$service.service" || fail "systemd does not take $service.service"
  done
  for program in make_ca make_emoji.py; do
    [ -x "/usr/share/doc/phalanx-client/examples/$program" ] || fail "no $program among the examples"
  done
  (. /usr/share/bash-completion/completions/phalanx && complete -p phalanx > /dev/null) || fail "no completion"
}

# Until the coordinator has let the worker in.
await_node() {
  local deadline=$((SECONDS + 20))
  until phalanx nodes | grep -q ' Ready '; do
    [ "$SECONDS" -lt "$deadline" ] || fail "no node within 20 s"
    read -r -t 0.1 <> <(:) || true
  done
}

running() {
  await_node
  for service in "${services[@]}"; do
    runs "$service" || fail "$service does not run as the user phalanx"
    [ -e "/etc/systemd/system/multi-user.target.wants/$service.service" ] || fail "$service is not enabled"
    [ "$(stat -c %U:%a "/var/lib/phalanx/${service#phalanx-}")" = phalanx:750 ] || fail "state of $service is not its own"
  done
}

trained() {
  local metrics=/srv/emoji/runs/emoji/metrics.jsonl
  [ "$(wc -l < $metrics)" = 10 ] || fail "$metrics has $(wc -l < $metrics) lines, one a step makes 10"
  [ "$(stat -c %U $metrics)" = phalanx ] || fail "ranks ran as $(stat -c %U $metrics)"
}

# Of the packages that are installed.
versions() { dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' 'phalanx-*' | grep '^installed '; }

# What the folder has from now on is newer than what is installed.
of_next_release() {
  older_versions=$(versions)
  coordinator=$(pgrep -u phalanx -x phalanx-coordin)
  echo '# mine' >> /etc/phalanx/worker.env
  rm ./phalanx-*.deb
  mv next/*.deb .
}

# Each package is of the next release, the coordinator's process too; the one job is there after the restart, settings are
# the next release's where nobody has changed them; and a package that comes again leaves all alone.
upgraded() {
  await_node
  [ "$(versions)" = "${older_versions//$'\n'/.1$'\n'}.1" ] || fail "not all of these were upgraded: $(versions)"
  [ "$(pgrep -u phalanx -x phalanx-coordin)" != "$coordinator" ] || fail "the coordinator is that of before"
  phalanx list | grep -q Succeeded || fail "the job is forgotten"
  grep -q '^# of the next release$' /etc/phalanx/coordinator.env || fail "settings that nobody changed are of before"
  grep -q '^# mine$' /etc/phalanx/worker.env || fail "settings are lost in the upgrade"
  local before
  before=$(of_services)
  dpkg --install ./phalanx-{coordinator,worker}_*.deb > dpkg.log || fail "$(< dpkg.log)"
  [ "$(of_services)" = "$before" ] || fail "a service was restarted"
  grep -q '^# mine$' /etc/phalanx/worker.env || fail "settings are lost"
  stop_all
}

# systemd's part of a removal, where it is process 1.
stop_all() { systemctl stop "${services[@]}"; }

removed() {
  ! ls /usr/bin/phalanx* /usr/lib/phalanx /lib/systemd/system/phalanx-* 2> /dev/null || fail "these are left"
  [ -e /var/lib/phalanx/coordinator/journal.db ] || fail "the store is gone"
  grep -q '^# mine$' /etc/phalanx/worker.env || fail "settings are gone"
}

purged() {
  local left
  left=$(find /etc /lib/systemd /usr/bin /usr/lib /usr/share /var/cache /var/lib -xdev -name '*phalanx*' -not -path '/var/lib/cni/*')
  [ -z "$left" ] || fail "these are left: $left"
  id phalanx > /dev/null || fail "the user is gone, and files of its jobs have none"
}

trap 'tail -n 20 /var/log/phalanx-*.log' ERR  # of a command of the page
. ./commands
echo "passed in $SECONDS s"
