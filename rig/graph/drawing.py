"""A topology as an SVG that stands by itself, or on a page: its colours are the page's where that has any.

Switches stand in a row, each with its nodes below it; cables between switches are arcs above.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rig.graph.sketch import Group, Sketch

COLUMN, GAP = 176, 24  # a switch with its nodes, and the space to the next (units of the viewBox)
SWITCH_HEIGHT, GROUP_HEIGHT, NODE_HEIGHT = 34, 88, 40
ARC = 46  # from one lane of arcs to the next
LEG = 10  # between arcs that leave a switch for one side
LINE = 14  # of text
DOTS = 16  # nodes drawn one by one in a group
MOST_GROUPS = 12  # below one switch
MOST_LETTERS = 28  # of a line, about a column of them
MOST_LINES = 3  # of a label, which is what fits between a switch and its nodes

INK, MUTED, BORDER, PAPER = "var(--ink, #1d2430)", "var(--muted, #5b6675)", "var(--line, #c8d0da)", "var(--paper, #fff)"
NODE, WAN = "var(--compute, #3572b0)", "var(--comm, #c8642b)"


def svg(sketch: Sketch) -> str:
    """The drawing as one <svg> element."""
    arcs = _arcs(sketch)
    most = max((len(sketch.at(switch)) for switch in sketch.switches), default=0)
    width = max(1, len(sketch.switches)) * (COLUMN + GAP) + GAP
    row = GAP + max((arc.lane * ARC for arc in arcs), default=0) + (2 * LINE if arcs else 0)
    height = row + SWITCH_HEIGHT + min(most, MOST_GROUPS) * GROUP_HEIGHT + (LINE if most > MOST_GROUPS else 0) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{_text("Topology: " + sketch.title, 200)}" style="max-width:100%;height:auto" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        *(_path(arc, row) for arc in arcs),
    ]
    for arc in arcs:
        parts += _label(arc.label, (arc.left + arc.right) // 2, row - arc.lane * ARC)
    for switch in sketch.switches:
        parts += _column(sketch, switch, row)
    return "\n".join([*parts, "</svg>"])


def _at(sketch: Sketch, switch: str) -> int:
    return sketch.switches.index(switch)


def _left(column: int) -> int:
    return GAP + column * (COLUMN + GAP)


@dataclass(frozen=True)
class _Arc:
    """One cable between switches: where it leaves each, and how high it goes."""

    left: int
    right: int
    lane: int  # 1 is the lowest
    label: tuple[str, ...]


def _arcs(sketch: Sketch) -> list[_Arc]:
    """Each in the lowest lane that is free all along it, short ones first; where several leave a switch for one side,
    the higher the nearer its middle, so that they do not cross there.
    """
    lanes: list[list[tuple[int, int]]] = []
    placed = []
    for wire in sorted(sketch.wans, key=lambda wire: abs(_at(sketch, wire.start) - _at(sketch, wire.end))):
        one, other = sorted((_at(sketch, wire.start), _at(sketch, wire.end)))
        lane = next((n for n, taken in enumerate(lanes) if all(b <= one or other <= a for a, b in taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((one, other))
        placed.append(
            (one, other, lane + 1, wire.label() if _at(sketch, wire.start) == one else wire.label("← ", "→ "))
        )
    arcs = []
    for one, other, lane, label in placed:
        right = sum(a == one and n >= lane for a, _, n, _ in placed)
        left = sum(b == other and n >= lane for _, b, n, _ in placed)
        middle = COLUMN // 2
        arcs.append(_Arc(_left(one) + middle + right * LEG, _left(other) + middle - left * LEG, lane, label))
    return arcs


def _path(arc: _Arc, row: int) -> str:
    """Up, along, and down again, with round corners."""
    top = row - arc.lane * ARC
    return (
        f'<path d="M{arc.left} {row} V{top + 12} Q{arc.left} {top} {arc.left + 12} {top} H{arc.right - 12} '
        f'Q{arc.right} {top} {arc.right} {top + 12} V{row}" fill="none" stroke="{WAN}" stroke-width="2.5"/>'
    )


def _label(label: Sequence[str], x: int, y: int) -> Iterator[str]:
    """Lines of text around a point, with paper behind them so that no line crosses a letter."""
    lines = [part for line in label for part in textwrap.wrap(line, MOST_LETTERS, max_lines=MOST_LINES)][:MOST_LINES]
    height = LINE * len(lines) + 4
    wide = 12 + 6 * max(map(len, lines))
    yield f'<rect x="{x - wide // 2}" y="{y - height // 2}" width="{wide}" height="{height}" fill="{PAPER}"/>'
    for number, line in enumerate(lines):
        yield _words(line, (x, y - height // 2 + 13 + LINE * number), MUTED)


def _column(sketch: Sketch, switch: str, row: int) -> Iterator[str]:
    left, middle = _left(_at(sketch, switch)), _left(_at(sketch, switch)) + COLUMN // 2
    groups = sketch.at(switch)
    bottom = row + SWITCH_HEIGHT
    if groups:
        end = bottom + min(len(groups), MOST_GROUPS) * GROUP_HEIGHT - NODE_HEIGHT
        yield f'<path d="M{middle} {bottom} V{end}" stroke="{BORDER}" stroke-width="2"/>'
    yield (
        f'<rect x="{left + 20}" y="{row}" width="{COLUMN - 40}" height="{SWITCH_HEIGHT}" rx="17" fill="{PAPER}" '
        f'stroke="{INK}" stroke-width="1.5"/>'
    )
    yield _words(switch, (middle, row + 21), INK, weight=600)
    for number, group in enumerate(groups[:MOST_GROUPS]):
        yield from _group(group, left, bottom + number * GROUP_HEIGHT)
    if len(groups) > MOST_GROUPS:
        more = f"and {len(groups) - MOST_GROUPS} more kinds of nodes"
        yield _words(more, (middle, bottom + MOST_GROUPS * GROUP_HEIGHT + LINE), MUTED)


def _group(group: Group, left: int, top: int) -> Iterator[str]:
    """What the cables do, then a box with a dot for each node."""
    middle, box = left + COLUMN // 2, top + GROUP_HEIGHT - NODE_HEIGHT
    yield from _label(group.wire.label("↑ ", "↓ "), middle, top + (GROUP_HEIGHT - NODE_HEIGHT) // 2)
    yield (
        f'<rect x="{left}" y="{box}" width="{COLUMN}" height="{NODE_HEIGHT}" rx="4" fill="{PAPER}" stroke="{NODE}" '
        'stroke-width="1.5"/>'
    )
    shown = min(len(group.nodes), DOTS)
    for number in range(shown):
        x = middle + (2 * number - shown + 1) * 5
        yield f'<circle cx="{x}" cy="{box + 11}" r="3.5" fill="{NODE}"/>'
    many = f" ×{len(group.nodes)}" if len(group.nodes) > 2 else ""
    yield _words(group.name + many, (middle, box + 31), INK)


def _words(text: str, at: tuple[int, int], fill: str, weight: int = 400) -> str:
    x, y = at
    return f'<text x="{x}" y="{y}" text-anchor="middle" fill="{fill}" font-weight="{weight}">{_text(text)}</text>'


def _text(text: str, most: int = MOST_LETTERS) -> str:
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")
