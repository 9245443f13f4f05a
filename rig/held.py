"""Labs that `rig up` holds open: a private folder with one file and one socket each.

The file says how to reach the lab's places; the socket is its keeper's (see keeper.py), and whoever answers there
lives. So no process number is ever trusted: a new process may have an old one's.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rig.errors import LabError, UsageError

ANSWER_WITHIN = 30.0  # seconds; the keeper asks the fabric, which may be wiring
DOWN_WITHIN = 90.0  # seconds; containers take the longest


@dataclass(frozen=True)
class Held:
    """One lab that is up, as its file tells it."""

    run: str
    pid: int  # its keeper's, for people to see
    since: str  # UTC
    lab: str  # netns or docker
    scenario: str
    case: str
    places: Mapping[str, list[str]]  # node or switch → the command that a command there is appended to
    python: list[str]  # how Python with the rig's code is started in any of them
    links: Mapping[str, Mapping[str, Any]]  # cable → {"tap": [place, interface], "up" and "down": {what was asked}}

    def save(self) -> None:
        """Write the file, whole or not at all. Raises LabError."""
        path = folder() / f"{self.run}.json"
        draft = path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(asdict(self)), encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            raise LabError(f"{path}: note the lab that is up: {error.strerror}; set XDG_RUNTIME_DIR") from error

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What a file says, or None where it is gone by now or not the rig's."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def lives(self) -> bool:
        """Whether its keeper answers."""
        return _answers(self.run)

    def ask(self, do: str, within: float = ANSWER_WITHIN) -> dict[str, Any]:
        """Put one request to the keeper and hear it out. Raises LabError."""
        try:
            with _connected(self.run) as channel:
                channel.settimeout(within)
                channel.sendall(json.dumps({"do": do}).encode() + b"\n")
                answer: dict[str, Any] = json.loads(read_line(channel))
        except (OSError, ValueError) as error:
            gone = "its keeper is gone; `rig clean` removes what it left"
            silent = f"its keeper gave no answer ({error}); look at process {self.pid}"
            raise LabError(f"run {self.run}: {do}: {silent if self.lives else gone}") from error
        if "error" in answer:
            raise LabError(str(answer["error"]))
        return answer

    def down(self) -> list[str]:
        """End the lab, wait until it is gone, and return what its keeper warned of. Raises LabError."""
        warnings: list[str] = self.ask("down", DOWN_WITHIN)["warnings"]
        until = time.monotonic() + ANSWER_WITHIN
        while self.lives and time.monotonic() < until:
            time.sleep(0.02)
        return warnings


def every() -> list[Held]:
    """All labs that have a file here, the oldest first; their keepers may be gone."""
    found = [Held.read(path) for path in folder().glob("*.json")]
    return sorted((held for held in found if held), key=lambda held: held.since)


def find(run: str | None) -> Held:
    """The lab of a run, by the beginning of its id; without one, the only living lab there is. Raises UsageError."""
    held = every()
    fits = [one for one in held if (one.lives if run is None else one.run.startswith(run))]
    if len(fits) == 1:
        return fits[0]
    there = ", ".join(f"{one.run} ({one.scenario}: {one.case})" for one in fits or held)
    if fits:
        raise UsageError(f"which lab: more than one fits: {there}; say which by its id")
    if run is None or not there:
        raise UsageError("which lab: none is up; `rig up FILE` opens one")
    raise UsageError(f"which lab: none has an id like {run!r}; there are {there}")


def clean(tell: Callable[[str], None]) -> int:
    """Remove the files of labs whose keeper is gone, telling each; returns how many."""
    gone = [held.run for held in every() if not held.lives]
    known = {path.stem for path in folder().glob("*.json")}
    orphans = [path.stem for path in folder().glob("*.sock") if path.stem not in known and not _answers(path.stem)]
    for run in [*gone, *orphans]:
        forget(run)
        tell(f"removed the state of run {run}, whose keeper is gone")
    return len(gone) + len(orphans)


def forget(run: str) -> None:
    """Remove a lab's file and socket, and the folder with the last of them."""
    place = folder()
    for suffix in (".json", ".new", ".sock"):
        (place / f"{run}{suffix}").unlink(missing_ok=True)
    with suppress(OSError):  # another lab's are there
        place.rmdir()


# ── the folder and its sockets ───────────────────────────────────────────────────────────────────────
def folder() -> Path:
    """The private folder, which need not be there. Raises LabError when somebody else could read or write it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime, "rig") if runtime else Path(tempfile.gettempdir(), f"rig-{os.getuid()}")
    try:
        found = path.lstat()
    except OSError:  # not there yet, or not to be had: making it will tell
        return path
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LabError(f"{path}: keep notes of labs that are up: it is not a private folder of yours; remove it")
    return path


@contextmanager
def listening(run: str) -> Iterator[socket.socket]:
    """The keeper's end: a socket to accept on; file and socket are gone afterwards. Raises LabError."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            _bind(server, run)
            server.listen(16)
        except OSError as error:
            raise LabError(f"{folder()}: listen for requests: {error.strerror}; set XDG_RUNTIME_DIR") from error
        try:
            yield server
        finally:
            forget(run)


def _bind(server: socket.socket, run: str) -> None:
    """Once more where another lab's end took the empty folder away in between."""
    for last in (False, True):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with _short(run) as address:
                server.bind(address)
            return
        except FileNotFoundError:
            if last:
                raise


@contextmanager
def _connected(run: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as channel, _short(run) as address:
        channel.settimeout(5)
        channel.connect(address)
        yield channel


def _answers(run: str) -> bool:
    try:
        with _connected(run):
            return True
    except OSError:
        return False


@contextmanager
def _short(run: str) -> Iterator[str]:
    """A socket's address may have 107 bytes only (unix(7)), a folder's path more: go by its descriptor."""
    descriptor = os.open(folder(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{run}.sock"
    finally:
        os.close(descriptor)


def read_line(channel: socket.socket) -> bytes:
    """One line, or what there was of it when the other side left. Raises OSError after the socket's time-out."""
    line = b""
    with suppress(ConnectionResetError):
        while not line.endswith(b"\n"):
            chunk = channel.recv(1 << 16)
            if not chunk:
                break
            line += chunk
    return line
