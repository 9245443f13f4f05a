"""Docker and GPUs: all of lab docker, and of real compute on a GPU."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

from rig.doctor.finding import Finding
from rig.errors import LabError
from rig.node import gpu as gpu_library


@cache
def seen() -> dict[str, Any]:
    """What the engine says of itself: {"version", "image", "present", "gpu"}, or {"lack": why} where none answers."""
    from rig.lab import daemon, image

    try:
        with daemon.connected("ask the engine", timeout=5.0) as client:
            info = client.info()
            tag = image.recipe().tag
            present = bool(client.images.list(name=tag))
    except LabError as error:
        return {"lack": str(error).removeprefix("lab docker: ").removeprefix("ask the engine: ")}
    return {"version": info["ServerVersion"], "image": tag, "present": present, "gpu": daemon.offers_gpu(info)}


def docker() -> Finding:
    """Without one there is still lab netns."""
    if "lack" in seen():
        why, _, mend = str(seen()["lack"]).partition("; ")
        return Finding("Docker", "warn", f"no lab docker: {why}", mend)
    return Finding("Docker", "ok", f"engine {seen()['version']} answers")


def image() -> Finding:
    """It is built on first use, which needs a base image and PyTorch from an index."""
    if "lack" in seen():
        return Finding("Docker image", "ok", "not asked for: no engine")
    if seen()["present"]:
        return Finding("Docker image", "ok", seen()["image"])
    return Finding(
        "Docker image", "warn", f"{seen()['image']} is not there yet", "the first run with --lab docker builds it"
    )


def gpu() -> Finding:
    """Cards that lab netns sees, and whether the engine may hand them on."""
    count = gpus()
    if not count:
        return Finding("GPU", "ok", "none here: real compute is on CPUs")
    if "lack" not in seen() and not seen()["gpu"]:
        mend = "for lab docker: install nvidia-container-toolkit and restart Docker"
        return Finding("GPU", "warn", f"{count} here, but the engine offers none", mend)
    if not (cuda := torch_cuda()):
        mend = "for real compute on it: install a CUDA build of PyTorch in this Python"
        return Finding("GPU", "warn", f"{count} here, but this Python's PyTorch has no CUDA", mend)
    if gpu_library.cards(None) is None:
        mend = "install NVIDIA's driver with its libnvidia-ml.so.1"
        return Finding("GPU", "warn", f"{count} here, but NVML does not tell their memory and use", mend)
    return Finding("GPU", "ok", f"{count} here; PyTorch's CUDA {cuda}")


def torch_cuda() -> str:
    """The CUDA that this Python's PyTorch was built for, read without importing it; nothing for a CPU build."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return ""
    text = Path(torch.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
    return found[1] if found else ""


def gpus() -> int:
    """Cards with a device file."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
