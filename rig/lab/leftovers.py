"""Whose a container is, and the removal of those whose rig is gone: only ever the rig's own, never a living run's."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from rig.lab import Tell
from rig.lab.daemon import connected

RUN, OWNER = "rig.run", "rig.owner"  # the labels of every container of a lab
REMOVE_WITHIN = 30.0  # seconds; nine containers take about one
SECOND_LOOK = 0.5  # seconds; an engine makes a container in 0.05 to 0.3
_OVER = ("Z", "X")  # states of a process that has ended, proc_pid_stat(5)
_START = 18  # where field 22, the start, stands behind field 3, the state
_ENDED = ("created", "exited", "dead")


@dataclass(frozen=True)
class Owner:
    """A process, told apart from any other that has, or will have, its number: on this boot, in this PID namespace."""

    pid: int
    start: int  # clock ticks since boot: proc_pid_stat(5), field 22
    boot: str  # the kernel's boot id
    space: int  # inode of the PID namespace: the rig may itself run in a container

    @classmethod
    def me(cls) -> Self:
        """This process."""
        return cls(os.getpid(), _start(os.getpid()), _boot(), _space())

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The label's text, or None where it is not the rig's."""
        try:
            pid, start, boot, space = text.split(":")
            return cls(int(pid), int(start), boot, int(space))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.pid}:{self.start}:{self.boot}:{self.space}"

    @property
    def is_local(self) -> bool:
        """Whether this process can tell if the owner lives."""
        return (self.boot, self.space) == (_boot(), _space())

    @property
    def lives(self) -> bool:
        """Whether that very process still runs; of a local owner only. In doubt (a hidden /proc) it does. One that was
        killed and that nobody has waited for yet, a zombie, does not.
        """
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        try:
            state, *rest = _fields(self.pid)
            return state not in _OVER and int(rest[_START]) == self.start
        except OSError:
            return True


def leftovers(client: docker.DockerClient) -> list[Container]:
    """Containers of runs whose rig is gone. One whose owner cannot be known (another machine's, another boot's,
    another PID namespace's) counts only if it no longer runs.
    """
    found: list[Container] = client.containers.list(all=True, ignore_removed=True, filters={"label": [RUN, OWNER]})
    return [container for container in found if _abandoned(container)]


def clean(tell: Tell) -> tuple[int, list[str]]:
    """Remove all leftovers, telling each by name; returns how many went, and the names of those that are still there.

    An engine goes on making the container that a rig asked for just before it was killed. So, after a moment, look
    again. Raises LackError where no engine answers.
    """
    went, left = 0, list[str]()
    with connected("clean up") as client:
        for pause in (0.0, SECOND_LOOK):
            time.sleep(pause)
            found = leftovers(client)
            left = remove(found)
            gone = [str(container.name) for container in found if container.name not in left]
            went += len(gone)
            for name in gone:
                tell(f"removed container {name}")
    return went, left


def remove(containers: Sequence[Container]) -> list[str]:
    """Force-remove containers, together, within 30 s; returns the names of those that are still there. Never raises."""
    pool = ThreadPoolExecutor(max(1, len(containers)), "rig-remove")
    jobs = {pool.submit(_remove, container): str(container.name) for container in containers}
    wait(jobs, REMOVE_WITHIN)
    pool.shutdown(wait=False, cancel_futures=True)
    return [name for job, name in jobs.items() if not job.done() or job.exception() is not None]


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if "already in progress" not in str(error):
            raise


def _abandoned(container: Container) -> bool:
    owner = Owner.read(container.labels[OWNER])
    if owner is None:
        return False
    return not owner.lives if owner.is_local else container.status in _ENDED


def _start(pid: int) -> int:
    return int(_fields(pid)[1 + _START])


def _fields(pid: int) -> list[str]:
    """proc_pid_stat(5) from field 3, the state, on. Field 2 may hold blanks and brackets: count from the last one."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _space() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
