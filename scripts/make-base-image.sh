#!/usr/bin/env bash
# Make a base image for the rig's Dockerfile without a registry: a minimal Debian with Python.
# Usage, as root: scripts/make-base-image.sh [NAME]; it does nothing if the image is there. Takes about a minute.
set -euo pipefail

name=${1:-rig-base:bookworm}
if docker image inspect "$name" >/dev/null 2>&1; then
    echo "base image $name is there"
    exit 0
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,iproute2,ca-certificates \
    "${name##*:}" "$root/system" >"$root/log" 2>&1 || { tail -n 15 "$root/log" >&2; exit 1; }
rm -rf "$root"/system/var/cache/apt/archives/*.deb
tar -C "$root/system" -c . | docker import - "$name" >/dev/null
echo "made base image $name"
