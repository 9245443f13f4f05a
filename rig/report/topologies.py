"""The networks of a run, drawn from what its record says was resolved; a case that makes no sense is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rig.graph import drawing, sketch

MOST_DRAWN = 4
MOST_SWITCHES, MOST_WANS = 16, 120  # of one drawing


@dataclass(frozen=True)
class Topology:
    """One network, and the cases that ran on it."""

    svg: str
    title: str
    cases: tuple[str, ...]


def topologies(cases: Sequence[Mapping[str, Any]]) -> tuple[tuple[Topology, ...], int]:
    """Every different network once, those with most to see first, and how many are left out."""
    found: dict[sketch.Sketch, list[str]] = {}
    for case in cases:
        if (drawn := _sketch(case)) is not None:
            found.setdefault(drawn, []).append(str(case.get("id", "")))
    richest = sorted(found, key=lambda one: (-len(one.wans), -sum(len(group.nodes) for group in one.groups)))
    shown = (Topology(drawing.svg(one), one.title, tuple(found[one])) for one in richest[:MOST_DRAWN])
    return tuple(shown), max(0, len(richest) - MOST_DRAWN)


def _sketch(case: Mapping[str, Any]) -> sketch.Sketch | None:
    try:
        found = sketch.of_plain(case)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):  # a stranger's record, or an old one
        return None
    fits = len(found.switches) <= MOST_SWITCHES and len(found.wans) <= MOST_WANS
    return found if found.groups and fits else None
