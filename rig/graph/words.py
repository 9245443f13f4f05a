"""A topology as text for a terminal, and as a Mermaid flowchart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rig.graph.sketch import Sketch, Wire

COLUMNS = 80
LEAST_LABEL = 16  # columns that are always left for what a cable does


def lines(sketch: Sketch) -> Iterator[str]:
    """A line per group of nodes and per cable between switches: `n0…n3 ── 1gbit, 5ms ── switch-us`."""
    nodes = [group.wire for group in sketch.groups]
    width = max((len(wire.start) for wire in (*nodes, *sketch.wans)), default=0)
    ends = max((len(wire.end) for wire in (*nodes, *sketch.wans)), default=0)
    room = max(LEAST_LABEL, COLUMNS - width - ends - len(" ──  ── "))
    labels = {wire: _wrapped(wire, room) for wire in (*nodes, *sketch.wans)}
    middle = max((len(line) for label in labels.values() for line in label), default=0)
    for wire in nodes:
        yield from _drawn(wire, "─", labels[wire], (width, middle))
    for wire in sketch.wans:
        yield from _drawn(wire, "═", labels[wire], (width, middle))


def _wrapped(wire: Wire, room: int) -> list[str]:
    found: list[str] = []
    for line in wire.label():
        found += textwrap.wrap(line, room, subsequent_indent="  ")
    return found


def _drawn(wire: Wire, line: str, label: Sequence[str], widths: tuple[int, int]) -> Iterator[str]:
    width, middle = widths
    first = f"{label[0]} ".ljust(middle + 1, line)
    yield f"{wire.start.ljust(width)} {line * 2} {first}{line * 2} {wire.end}"
    for rest in label[1:]:
        yield f"{' ' * (width + 4)}{rest}"


def mermaid(sketch: Sketch) -> Iterator[str]:
    """The lines of a flowchart; every text is quoted, so that no word of it is taken for syntax."""
    yield "flowchart LR"
    ids = {name: f"s{number}" for number, name in enumerate(sketch.switches)}
    for name, id_ in ids.items():
        yield f"  {id_}(({_quoted(name)}))"
    for number, group in enumerate(sketch.groups):
        many = f" ({len(group.nodes)} nodes)" if len(group.nodes) > 1 else ""
        yield f"  g{number}[{_quoted(group.name + many)}]"
        yield f"  g{number} ---|{_label(group.wire)}| {ids[group.wire.end]}"
    for wire in sketch.wans:
        yield f"  {ids[wire.start]} ===|{_label(wire)}| {ids[wire.end]}"


def _label(wire: Wire) -> str:
    return _quoted("<br>".join(wire.label()))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'
