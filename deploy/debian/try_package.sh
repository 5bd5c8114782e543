#!/bin/sh
# Tries a Debian package in a fresh Debian: deploy/debian/try_package.sh DEB [ROOT]
# As root. Without ROOT, an unpacked Debian that is thrown away, mmdebstrap makes one. There is no
# systemd in it: the broker is started as the unit starts it, as user foldmq.
set -eu
package=$(realpath "$1")
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
if [ -n "${2:-}" ]; then
  root=$2
else
  root=$(mktemp -d)
  mmdebstrap --variant=minbase "$release" "$root"
fi
cp "$package" "$root/foldmq.deb"
mount --bind /proc "$root/proc" 2>/dev/null || mount -t proc proc "$root/proc"
trap 'umount "$root/proc"; [ -n "${2:-}" ] || rm -rf "$root"' EXIT
# shellcheck disable=SC2016 # the commands are for the shell in the root
chroot "$root" /bin/sh -eu -c '
echo "Dpkg::Use-Pty \"0\";" >/etc/apt/apt.conf.d/99no-terminal
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
check() { echo "checked: $1"; }
start() {
  setpriv --reuid foldmq --regid foldmq --clear-groups env HOME=/ FOLDMQ_DATA_DIR=/var/lib/foldmq \
    PYTHONDONTWRITEBYTECODE=1 FOLDMQ_WEB=off FOLDMQ_METRICS=off FOLDMQ_LISTEN=127.0.0.1:$port \
    /usr/bin/foldmq serve --config /etc/foldmq/foldmq.toml 2>/tmp/broker.log &
  broker=$!
}
apt-get -qq update
apt-get -qq -y --no-install-recommends install /foldmq.deb >/dev/null
foldmq version
dpkg --verify foldmq
port=$(/opt/foldmq/bin/python3 -c "import socket as s; x = s.socket(); x.bind((\"127.0.0.1\", 0)); print(x.getsockname()[1])")
export FOLDMQ_URL=mqtt://127.0.0.1:$port
[ "$(stat -c "%U %a" /var/lib/foldmq)" = "foldmq 700" ]
check "installed: user, data directory, no file changed"

cd /var/lib/foldmq
start
foldmq sub -t "home/#" -q 1 -i reader -c -E
foldmq pub -t home/door -m open -q 1
kill -9 $broker; wait $broker || true
start
[ "$(foldmq sub -t "home/#" -q 1 -i reader -c -C 1 -v)" = "home/door open" ]
foldmq pub -t home/lamp -m on -q 1 -r
kill $broker; wait $broker
check "served, killed, served again, stopped with exit code 0"

echo "# kept" >>/etc/foldmq/foldmq.toml
apt-get -qq -y --reinstall install /foldmq.deb >/dev/null
grep -q "# kept" /etc/foldmq/foldmq.toml
start
[ "$(foldmq sub -t "home/lamp" -C 1)" = on ]
kill $broker; wait $broker
check "upgraded: configuration and messages are kept"

apt-get -qq -y remove foldmq >/dev/null
[ ! -e /opt/foldmq ] && [ ! -e /usr/bin/foldmq ] && [ ! -e /lib/systemd/system/foldmq.service ]
[ -s /etc/foldmq/foldmq.toml ] && [ -d /var/lib/foldmq/jetstream ]
check "removed: configuration and data are still there"

apt-get -qq -y purge foldmq >/dev/null
[ ! -e /etc/foldmq ] && [ ! -e /var/lib/foldmq ] && ! dpkg -s foldmq >/dev/null 2>&1
check "purged: nothing is left"
'
