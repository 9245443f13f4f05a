#!/usr/bin/env bash
# Make .venv with the rig and everything for its development; done again only when pyproject.toml or the pins changed.
# PYTHON names another interpreter than python3.
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stamp=.venv/.installed

refuse() {
    echo "make venv: $1" >&2
    exit 1
}

if [ -e .venv ] && [ ! -O .venv ]; then
    refuse "this checkout's .venv belongs to $(stat -c %U .venv); use a checkout of your own, or remove that folder as its owner"
fi
[ -w . ] || refuse "you may not write to $PWD; use a checkout of your own"
if [ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ] && [ ! scripts/pins.txt -nt "$stamp" ]; then
    exit 0
fi
command -v "$python" >/dev/null || refuse "there is no $python; install Python 3.11 or later, or say PYTHON=/path/to/it"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    refuse "$("$python" --version) is too old; install Python 3.11 or later and say PYTHON=/path/to/it"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    refuse "this Python has no venv module; on Debian or Ubuntu: apt-get install python3-venv"

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "installing the rig into .venv; the first time takes some minutes" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint scripts/pins.txt --editable '.[dev]'
touch "$stamp"
