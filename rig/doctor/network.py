"""What this kernel has for labs: tried in a namespace of its own, as a lab would."""

from __future__ import annotations

import errno
import json
import platform
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from rig.doctor.finding import Finding, Status
from rig.lab import PACKAGE
from rig.node.namespaces import FORBIDDEN

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
_PATIENCE = 20.0


@cache
def tried() -> dict[str, Any]:
    """What rig.fabric.offers says from inside a box, or {"refused": why} where none may be made."""
    tool = [sys.executable, "-SE", str(PACKAGE / "node" / "namespaces.py"), "box", "--"]
    python = ["env", f"PYTHONPATH={PACKAGE.parent}", "PYTHONSAFEPATH=1", sys.executable, "-m", "rig.fabric.offers"]
    try:
        answer = subprocess.run([*tool, *python], check=False, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return {"refused": f"no answer within {_PATIENCE:.0f} s"}
    for line in answer.stdout.splitlines():
        told: dict[str, Any] = json.loads(line)
        if told["event"] == "offers":
            return told
    words = answer.stderr.strip().splitlines() or ["it said nothing"]
    return {"refused": words[-1], "forbidden": answer.returncode == FORBIDDEN}


def user_namespaces() -> Finding:
    """Lab netns is made of them."""
    name = "user namespaces"
    if "refused" not in tried():
        return Finding(name, "ok", "allowed: lab netns can be had without root")
    mend = "run as root, or sudo sysctl user.max_user_namespaces=15000; or use --lab docker"
    if _sysctl(APPARMOR) == "1":
        mend = f"sudo sysctl {APPARMOR}=0 (AppArmor forbids them), or use --lab docker"
    elif _sysctl("kernel.unprivileged_userns_clone") == "0":
        mend = "sudo sysctl kernel.unprivileged_userns_clone=1, or use --lab docker"
    return Finding(name, "lack", f"no lab netns: {tried()['refused']}", mend)


def token_bucket() -> Finding:
    """Every link is shaped by one."""
    return _qdisc("tbf", "lack", "no link can be shaped without it")


def netem() -> Finding:
    """Delay and loss in the kernel; the rig's own delay line does the same, at a higher cost."""
    return _qdisc("netem", "warn", "delays and losses are made by the rig's own delay line")


def _qdisc(kind: str, status: Status, without: str) -> Finding:
    if "refused" in tried():
        return Finding(kind, "warn", "not known: no namespace to try it in")
    if tried()["qdiscs"][kind]:
        return Finding(kind, "ok", f"this kernel has sch_{kind}")
    mend = f"sudo modprobe sch_{kind} (on some systems it is in the package kernel-modules-extra)"
    return Finding(kind, status, f"this kernel has no sch_{kind}: {without}", mend)


def tap() -> Finding:
    """The delay line's interfaces."""
    if "refused" in tried():
        return Finding("TAP", "warn", "not known: no namespace to try it in")
    if not tried()["tap"]:
        return Finding("TAP", "ok", "the delay line can be had")
    why, _, mend = str(tried()["tap"]).partition("; ")
    needed = not tried()["qdiscs"]["netem"]
    return Finding("TAP", "lack" if needed else "warn", f"no delay line: {why.rpartition(': ')[2]}", mend)


def other_qdiscs() -> Finding:
    """What else the kernel has, for whoever wants to compare."""
    kinds = {kind: there for kind, there in tried().get("qdiscs", {}).items() if kind not in ("tbf", "netem")}
    have = [kind for kind, there in kinds.items() if there]
    return Finding("other qdiscs", "ok", ", ".join(have) or "none that was looked for; the rig needs none")


def congestion() -> Finding:
    """Scenarios have cubic unless they name another."""
    available = offered()
    if has_congestion("cubic"):
        return Finding("congestion control", "ok", available)
    return Finding(
        "congestion control", "warn", f"{available}: no cubic", "sudo modprobe tcp_cubic, or set tcp: in the scenario"
    )


def offered() -> str:
    """Those that are built in or loaded."""
    return _sysctl("net.ipv4.tcp_available_congestion_control") or f"unknown to {platform.system()}"


def has_congestion(name: str) -> bool:
    """Whether TCP can have it; asking loads it where this user may. EPERM: it is there, for routes to name."""
    with socket.socket() as one:
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            return error.errno == errno.EPERM
    return True


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", *name.split(".")).read_text(encoding="ascii").strip()
    except OSError:
        return ""
