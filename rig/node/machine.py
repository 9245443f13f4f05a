"""What the kernel says of this machine's parts, as far as it can be asked."""

from __future__ import annotations

from pathlib import Path


def cpu() -> str | None:
    """The CPU's name; None where the kernel gives none, as on some architectures."""
    return named(Path("/proc/cpuinfo"), "model name")


def named(file: Path, key: str) -> str | None:
    """What stands behind the first `key:` in a file of the kernel's; None where it cannot be read."""
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)
