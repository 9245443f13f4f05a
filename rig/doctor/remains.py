"""What earlier runs left, and what others do to this machine's network. Looked at, never touched."""

from __future__ import annotations

import socket
from pathlib import Path

from rig import held, survey
from rig.doctor import containers
from rig.doctor.finding import Finding
from rig.errors import LabError
from rig.node.netlink import ROOT, TCA_KIND, Netlink

_DEFAULT_QDISC = Path("/proc/sys/net/core/default_qdisc")
HARMLESS = ("noqueue", "mq", "pfifo_fast", "fq_codel", "fq", "noop")  # what kernels and distributions set


def leftovers() -> Finding:
    """Containers and notes of runs whose rig is gone, and processes whose rig is."""
    found = [*(f"container {name}" for name in _containers()), *(f"notes of run {run}" for run in _stale())]
    orphans = [f"processes of run {run}: {' '.join(map(str, pids))}" for run, pids in orphaned().items()]
    if not found and not orphans:
        return Finding("leftovers", "ok", "none")
    mend = "rig clean" if found else "look at them, and end them: kill " + " ".join(
        str(pid) for pids in orphaned().values() for pid in pids
    )  # fmt: skip
    return Finding("leftovers", "warn", "; ".join([*found, *orphans]), mend)


def _stale() -> list[str]:
    return [one.run for one in held.every() if not one.lives]


def _containers() -> list[str]:
    if "lack" in containers.seen():
        return []
    from rig.lab import daemon
    from rig.lab import leftovers as ours

    try:
        with daemon.connected("look for leftovers", timeout=10.0) as client:
            return [str(one.name) for one in ours.leftovers(client)]
    except LabError:
        return []


def orphaned() -> dict[str, list[int]]:
    """Runs none of whose processes has a living parent: those were adopted by the system's first process, or by a
    session's systemd. Labs that are up are not among them, their keeper is meant to be on its own.
    """
    up = {one.run for one in held.every()}
    return {run: pids for run, pids in survey.marked().items() if run not in up and _adopted(set(pids))}


def _adopted(pids: set[int]) -> bool:
    outside = {parent for parent in map(_parent, pids) if parent not in pids}
    return all(parent == 1 or _name(parent) == "systemd" for parent in outside - {0})


def _parent(pid: int) -> int:
    """0 when it is gone by now. The name in field 2 of proc_pid_stat(5) may hold blanks."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    except (OSError, IndexError):
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def foreign_qdiscs() -> Finding:
    """Somebody shapes this host's own interfaces: of no matter to labs, but physical nodes would feel it."""
    shaped = [f"{name}: {kind}" for name, kind in root_qdiscs().items() if kind not in (*HARMLESS, _default())]
    if not shaped:
        return Finding("foreign qdiscs", "ok", "none on this host's interfaces")
    mend = "theirs to remove: tc qdisc del dev NAME root; labs are not affected"
    return Finding("foreign qdiscs", "warn", ", ".join(shaped), mend)


def root_qdiscs() -> dict[str, str]:
    """Interface → kind of its root qdisc, in this network namespace."""
    names = dict(socket.if_nameindex())
    netlink = Netlink()
    try:
        return {
            names[one.interface]: one.attributes[TCA_KIND].rstrip(b"\0").decode()
            for one in netlink.qdiscs()
            if one.parent == ROOT and one.interface in names
        }
    finally:
        netlink.close()


def _default() -> str:
    try:
        return _DEFAULT_QDISC.read_text(encoding="ascii").strip()
    except OSError:
        return ""
