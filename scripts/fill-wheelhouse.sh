#!/usr/bin/env bash
# Download the wheels of the rig's image into wheelhouse/, for a machine where pip does not work inside a build.
# Usage: scripts/fill-wheelhouse.sh [FOLDER]; needs `make venv`. The wheels are for the Python of the base image, 3.11.
# Done again only when what the image needs has changed.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-wheelhouse}
wanted=$(.venv/bin/python -c 'from rig.lab import image; print("\n".join(image.requirements()))')
if [ "$wanted" = "$(cat "$folder/requirements.txt" 2>/dev/null)" ]; then
    echo "$folder is filled"
    exit 0
fi
mkdir -p "$folder"
rm -f "$folder"/*.whl "$folder"/requirements.txt
printf '%s\n' "$wanted" >"$folder/wanted.txt"
.venv/bin/python -m pip download --quiet --disable-pip-version-check \
    --python-version 3.11 --only-binary :all: --dest "$folder" -r "$folder/wanted.txt"
mv "$folder/wanted.txt" "$folder/requirements.txt"
echo "filled $folder: $(du -sh "$folder" | cut -f1)"
