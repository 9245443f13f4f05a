"""Layer tables of models, for paced compute: every trained tensor in registration order, with its FLOP share.

One JSON file a model. Those that lie here were made by `scripts/make_tables.py`, others by `rig profile`. A share is of
the forward FLOPs; the shares of a table add up to one. Standard library only: a plan reads these without torch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from rig.errors import UsageError
from rig.node.machine import cpu, named
from rig.work import LayerTable, Tensor

SCHEMA = 2  # 1 has published speeds only: {"throughput": samples/s, "optimizer": s}
READ = (1, 2)
DTYPES = ("float32", "float16", "bfloat16", "int64")
SLACK = 1e-3  # by which shares may miss one: they are rounded
_FOLDER = Path(__file__).parent
_CARDS = Path("/proc/driver/nvidia/gpus")


@cache
def names() -> tuple[str, ...]:
    """The models that have a table here, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load(name: str) -> LayerTable:
    """The table of a built-in model; raises UsageError for any other name."""
    if name not in names():
        raise UsageError(_unknown(name, names()))
    return read(_FOLDER / f"{name}.json")


def read(path: Path) -> LayerTable:
    """A layer table from its file; raises UsageError when the file is not one, or a damaged one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] not in READ:
            raise ValueError(f"its schema is {document['schema']!r}, this rig reads {' and '.join(map(str, READ))}")
        parameters, buffers = (tuple(map(_tensor, document[kind])) for kind in ("parameters", "buffers"))
        if not parameters:
            raise ValueError("it has no parameters")
        for name, profile in document["profiles"].items():
            _check(name, profile, len(parameters))
        return LayerTable(str(document["name"]), parameters, buffers, document["profiles"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else f"no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{path}: read a layer table: {what}; make one with `rig profile`") from error


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    shape, share, dtype = entry["shape"], float(entry.get("flops", 0.0)), entry.get("dtype", "float32")
    if not all(type(extent) is int and extent > 0 for extent in shape):
        raise ValueError(f"{entry['name']} has the shape {shape}")
    if not 0 <= share <= 1:
        raise ValueError(f"{entry['name']} has a share of {share}")
    if dtype not in DTYPES:
        raise ValueError(f"{entry['name']} is {dtype!r}; there are {', '.join(DTYPES)}")
    return Tensor(entry["name"], tuple(shape), share, dtype)


def _check(name: str, profile: Mapping[str, Any], tensors: int) -> None:
    """Raise ValueError unless a profile has what its kind needs, published or measured."""
    measured = "throughput" not in profile
    for key in ("batch", "forward", "backward") if measured else ("throughput",):
        if not 0 < profile[key] < math.inf:
            raise ValueError(f"profile {name}: {key} is {profile[key]}")
    if not 0 <= profile["optimizer"] < math.inf:
        raise ValueError(f"profile {name}: optimizer is {profile['optimizer']}")
    if not 0 < profile.get("forward_part", 0.5) < 1:
        raise ValueError(f"profile {name}: forward_part is {profile['forward_part']}")
    for key in ("forward_shares", "backward_shares") if measured else ():
        shares = profile[key]
        if len(shares) != tensors:
            raise ValueError(f"profile {name}: {key} has {len(shares)} entries for {tensors} tensors")
        if min(shares) < 0 or abs(sum(shares) - 1) > SLACK:
            raise ValueError(f"profile {name}: {key} adds up to {sum(shares):.6g}, not to 1")


def text(document: Mapping[str, Any]) -> str:
    """A table as JSON with one tensor a line, so that a change can be read in a diff."""
    rows = {key: ",\n    ".join(map(json.dumps, document[key])) for key in ("parameters", "buffers")}
    head = {key: value for key, value in document.items() if key not in rows}
    body = re.sub(r"\[[-0-9.e,\s]+\]", _on_one_line, json.dumps(head, indent=2))[:-2]
    for key, lines in rows.items():
        body += f',\n  "{key}": [\n    {lines}\n  ]' if lines else f',\n  "{key}": []'
    return body + "\n}\n"


def _on_one_line(shares: re.Match[str]) -> str:
    return "[" + ", ".join(shares[0][1:-1].replace(",", " ").split()) + "]"


def machine() -> str:
    """What this machine is called in a profile: its CPU, how many of its cores there are, its graphics cards."""
    cards = [named(file, "Model") for file in sorted(_CARDS.glob("*/information"))]
    return ", ".join([f"{cpu() or os.uname().machine} ({len(os.sched_getaffinity(0))} cores)", *filter(None, cards)])


def _unknown(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"models: look up the model {name!r}: there is none; {meant}known: {', '.join(known)}"
