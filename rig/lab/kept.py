"""What was measured on this machine, kept in the user's cache folder and believed as long as it is this machine."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rig.node.machine import cpu

SCHEMA = 1


@dataclass(frozen=True)
class Machine:
    """By what a machine is known again: all that a speed measured on it hangs on, as far as it can be asked for."""

    cpu: str
    cores: int  # that this process may use
    kernel: str
    memory: int  # GiB


@dataclass(frozen=True)
class Kept:
    """A file of the cache folder that is of this machine, or why there is none to be used."""

    found: Mapping[str, Any] | None = None
    date: str = ""  # UTC
    why: str = ""  # empty where nothing was ever kept


def this_machine() -> Machine:
    """The one we are on."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpu() or platform.machine(), len(os.sched_getaffinity(0)), platform.release(), round(pages / 2**30))


def keep(name: str, found: Mapping[str, Any]) -> Path:
    """Write figures where `known` looks for them, with this machine and the date. Raises OSError."""
    path = file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "machine": asdict(this_machine()), "date": now(), "found": dict(found)}
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return draft.replace(path)


def known(name: str) -> Kept:
    """What was kept under a name; nothing, and why, where it is of another machine, another schema, or damaged."""
    try:
        path = file(name)
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:  # nothing was kept yet
        return Kept()
    except (OSError, ValueError) as error:
        return Kept(why=f"it cannot be read ({_words(error)})")
    try:
        if document["schema"] != SCHEMA:
            return Kept(why=f"its schema is {document['schema']!r}, this rig reads {SCHEMA}")
        there, here = Machine(**document["machine"]), this_machine()
        if there != here:
            return Kept(why=f"it is of another machine ({_unlike(there, here)})")
        return Kept(dict(document["found"]), str(document["date"]))
    except (KeyError, TypeError, ValueError) as error:
        return Kept(why=f"it is damaged ({error!r})")


def file(name: str) -> Path:
    """Where figures of that name are kept. Raises OSError for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rig", f"{name}.json")
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "there is no home folder") from error


def now() -> str:
    """This moment, UTC, to the second."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _unlike(there: Machine, here: Machine) -> str:
    return "; ".join(
        f"{name} {value}, here {getattr(here, name)}"
        for name, value in asdict(there).items()
        if value != getattr(here, name)
    )


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is no JSON"
