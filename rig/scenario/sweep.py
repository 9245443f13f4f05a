"""`sweep:` as written → blocks of axes.

A mapping of dotted paths to values is one block: its cross product are the cells. A list of such mappings is a block
each, and the cells of all of them together are the sweep, so that a design need not have every combination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from rig.scenario.faults import Fault
from rig.scenario.links import MOST_NODES
from rig.scenario.reading import Place, Spot, shown
from rig.scenario.workloads import Loc

MAX_CELLS = 1000
NOT_SWEPT = ("name", "description", "lab", "gpu", "show", "sweep")  # one run has one of each
FORM = "a mapping {dotted path: [values]}, or a list of such mappings"


@dataclass(frozen=True)
class Axis:
    """One swept path, and the values it takes."""

    path: Loc
    key: str  # as errors name it: sweep.link.rate, or sweep.1.link.rate in the second block
    place: Place
    values: tuple[Spot, ...]


@dataclass(frozen=True)
class Block:
    """One cross product; without axes it is one cell, the document as it stands."""

    key: str
    place: Place
    axes: tuple[Axis, ...]

    def picks(self) -> Iterator[tuple[Spot, ...]]:
        """A value of every axis, the last varying fastest."""
        return product(*(axis.values for axis in self.axes))

    def placed(self, tree: Spot, picked: Sequence[Spot]) -> tuple[Spot, list[Fault]]:
        """The document with those values in place, and the paths that lead nowhere."""
        faults = []
        for axis, spot in zip(self.axes, picked, strict=True):
            try:
                tree = tree.replaced(axis.path, spot, axis.place)
            except KeyError:
                text = "no such key: part of it is neither a mapping nor an item of a list"
                faults.append(Fault(axis.place, axis.key, text))
        return tree, faults


def blocks(root: Spot) -> tuple[list[Block], list[Fault]]:
    """The blocks of a document; one without axes where nothing is swept. Axes that are wrong are left out."""
    sweep = root.get("sweep")
    if sweep is None or sweep.value is None:
        return [Block("sweep", root.place, ())], []
    found: list[Block] = []
    faults: list[Fault] = []
    for key, spot in _mappings(sweep):
        if isinstance(spot.value, dict):
            axes, wrong = _axes(spot, key)
            found.append(Block(key, spot.place, axes))
            faults += wrong
        else:
            faults.append(Fault(spot.place, key, f"needs {FORM}, found {shown(spot.plain())}"))
    count = sum(prod(len(axis.values) for axis in block.axes) for block in found)
    if count > MAX_CELLS:
        text = f"makes {count} cases, and more than {MAX_CELLS} are refused; sweep fewer values"
        faults.append(Fault(sweep.place, "sweep", text))
        found = [_shortened(block) for block in found[:MAX_CELLS]]
    return found or [Block("sweep", sweep.place, ())], faults


def _mappings(sweep: Spot) -> list[tuple[str, Spot]]:
    if isinstance(sweep.value, list) and sweep.value:
        return [(f"sweep.{index}", spot) for index, spot in enumerate(sweep.value)]
    return [("sweep", sweep)]


def _shortened(block: Block) -> Block:
    return replace(block, axes=tuple(replace(axis, values=axis.values[:1]) for axis in block.axes))


def _axes(mapping: Spot, key: str) -> tuple[tuple[Axis, ...], list[Fault]]:
    axes, faults = [], []
    for dotted, values in mapping.value.items():
        listed = values.value if isinstance(values.value, list) else ()
        axis = Axis(tuple(dotted.split(".")), f"{key}.{shown(dotted)}", mapping.keys[dotted], tuple(listed))
        if axis.path[0] in NOT_SWEPT:
            faults.append(Fault(axis.place, axis.key, "cannot be swept: one run has one of it"))
        elif not axis.values:
            text = f"needs a list of at least one value, found {shown(values.plain())}"
            faults.append(Fault(values.place, axis.key, text))
        else:
            axes.append(axis)
    return tuple(axes), faults


def most_nodes(root: Spot, swept: Sequence[Block]) -> int:
    """The largest node count of the sweep; as many as there may be where it cannot be read."""
    counts = [0]
    for block in swept:
        counting = replace(block, axes=tuple(axis for axis in block.axes if axis.path[0] in ("nodes", "clusters")))
        for picked in counting.picks():
            tree = root
            for axis, spot in zip(counting.axes, picked, strict=True):
                with suppress(KeyError):  # told where the cells are made
                    tree = tree.replaced(axis.path, spot, axis.place)
            counts.append(_count(tree.get("nodes")) + _clustered(tree.get("clusters")))
    return max(counts) or MOST_NODES


def _clustered(clusters: Spot | None) -> int:
    members = clusters.value if clusters is not None and isinstance(clusters.value, dict) else {}
    return sum(_count(cluster.get("nodes")) for cluster in members.values())


def _count(spot: Spot | None) -> int:
    return spot.value if spot is not None and isinstance(spot.value, int) and spot.value > 0 else 0
