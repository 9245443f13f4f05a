"""What a node is like, before anything is trusted to run on it: `python -m rig.node.facts NAME…` emits one line.

The names are those of all nodes; each is resolved here, as gloo will.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from rig.node.stream import Stream

SYSCTLS = ("tcp_rmem", "tcp_wmem", "tcp_autocorking", "tcp_slow_start_after_idle", "tcp_congestion_control")


def facts(names: list[str]) -> dict[str, Any]:
    """Versions, names as they resolve here, and TCP settings. Nothing heavy is imported."""
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "resolved": {name: _resolve(name) for name in names},
        "loopback_line": _loopback_line(),
        "sysctls": {name: _sysctl(name) for name in SYSCTLS},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _resolve(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def _loopback_line() -> str | None:
    """The line of /etc/hosts that gives this host's own name a loopback address: gloo would bind to it."""
    own = socket.gethostname()
    for number, line in enumerate(Path("/etc/hosts").read_text("utf-8", errors="replace").splitlines(), start=1):
        address, *names = line.partition("#")[0].split() or [""]
        if own in names and address.startswith("127."):
            return f"/etc/hosts:{number}: {line.strip()}"
    return None


def _sysctl(name: str) -> str | None:
    try:
        return " ".join(Path("/proc/sys/net/ipv4", name).read_text("ascii").split())
    except OSError:
        return None


if __name__ == "__main__":
    Stream().emit("facts", **facts(sys.argv[1:]))
