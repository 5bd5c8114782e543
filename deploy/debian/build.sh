#!/bin/sh
# Builds the Debian package: deploy/debian/build.sh [WHEEL] [DIRECTORY], from a wheel for Debian's
# Python or from this checkout, into dist. It has an environment with all Python packages in
# /opt/foldmq, and is for the Debian release that it is built on: its Python must be the same.
set -eu
export LC_ALL=C
umask 022
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
wheel=${1:-$root}
output=${2:-$root/dist}
python=/usr/bin/python3

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
target=$stage/opt/foldmq

# pip is only needed here; a package manager changes this environment, nothing else does.
"$python" -m venv "$stage/tools"
"$python" -m venv --without-pip "$target"
FOLDMQ_COMPILE=${FOLDMQ_COMPILE:-1} "$stage/tools/bin/python" -m pip --disable-pip-version-check \
  --python "$target/bin/python" install --quiet --no-compile "$wheel"
version=$("$target/bin/foldmq" --version | cut -d' ' -f2)
rm -rf "$stage/tools" "$target/lib64"

# The scripts and the environment name the place where they will be.
grep -rlI "$stage" "$target/bin" "$target/pyvenv.cfg" | xargs -r sed -i "s#$stage##g"
if grep -rlI "$stage" "$target" --include=direct_url.json >/dev/null; then
  find "$target" -name direct_url.json -delete
fi
find "$target" -name '*.so' -exec sh -c 'command -v strip >/dev/null && strip --strip-unneeded "$@" || true' _ {} +
"$python" -m compileall -q -s "$stage" "$target/lib" >/dev/null || true

install -D -m 644 "$root/deploy/foldmq.service" "$stage/lib/systemd/system/foldmq.service"
install -D -m 644 "$here/foldmq.toml" "$stage/etc/foldmq/foldmq.toml"
install -d "$stage/usr/bin" "$stage/usr/share/doc/foldmq" "$stage/DEBIAN"
ln -s /opt/foldmq/bin/foldmq "$stage/usr/bin/foldmq"
install -m 644 "$root/LICENSE" "$stage/usr/share/doc/foldmq/copyright"
for script in postinst prerm postrm; do
  install -m 755 "$here/$script" "$stage/DEBIAN/$script"
done
echo /etc/foldmq/foldmq.toml >"$stage/DEBIAN/conffiles"
architecture=$(dpkg --print-architecture)
current=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$python" -c 'import sys; print("%d.%d~" % (sys.version_info[0], sys.version_info[1] + 1))')
libc=$(dpkg-query -W -f '${Version}' libc6 | cut -d- -f1)
size=$(du -sk --exclude=DEBIAN "$stage" | cut -f1)
sed -e "s#@VERSION@#$version-1#" -e "s#@ARCHITECTURE@#$architecture#" -e "s#@PYTHON@#$current#" \
  -e "s#@NEXT_PYTHON@#$next#" -e "s#@LIBC@#$libc#" -e "s#@SIZE@#$size#" \
  "$here/control.in" >"$stage/DEBIAN/control"
(cd "$stage" && find opt usr lib etc -type f -print0 | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
mkdir -p "$output"
dpkg-deb --root-owner-group --build -Zxz "$stage" "$output/foldmq_$version-1_$architecture.deb"
