"""One machine measures one thing at a time: a lock that the kernel gives back when its holder dies, however it dies.

It is the name of an abstract UNIX socket (unix(7)): nothing on disk, and the same for every user of this machine.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rig.errors import LackError
from rig.lab import Tell

NAME = "\0rig-measure"
GLANCE = 0.3  # s between two tries
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@contextmanager
def measuring(tell: Tell, locked: bool = True) -> Iterator[None]:
    """Hold the lock; wait until whoever has it is done, saying once who that is. Without `locked` do nothing.

    Labs may be built and open meanwhile, but two measurements at once would be of each other. Ctrl-C ends the wait.
    """
    if not locked:
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        told = False
        while not _taken(lock):
            if not told:
                tell(f"wait: another rig measures here ({holder() or 'it has just ended'}); --no-lock would not wait")
                told = True
            time.sleep(GLANCE)
        yield


def _taken(lock: socket.socket) -> bool:
    try:
        lock.bind(NAME)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise LackError(f"measurement lock: bind its socket: {error.strerror}; --no-lock does without") from error
    lock.listen(8)  # so that others can ask the kernel whose it is
    return True


def holder() -> str:
    """Who measures on this machine now, such as "process 4711: rig run ddp.yaml"; empty when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.setblocking(False)
        try:
            asker.connect(NAME)
            told = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except BlockingIOError:  # many have asked already
            return "many wait for it"
        except OSError:
            return ""
    pid = _CREDENTIALS.unpack(told)[0]
    if not pid:
        return "a process in another container"
    return f"process {pid}: {_command(pid)}"


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
    except OSError:
        words = []
    return " ".join([Path(words[0]).name, *words[1:]])[:120] if words and words[0] else "it has just ended"
