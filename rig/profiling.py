"""`rig profile`: time a model's layers on this machine, and write a layer table that scenarios can be paced by.

The measuring is done by rig.workloads.profiling, in a process of its own, since only that imports torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rig import models
from rig.errors import UsageError
from rig.node.stream import Lines
from rig.record import write_atomically

if TYPE_CHECKING:
    from rich.table import Table

DEVICES = ("auto", "cpu", "cuda")
OPTIMIZERS = ("sgd", "adamw")
UNSTEADY = 0.1  # of a step; repeats that differ by more are worth a word
HEAVIEST = 5  # tensors that the summary shows
NAME_WIDTH = 38  # characters of a tensor's name there; the end tells more
_INPUT = re.compile(r"(scalar|[1-9][0-9]{0,6}(?:x[1-9][0-9]{0,6}){0,5})(:int)?", re.ASCII)
_ANY_BATCH, _ANY_REPEATS = range(1, 10**6 + 1), range(1, 1001)

HINTS = {  # where it broke → what to do
    "find the model": "importing it must work in this folder and this environment",
    "call the factory": "it must work without arguments and without the network",
    "run it forward": "say with --input what it takes, such as 3x224x224 or 128:int, once for each argument",
    "run it backward": "what it returns must be differentiable",
}
OFFLINE = ("offline", "couldn't connect", "huggingface.co")  # what libraries say when they may not download


@dataclass(frozen=True)
class Request:
    """What is to be profiled, and how, as it was typed."""

    model: str
    batch: int = 8
    inputs: Sequence[str] = ()
    device: str = "auto"
    repeats: int = 5
    optimizer: str = "sgd"
    out: Path | None = None

    @property
    def file(self) -> Path:
        """Where the table goes: beside the caller, named after the model, unless it was said."""
        return self.out or Path(f"{_slug(self.model.rpartition(':')[2])}.json")


@dataclass(frozen=True)
class Made:
    """A table as it was written, and the profile in it that is new."""

    file: Path
    document: Mapping[str, Any]
    profile: str
    notes: tuple[str, ...]


def make(request: Request) -> Made:
    """Measure, and write the table; a table of the same tensors that is there gains a profile.

    Raises UsageError for whatever stands in the way: a factory, its input, a file of something else.
    """
    job = _job(request)
    before = _table_before(request.file)
    found = _measure(request, job)
    document, name = _document(request, found, before)
    write_atomically(request.file, models.text(document))
    models.read(request.file)  # what the rig wrote it must be able to read
    return Made(request.file, document, name, tuple(_notes(found, before)))


# ── what was asked ───────────────────────────────────────────────────────────────────────────────────
def _job(request: Request) -> dict[str, Any]:
    for option, value, known in (("device", request.device, DEVICES), ("optimizer", request.optimizer, OPTIMIZERS)):
        if value not in known:
            raise UsageError(f"--{option} {value!r}: profile {request.model}: there are {', '.join(known)}")
    for option, number, allowed in (
        ("batch", request.batch, _ANY_BATCH),
        ("repeats", request.repeats, _ANY_REPEATS),
    ):
        if number not in allowed:
            what = f"write one from {allowed.start} to {allowed.stop - 1}"
            raise UsageError(f"--{option} {number}: profile {request.model}: {what}")
    return {
        "model": request.model, "batch": request.batch, "inputs": [_input(text) for text in request.inputs],
        "device": request.device, "repeats": request.repeats, "optimizer": request.optimizer,
    }  # fmt: skip


def _input(text: str) -> dict[str, Any]:
    match = _INPUT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--input {text!r}: read what one sample is: it is no shape; write it like 3x224x224, or 128:int for "
            "whole numbers, or scalar:int for one number"
        )
    shape = [] if match[1] == "scalar" else [int(extent) for extent in match[1].split("x")]
    return {"shape": shape, "kind": "int" if match[2] else "float"}


def _told(wanted: Mapping[str, Any]) -> str:
    shape = "x".join(map(str, wanted["shape"])) or "scalar"
    return shape + (":int" if wanted["kind"] == "int" else "")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "model"


# ── the measurement ──────────────────────────────────────────────────────────────────────────────────
def _measure(request: Request, job: dict[str, Any]) -> dict[str, Any]:
    """The last thing that rig.workloads.profiling tells. Raises UsageError with what stood in its way."""
    with tempfile.TemporaryFile() as errors:
        process = _started(errors)
        try:
            out, _ = process.communicate(json.dumps(job).encode())
        finally:
            process.kill()
            process.wait()
        told = [event for event in _events(out) if event["event"] in ("profile", "ended")]
        if not told:
            raise UsageError(f"{request.model}: measure it: {_death(process.returncode, errors)}")
    if told[-1]["event"] == "ended":
        raise UsageError(f"{request.model}: {_obstacle(told[-1])}")
    return told[-1]


def _started(errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Its code is this very installation's, whatever lies in the folder it is started from."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "rig.workloads.profiling"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=errors, env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip


def _events(out: bytes) -> list[dict[str, Any]]:
    """One document a line; a table of thousands of tensors may be a long one."""
    return [event for line in out.split(b"\n") for event in Lines().feed(line + b"\n")]


def _death(status: int, errors: IO[bytes]) -> str:
    if status < 0:
        return f"signal {-status} ended it, as the kernel does where memory runs out; take a smaller --batch"
    errors.seek(0)
    words = errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"it left with exit status {status}: {words[-1]}"


def _obstacle(told: Mapping[str, Any]) -> str:
    kind, text, stage = told["kind"], told["text"], told["stage"]
    if kind == "UsageError":
        return str(text)
    if kind == "Download" or any(word in text.lower() for word in OFFLINE):
        asked = f"it asked for {text}" if kind == "Download" else text.rstrip(".")
        return f"{stage}: {asked}; nothing is downloaded here: give a factory that makes random weights"
    way_out = "take a smaller --batch" if kind == "OutOfMemoryError" else HINTS.get(stage, "it must train by itself")
    return f"{stage}: {kind}: {text}; {way_out}"


# ── the table ────────────────────────────────────────────────────────────────────────────────────────
def _table_before(file: Path) -> dict[str, Any] | None:
    """The table that is there already. Raises UsageError when something else is, or no scenario could name the file."""
    if file.suffix != ".json":
        raise UsageError(f"{file}: write a layer table: its name must end in .json; name another with --out")
    if not file.exists():
        if not file.parent.is_dir():
            raise UsageError(f"{file}: write a layer table: there is no folder {file.parent}; name another with --out")
        return None
    try:
        models.read(file)
    except UsageError as error:
        raise UsageError(f"{file}: write a layer table: something else is there; name another with --out") from error
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def _document(
    request: Request, found: Mapping[str, Any], before: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str]:
    """The table as it will be, and the name of the new profile. Raises UsageError where tensors differ."""
    if before is not None and _shapes(before) != _shapes(found):
        raise UsageError(
            f"{request.file}: add a profile: the table there is of other tensors than {request.model}; name another "
            "with --out"
        )
    measured, machine = found["measured"], models.machine()
    fed = " ".join(map(_told, found["inputs"]))
    profile = {
        "source": "rig profile", "date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine,
        "inputs": fed, **{key: value for key, value in measured.items() if key not in ("silent", "spread")},
    }  # fmt: skip
    where = machine.partition(",")[0] if measured["device"] == "cpu" else measured["device"]
    name = f"{request.file.stem}-{_slug(where)}"
    base = {key: value for key, value in before.items() if key != "schema"} if before else {
        "name": request.file.stem, "source": f"rig profile {request.model}; FLOPs at {fed}", "profiles": {},
        "parameters": found["parameters"], "buffers": found["buffers"],
    }  # fmt: skip
    return {"schema": models.SCHEMA, **base, "profiles": {**base["profiles"], name: profile}}, name


def _shapes(table: Mapping[str, Any]) -> list[Any]:
    return [(entry["name"], entry["shape"]) for entry in table["parameters"]]


def _notes(found: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[str]:
    notes = []
    if (spread := found["measured"]["spread"]) > UNSTEADY:
        notes.append(f"the slower repeats took {spread:.0%} longer than the median: this machine was busy with others")
    if silent := found["measured"]["silent"]:
        notes.append(f"{silent} tensors got no gradient from this input; DDP would wait for them")
    if before is not None:
        notes.append("the table was there already; it keeps its FLOP shares and other profiles")
    return notes


# ── what a person sees ───────────────────────────────────────────────────────────────────────────────
def summary(made: Made) -> Table:
    """Sizes and times, and the tensors that take longest, for a terminal of 80 columns."""
    from rich.table import Table

    profile, parameters = made.document["profiles"][made.profile], models.read(made.file).parameters
    size = sum(one.nbytes for one in parameters) / 1e6
    table = Table(title=f"{made.document['name']} on {profile['device']}: {size:.4g} MB of gradients a step")
    for heading in ("", "elements", "forward", "backward"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row(
        f"{len(parameters)} tensors, batch {profile['batch']}", f"{sum(one.numel for one in parameters):,}",
        _milliseconds(profile["forward"]), _milliseconds(profile["backward"]),
    )  # fmt: skip
    weights = zip(parameters, profile["forward_shares"], profile["backward_shares"], strict=True)
    for one, forward, backward in sorted(weights, key=lambda row: row[1] + 2 * row[2], reverse=True)[:HEAVIEST]:
        table.add_row(one.name[-NAME_WIDTH:], f"{one.numel:,}", f"{forward:.1%}", f"{backward:.1%}")
    table.add_row(f"optimizer: {profile['optimizer_kind']}", "", _milliseconds(profile["optimizer"]), "")
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def usage(made: Made) -> str:
    """How a scenario names the profile."""
    return (
        f"{made.file} written; in a scenario beside it:\n"
        f"  model: {made.file.name}\n  compute: {{profile: {made.profile}}}"
    )
