"""What a case's notes tell of GPUs and of NCCL, for its record and its verdict. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rig.lab.nccl_log import bypass
from rig.model import Case

Note = Mapping[str, Any]


def told(case: Case, notes: Sequence[Note]) -> dict[str, Any]:
    """By name "gpu", the cards of each node (see `seen`), and "nccl", {"version", "interfaces", "choices",
    "transports", "bypass"}; each only where there is one.
    """
    found: dict[str, Any] = {"gpu": seen(notes)} if any(note["event"] == "gpu" for note in notes) else {}
    if said := [note for note in notes if note["event"] == "transport"]:
        found["nccl"] = {
            "version": next((note["version"] for note in said if note["version"]), None),
            "interfaces": _each(name for note in said for name in note["interfaces"]),
            "choices": _each(name for note in said for name in note["choices"]),
            "transports": _each(way["via"] for note in said for way in note["ways"]),
            "bypass": bypass(said, {node.name: node.ranks for node in case.nodes}),
        }
    return found


def _each(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


def seen(notes: Sequence[Note]) -> dict[str, list[dict[str, Any]]]:
    """By node, each of its cards: {"name", "driver", "memory" (B), "used" (B, the most of all repeats), "busy" (0 to 1,
    while ranks trained; the mean of repeats, None where a card does not tell)}, and in "peak" the most that tensors of
    a rank took (B), where ranks told.
    """
    by_node: dict[str, list[Sequence[Note]]] = defaultdict(list)
    for note in notes:
        if note["event"] == "gpu":
            by_node[note["node"]].append(note["cards"])
    peaks: dict[str, int] = defaultdict(int)
    for note in notes:
        if note.get("peak"):
            peaks[note["node"]] = max(peaks[note["node"]], note["peak"])
    return {
        node: [
            _card(repeats) | ({"peak": peaks[node]} if node in peaks else {}) for repeats in zip(*of_node, strict=True)
        ]
        for node, of_node in by_node.items()
    }


def _card(repeats: Sequence[Note]) -> dict[str, Any]:
    busy = [one["busy"] for one in repeats if one["busy"] is not None]
    return {
        **{key: repeats[0][key] for key in ("name", "driver", "memory")},
        "used": max(one["used"] for one in repeats),
        "busy": fmean(busy) if busy else None,
    }
