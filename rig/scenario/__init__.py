"""YAML → Scenario: every cell of the sweep typed and checked, every error with file, line, column and key.

reading      text → values that know their place
fields, links, workloads, kinds, ddp, allreduce, written    the keys there are
network      where each cable's keys are written, and what they say together
checks       what does not go together in a network
timeline, traces, moments    what changes on links, and when
show         what the page about several runs draws
profiles     measured links between continents
sets         `--set`, and `sizes` as a sweep
sweep        blocks of swept paths
words        what pydantic found, in the rig's words
faults       errors with their places, told together
this file    reading, the cells, and all errors of a file in one ScenarioError
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rig.errors import ScenarioError
from rig.scenario.faults import Fault, fault, told
from rig.scenario.fields import MISSING
from rig.scenario.reading import Spot, read, shown, text_of
from rig.scenario.sets import applied, sizes_as_sweep
from rig.scenario.sweep import Block, blocks, most_nodes
from rig.scenario.words import complaint
from rig.scenario.workloads import KEY, Loc, Surroundings
from rig.scenario.written import Written, complaints

ENOUGH_FAULTS = 500  # after which no further cell is looked at


@dataclass(frozen=True)
class Cell:
    """One cell of the sweep, as written."""

    params: Mapping[str, Any]  # swept path → value as written
    written: Written


@dataclass(frozen=True)
class Scenario:
    """A scenario file that holds no error."""

    path: Path
    text: str  # of the file, before any `--set`
    resolved: Mapping[str, Any]  # the document after every `--set`, as plain values
    sweep: Mapping[str, tuple[Any, ...]]  # swept path → values as written, of all blocks
    cells: tuple[Cell, ...]  # at least one, block by block, a block's last path varying fastest

    @property
    def name(self) -> str:
        return self.cells[0].written.name

    @property
    def description(self) -> str:
        return self.cells[0].written.description

    @property
    def lab(self) -> str:
        """`auto`, `netns` or `docker`."""
        return self.cells[0].written.lab


def load(path: Path, sets: Sequence[str] = ()) -> Scenario:
    """Read a scenario file, with `--set` arguments such as "link.rate=1gbit" applied.

    Raises ScenarioError with one line for each thing that is wrong.
    """
    return loads(text_of(path), str(path), sets)


def loads(text: str, name: str, sets: Sequence[str] = ()) -> Scenario:
    """Read a scenario from its text; `name` is the path that errors show and that relative paths start from."""
    root = read(text, name)
    if not isinstance(root.value, dict):
        what = "is empty" if root.value is None else f"holds {shown(root.plain())}, and a scenario is a mapping of keys"
        raise ScenarioError(f"{root.place}: the file {what}; `rig init` writes one to start from")
    root = sizes_as_sweep(root)
    asked = blocks(root)[0]  # what a --set takes out of the sweep may still be named in show
    for argument in sets:
        root = sizes_as_sweep(applied(root, argument))
    swept, faults = blocks(root)
    around = Surroundings(Path(name).parent, most_nodes(root, swept), tuple({**_values(asked), **_values(swept)}))
    made, more = _cells(root, swept, faults, around)
    cells = list(_once(made))
    if not (faults or more or sets):  # after a --set, cells that it made alike are one
        more = set(_again(swept, made))
    if faults or more:
        raise ScenarioError(told([*faults, *more]))
    return Scenario(Path(name), text, root.plain(), _values(swept), tuple(cells))


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a scenario file, for editors."""
    document = Written.model_json_schema()
    swept = {"type": "array", "minItems": 1}
    about = "dotted path → values; every combination is a case"
    block = {"type": "object", "additionalProperties": swept, "description": about}
    several = {"type": "array", "minItems": 1, "items": block, "description": "blocks whose cases come together"}
    document["properties"]["sweep"] = {"anyOf": [block, several]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rig scenario", **document}


def starter(name: str) -> str:
    """The text of a commented scenario to start from; raises ScenarioError when `name` cannot be a scenario's."""
    text = _STARTER.format(name=name)
    loads(text, f"{name}.yaml")
    return text


# ── the cells ────────────────────────────────────────────────────────────────────────────────────────
def _cells(
    root: Spot, swept: list[Block], known: list[Fault], around: Surroundings
) -> tuple[list[list[Cell]], set[Fault]]:
    """The cells of each block, and every fault in one; faults that only follow from `known` ones are left out."""
    base = root.without(("sweep",))
    made: list[list[Cell]] = [[] for _ in swept]
    faults = set(_hidden(base, swept))
    excused = {_SWEPT.sub("", fault.key) for fault in known}
    for index, picked in ((index, picked) for index, block in enumerate(swept) for picked in block.picks()):
        tree, nowhere = swept[index].placed(base, picked)
        written, found = _examine(tree, around)
        faults.update(nowhere, (fault for fault in found if fault.key not in excused))
        if len(faults) > ENOUGH_FAULTS:
            break
        if written is not None:
            pairs = zip(swept[index].axes, picked, strict=True)
            made[index].append(Cell({".".join(axis.path): spot.plain() for axis, spot in pairs}, written))
    if not faults and not known:
        faults = {fault for block, cells in zip(swept, made, strict=True) for fault in _repeated(block, cells)}
    return made, faults


_SWEPT = re.compile(r"sweep\.([0-9]+\.)?")


def _hidden(base: Spot, swept: list[Block]) -> Iterator[Fault]:
    """Faults in values that the sweep replaces, which no cell would show."""
    axes = [axis for block in swept for axis in block.axes]
    for loc, text in _typed(base)[1]:
        if any(loc[: len(axis.path)] == axis.path for axis in axes) and not text.startswith("missing"):
            yield fault(base, loc, text)


def _examine(tree: Spot, around: Surroundings) -> tuple[Written | None, list[Fault]]:
    """The typed cell, or what is wrong with it: keys first, then whether they go together."""
    written, found = _typed(tree)
    wrong = [loc[:-1] if loc[-1:] == (KEY,) else loc for loc, _ in found]
    if written is None:  # what is right may still not go together, and is worth telling at once
        rest = tree
        for loc in wrong:
            rest = rest.without(loc)
        written = _typed(rest)[0]
    if written is not None:
        more = complaints(written, around)
        found += [(loc, text) for loc, text in more if not any(_follows(loc, bad) for bad in wrong)]
    faults = [fault(tree, loc, text) for loc, text in _told_once(found)]
    return (None if faults else written), faults


def _follows(loc: Loc, bad: Loc) -> bool:
    """Whether a complaint at `loc` may come only from `bad` having been taken out."""
    if bad[:1] == ("clusters",) and loc[0] in ("nodes", "wan"):
        return True
    return loc[: len(bad)] == bad or bad[: len(loc)] == loc


def _typed(tree: Spot) -> tuple[Written | None, list[tuple[Loc, str]]]:
    document = tree.plain()
    workload = document.get("workload")
    kind = workload.get("kind") if isinstance(workload, dict) else None
    try:
        return Written.model_validate(document), []
    except ValidationError as error:
        return None, [complaint(dict(each), kind) for each in error.errors(include_url=False)]


def _told_once(found: list[tuple[Loc, str]]) -> list[tuple[Loc, str]]:
    """Without the missing keys that an unknown key was probably meant to be."""
    texts = [text for _, text in found]
    return [
        (loc, text)
        for loc, text in found
        if text != MISSING or not any(f"did you mean {loc[-1]}?" in other for other in texts)
    ]


# ── cells that are alike ─────────────────────────────────────────────────────────────────────────────
def _repeated(block: Block, cells: list[Cell]) -> Iterator[Fault]:
    """Values of one axis that mean the same, such as 1gbit and 1000mbit: cells that differ in nothing else."""
    stride = len(cells)
    for axis in block.axes:
        stride //= len(axis.values)
        seen: dict[str, Spot] = {}
        for index, spot in enumerate(axis.values):
            first = seen.setdefault(cells[index * stride].written.model_dump_json(), spot)
            if first is not spot:
                text = f"{shown(spot.plain())} is {shown(first.plain())} again; write each value once"
                yield Fault(spot.place, axis.key, text)


def _again(swept: list[Block], made: list[list[Cell]]) -> Iterator[Fault]:
    """Cells that an earlier block has made already."""
    seen: dict[str, Block] = {}
    for block, cells in zip(swept, made, strict=True):
        for cell in cells:
            first = seen.setdefault(cell.written.model_dump_json(), block)
            if first is not block:
                which = ", ".join(f"{path}: {shown(value)}" for path, value in cell.params.items())
                text = f"its cell {{{which}}} is one of {first.key} already; write each cell once"
                yield Fault(block.place, block.key, text)


def _once(made: list[list[Cell]]) -> Iterator[Cell]:
    """The cells of all blocks in order, the first of those alike."""
    if len(made) == 1:
        yield from made[0]
        return
    seen = set()
    for cell in (cell for cells in made for cell in cells):
        alike = cell.written.model_dump_json()
        if alike not in seen:
            seen.add(alike)
            yield cell


def _values(swept: list[Block]) -> dict[str, tuple[Any, ...]]:
    """Every swept path with the values that any block gives it."""
    found: dict[str, list[Any]] = {}
    for axis in (axis for block in swept for axis in block.axes):
        known = found.setdefault(".".join(axis.path), [])
        known += [value for value in (spot.plain() for spot in axis.values) if value not in known]
    return {path: tuple(values) for path, values in found.items()}


_STARTER = """\
# {name}: does a faster link make data-parallel training scale?
# Try `rig plan` on this file first: it shows the cases and what is predicted for them, and builds nothing.
name: {name}
description: Does a faster link make data-parallel training scale?
nodes: 2                        # training machines, each with a link of its own to one switch
link: {{rate: 1gbit}}             # a bare number is refused: bits are written mbit or gbit, bytes MB/s
                                # beside rate: delay, jitter, loss, queue, …, also under up: and down: for one direction
workload:
  kind: ddp                     # or allreduce, with a size
  model: resnet50               # a layer table that ships with the rig
  batch: 32                     # samples per node and step
  compute: {{profile: resnet50-gtx1080ti}}   # or real, {{throughput: 171 samples/s}}, {{forward: 40ms, backward: 80ms}}
  steps: 5                      # measured, after the warm-up
  warmup: 2
sweep:                          # every combination is a case; any key may be swept by its dotted path
  nodes: [1, 2]
  link.rate: [1gbit, 2.5gbit]
expect:                         # measured against predicted; leave one out and it is reported, not judged
  traffic: 0.05%
  step_time: 2.5%
  speedup: 2.5%
"""
