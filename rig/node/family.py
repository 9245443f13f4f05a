"""The processes that a process has started, and theirs, as /proc tells of them: what they use, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

PATIENCE = 2.0  # seconds for the killed to be gone; one that waits for a device may take longer
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Member:
    """One process, by proc_pid_stat(5)."""

    pid: int
    parent: int
    state: str  # the kernel's letter for what its first thread does: T is stopped, D waits for a device
    cpu: float  # seconds of CPU time, with that of children which have ended


def family(pid: int) -> list[Member]:
    """A process, where it still is, and all its descendants."""
    found = list(_members())
    children: dict[int, list[Member]] = {}
    for member in found:
        children.setdefault(member.parent, []).append(member)
    several = [member for member in found if member.pid == pid]
    for member in several:  # grows as it goes
        several += children.get(member.pid, [])
    return several


def end_descendants() -> None:
    """Kill all that this process has started and all that they have, and wait for it.

    Those too that went into a session of their own and lost their parents, if this process adopts orphans
    (namespaces.adopt_orphans): a daemon, or the ranks of a torchrun that is dead.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        living = [member.pid for member in family(os.getpid())[1:] if member.state != "Z"]
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # gone by now, or another user's by setuid
                pass
        _reap()
        if not living:
            return
        time.sleep(0.005)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there is none
        pass


def _members() -> Iterator[Member]:
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()  # the name in brackets may hold blanks and brackets
        except OSError:  # it has just ended
            continue
        yield Member(int(name), int(fields[1]), fields[0], sum(map(int, fields[11:15])) / _TICKS)
