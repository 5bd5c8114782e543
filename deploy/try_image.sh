#!/bin/sh
# Tries the image without Docker: deploy/try_image.sh [IMAGE], as root, with buildah, which builds it without IMAGE.
# It runs as user 10001 on a read-only root, with a volume: health check, messages, kill -9, start again.
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
name=${1:-localhost/foldmq}
[ -n "${1:-}" ] || buildah bud --isolation chroot --format docker --layers -t "$name" "$here"
container=$(buildah from --pull=never "$name")
trap 'kill -0 "${broker:-x}" 2>/dev/null && kill "$(cat "$work/data/foldmq.lock")"; buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT
image=$(buildah mount "$container")
echo "size of the root: $(du -sm "$image" | cut -f1) MB"
install -d -o 10001 -g 10001 -m 0700 "$work/data"
mkdir "$work/root"
port=$(shuf -i 20000-29999 -n 1)
metrics=$((port + 10000))
health=$(sed -n 's/^ *CMD \["python", "-c", "\(.*\)"\]$/\1/p' "$here/Dockerfile" | sed 's/\\n/\n/g')

# Each command has mounts of its own, as in a container.
inside() {
  # shellcheck disable=SC2016 # the variables are those of the shell in the mount namespace
  unshare --mount env "image=$image" "work=$work" "port=$port" "metrics=$metrics" sh -eu -c '
    mount --bind "$image" "$work/root"
    mount -o remount,bind,ro "$work/root"
    mount -t proc proc "$work/root/proc"
    mount --bind /dev "$work/root/dev"
    mount --bind "$work/data" "$work/root/data"
    cd /
    exec env -i PATH=/opt/foldmq/bin:/usr/bin:/usr/sbin HOME=/ PYTHONDONTWRITEBYTECODE=1 FOLDMQ_DATA_DIR=/data \
      FOLDMQ_LISTEN="127.0.0.1:$port" FOLDMQ_METRICS="127.0.0.1:$metrics" FOLDMQ_WEB=off \
      FOLDMQ_URL="mqtt://127.0.0.1:$port" /usr/sbin/chroot --userspec=10001:10001 --groups= "$work/root" "$@"
  ' sh "$@"
}
start() {
  inside foldmq serve 2>>"$work/log" &
  broker=$!
  until inside python -c "$health" 2>/dev/null; do
    kill -0 "$broker" || { cat "$work/log"; exit 1; }
    sleep 1
  done
}

inside foldmq version
start
inside foldmq sub -t 'home/#' -q 1 -i reader -c -E
inside foldmq pub -t home/door -m open -q 1
inside foldmq pub -t home/lamp -m on -q 1 -r
kill -9 "$(cat "$work/data/foldmq.lock")"
wait "$broker" || true
if inside python -c "$health" 2>/dev/null; then echo "a killed broker is healthy" >&2; exit 1; fi
start
[ "$(inside foldmq sub -t 'home/#' -q 1 -i reader -c -C 2 -v | sort)" = "$(printf 'home/door open\nhome/lamp on')" ]
inside foldmq verify
kill "$(cat "$work/data/foldmq.lock")"
wait "$broker"
echo "checked: health, user 10001, read-only root, kill, volume, stop with exit code 0"
