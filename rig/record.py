"""A run's record: one JSON document, written whole after every case, never half."""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import rig
from rig.errors import RecordError
from rig.node.machine import cpu
from rig.results import CaseResult

SCHEMA = 1
NAME = "record.json"
STATUSES = ("pass", "fail", "invalid", "error", "skipped")
PACKAGES = ("torch", "pyroute2", "docker", "pydantic", "numpy")


def new_run_id() -> str:
    """Eight hexadecimal digits; part of every name the run gives and of RIG_RUN."""
    return secrets.token_hex(4)


def new_folder(reports: Path, scenario: str, run: str) -> Path:
    """Make `reports/<UTC>-<scenario>-<id>/`. Raises RecordError."""
    folder = reports / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{scenario}-{run}"
    try:
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise RecordError(f"{folder}: make the run's folder: {error.strerror}; name another with --out") from error
    return folder


class Record:
    """The document while it grows. `document` is plain JSON data throughout."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self.folder = folder
        self.document = document

    def add(self, result: CaseResult) -> None:
        """Put a finished case in (in place of an earlier one of the same id) and save."""
        cases = [case for case in self.document["cases"] if case["id"] != result.id]
        self.document["cases"] = [*cases, plain(asdict(result))]
        self._count()
        self.save()

    def close(self, exit_status: int, rest: Sequence[CaseResult]) -> None:
        """A run that ended early: its exit code, and the cases that were not run, as they would be judged."""
        known = {case["id"] for case in self.document["cases"]}
        self.document["cases"] += [plain(asdict(result)) for result in rest if result.id not in known]
        self._count()
        self.document["summary"]["exit"] = exit_status
        self.save()

    def _count(self) -> None:
        counts = {status: sum(case["status"] == status for case in self.document["cases"]) for status in STATUSES}
        self.document["summary"] |= counts | {"exit": exit_code(counts)}

    def save(self) -> None:
        """Write atomically: a reader, or a crash, sees the old document or the new one. Raises RecordError."""
        text = json.dumps(self.document, indent=1, allow_nan=False)
        write_atomically(self.folder / NAME, text)


def exit_code(counts: Mapping[str, int]) -> int:
    """What a run's verdicts mean for the shell: 3 something broke, 1 something failed, 4 not all could be judged, 0."""
    if counts["error"]:
        return 3
    if counts["fail"]:
        return 1
    return 4 if counts["invalid"] or counts["skipped"] else 0


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target, flush to disk, rename over it. Raises RecordError; the old file then stands."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise RecordError(
            f"{path}: save it: {error.strerror}; what was saved before is safe there; make room or use --out"
        ) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)  # there no more, but after an error or Ctrl-C


def start(folder: Path, run: str, scenario: Mapping[str, Any], environment: Mapping[str, Any]) -> Record:
    """An empty record. `scenario` {"path", "name", "description", "text", "resolved"}."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "rig": rig.__version__,
        "run": run,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "scenario": plain(dict(scenario)),
        "environment": plain(dict(environment)),
        "warnings": [],
        "cases": [],
        "summary": dict.fromkeys(STATUSES, 0) | {"exit": 0},
    }
    return Record(folder, document)


def load(path: Path) -> Record:
    """Read a record from its folder or file. Raises RecordError when it is damaged, missing or of another schema."""
    file = path / NAME if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, this rig reads {SCHEMA}")
        for case in document["cases"]:
            case["id"], case["status"]
        document["summary"].keys(), document["scenario"]["text"]
    except FileNotFoundError as error:
        raise RecordError(f"{file}: read a record: there is none; give the folder of a run") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(f"{file}: read a record: {what}; it is damaged or no record") from error
    return Record(file.parent, document)


def environment() -> dict[str, Any]:
    """What this machine is: for whoever reads the record later. Never fails: what cannot be had is null."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "versions": {name: _version(name) for name in PACKAGES},
        "sysctls": {name: _read(f"/proc/sys/{name.replace('.', '/')}") for name in _SYSCTLS},
        "git": _git(),
    }


_SYSCTLS = ("net.ipv4.tcp_congestion_control", "net.core.default_qdisc", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("ascii", errors="replace").strip()
    except OSError:
        return None


def _git() -> str | None:
    """The commit the current folder is at, with "+changes" where files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+changes", "--abbrev=12"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def plain(value: Any) -> Any:
    """JSON data: tuples as lists, quantities as numbers, what is no finite number as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
