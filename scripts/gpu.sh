#!/usr/bin/env bash
# Train for real on a GPU in lab netns, over gloo and over NCCL, and write docs/gpu.md's table from the two records.
# Usage: scripts/gpu.sh, where there is a GPU; less than five minutes. Nothing is downloaded that is there already.
#   PYTHON=…   an interpreter whose PyTorch sees the GPU, with transformers; else python3
#   WHEELS=…   a folder with wheels of what that one lacks, for a machine without a network
#   DRY=yes    the same steps on the CPU with a small model, to try this script; docs/ stays as it is
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
dry=${DRY:-}
out=build/gpu
needed=(docker jinja2 matplotlib psutil pydantic pyroute2 rich ruamel.yaml typer)

refuse() {
    echo "gpu.sh: $1" >&2
    exit 3
}

"$python" -c 'import torch' 2>/dev/null ||
    refuse "$python has no PyTorch; say PYTHON=/path/to/one that has a CUDA build of it"
[ -n "$dry" ] || "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    refuse "the PyTorch of $python sees no GPU; install a CUDA build, or look at nvidia-smi; DRY=yes needs none"

# What the rig itself needs goes into an environment of its own, which finds PyTorch where it is already.
missing=$("$python" - "${needed[@]}" <<'PYTHON'
import importlib.util, sys
def there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(*(name for name in sys.argv[1:] if not there(name)))
PYTHON
)
if [ -n "$missing" ]; then
    [ -x "$out/venv/bin/python" ] || "$python" -m venv --without-pip "$out/venv"
    own=$("$out/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' >"$own/torch.pth"
    from=(); [ -z "${WHEELS:-}" ] || from=(--no-index --find-links "$WHEELS")
    # shellcheck disable=SC2086  # a list of names
    "$python" -m pip --python "$out/venv/bin/python" install --quiet "${from[@]}" $missing
    python=$out/venv/bin/python
fi

# What has not ended after so many seconds is interrupted: its record keeps the cases that did.
run() {
    timeout --signal=INT "$limit" "$python" -m rig.cli run scripts/gpu.yaml --lab netns --out "$out/$1" "${@:2}" >&2 ||
        echo "gpu.sh: the run over $1 ended with exit status $?; its record says why" >&2
    find "$out/$1" -name record.json | sort | tail -n 1
}

[ -n "$dry" ] || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >&2 || true
if [ -n "$dry" ]; then
    small=(--set workload.model=gpt --set workload.batch=2 --set workload.device=auto)
    records=("$(limit=120 run gloo "${small[@]}" --only 'nodes=2,rate=2.5gbit')")
else
    records=("$(limit=200 run gloo)" "$(limit=80 run nccl --set workload.backend=nccl --only 'nodes=2,rate=2.5gbit')")
fi
echo "records: ${records[*]}"
"$python" scripts/gpu_page.py ${dry:+--print} "${records[@]}"
