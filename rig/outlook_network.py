"""The network's part of `rig plan`: cables, what happens on them, how far nodes are apart, and what changes when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING

from rig import topology
from rig.fabric import shape
from rig.formulas import timing
from rig.model import WAYS, Case, Change, Direction, Impairment, Link, Loss, Node
from rig.report import figures
from rig.units import Duration, Fraction

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 12  # of what changes when; a trace has thousands
NOTHING = "–"

Row = tuple[str, ...]


def tables(cases: Sequence[Case]) -> Iterator[Table]:
    """Every table that has something to say; each fits 80 columns."""
    yield _links(cases)
    if any(way.in_transit for case in cases for cable in case.cables for way in (cable.link.up, cable.link.down)):
        yield _on_the_way(cases)
        yield _distances(cases)
    elif any(case.wans for case in cases):
        yield _distances(cases)
    if any(case.changes or case.background for case in cases):
        yield _while_ranks_run(cases)


def empty(title: str, first: str, others: Sequence[str]) -> Table:
    """A table without rows; all columns but the first are figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, min_width=64, title=title, title_style="bold")
    shown.add_column(first, overflow="fold", min_width=8)
    for heading in others:
        shown.add_column(heading, justify="right", no_wrap=True)
    return shown


def _caption(shown: Table, text: str) -> Table:
    shown.caption, shown.caption_justify, shown.caption_style = text, "left", "dim"
    return shown


# ── the cables ───────────────────────────────────────────────────────────────────────────────────────
def _links(cases: Sequence[Case]) -> Table:
    """Every different cable, with what the kernel will be told for it."""
    clustered = any(case.wans for case in cases)
    title = "links: every node by one cable to " + ("its cluster's switch" if clustered else "one switch")
    shown = empty(title, "link", ("k", "rate", "goodput", "tc rate", "burst", "queue", "mtu"))
    for which, row in _alike(cases, _bucket):
        shown.add_row(which, *row)
    return _caption(shown, "both directions are shaped; tc rate: what makes a cable of that rate, divided by k")


def _alike(cases: Sequence[Case], row_of: Callable[[Case, Link, Direction], Row]) -> Iterator[tuple[str, Row]]:
    """Each different row once, under the names of all cables and the direction that have it."""
    told: dict[tuple[bool, Row], dict[str, set[str]]] = {}
    for case in cases:
        known: dict[tuple[int, Direction], Row] = {}  # thousands of cables share a few links
        for cable, way in product(case.cables, WAYS):
            which = id(cable.link), way
            if which not in known:
                known[which] = row_of(case, cable.link, way)
            between = cable.name != cable.start
            told.setdefault((between, known[which]), {}).setdefault(cable.name, set()).add(way)
    for (between, row), names in told.items():
        ways = set.union(*names.values())
        yield _named(list(names), between) + ("" if len(ways) == 2 else f" {min(ways)}"), row


def _named(names: Sequence[str], between: bool) -> str:
    if between or len(names) == 1:
        return " ".join(names)
    ordered = sorted(names, key=lambda name: int(name[1:]))
    return f"{ordered[0]}…{ordered[-1]}"


def _bucket(case: Case, link: Link, way: Direction) -> Row:
    impairment = link.way(way)
    kernel = shape.tbf(impairment, link, case.dilation)
    goodput = timing.goodput(impairment.rate, link.mtu, link.framing)
    return (
        str(case.dilation), str(impairment.rate), figures.rate(goodput), figures.rate(kernel.rate * 8),
        str(impairment.burst), figures.size(float(impairment.queue)), str(link.mtu),
    )  # fmt: skip


# ── on the way ───────────────────────────────────────────────────────────────────────────────────────
def _on_the_way(cases: Sequence[Case]) -> Table:
    """What one direction does besides its rate; a column for each thing that any of them does."""
    rows = list(_alike(cases, lambda case, link, way: tuple(_fate(link.way(way)).values())))
    headings = list(_fate(cases[0].cables[0].link.up))
    used = [index for index in range(len(headings)) if any(row[index] != NOTHING for _, row in rows)]
    shown = empty("on the way, one direction", "link", [headings[index] for index in used])
    for which, row in rows:
        shown.add_row(which, *(row[index] for index in used))
    return _caption(shown, "emulated time; the kernel or the delay line is told k times as much")


def _fate(impairment: Impairment) -> Mapping[str, str]:
    jitter = f"{impairment.jitter} {impairment.distribution}" if impairment.jitter else NOTHING
    shares = {key: getattr(impairment, key) for key in ("duplicate", "corrupt", "reorder")}
    return {
        "delay": str(impairment.delay) if impairment.delay else NOTHING,
        "jitter": jitter,
        "loss": _loss(impairment.loss),
        **{key: str(share) if share else NOTHING for key, share in shares.items()},
    }


def _loss(loss: Loss) -> str:
    if not loss.mean:
        return NOTHING
    share = str(Fraction(round(loss.mean * 10**5) * 10**4)) if loss.mean >= 1e-5 else "<0.001%"
    return f"{share} bursty" if loss.enter else share


# ── distances ────────────────────────────────────────────────────────────────────────────────────────
def _distances(cases: Sequence[Case]) -> Table:
    """The longest RTT from a node of one switch to a node of another, and the slowest hop between them."""
    shown = empty("from node to node", "between", ("RTT", "slowest link"))
    told: dict[tuple[str, str, str], None] = {}
    for case in cases:
        for one, other in combinations_with_replacement(case.switches, 2):
            pairs = list(_pairs(case, one.name, other.name))
            if pairs:
                rtt = max(topology.rtt(case, *pair) for pair in pairs)
                ways = [way.rate for pair in pairs for way in topology.way(topology.route(case, *pair))]
                names = f"{one.cluster} and {other.cluster}" if one is not other else f"inside {one.cluster}"
                told[names if one.cluster else "any two", figures.seconds(rtt), figures.rate(float(min(ways)))] = None
    for row in told:
        shown.add_row(*row)
    return _caption(shown, "RTT: what a small packet and its answer take on empty links, without the hosts' own work")


def _pairs(case: Case, one: str, other: str) -> Iterator[tuple[str, str]]:
    """Nodes that stand for all: of those on one switch with the same link, the first two."""
    return (
        (first.name, second.name)
        for first in _different(case, one)
        for second in _different(case, other)
        if first.name != second.name
    )


def _different(case: Case, switch: str) -> list[Node]:
    seen: dict[object, list[Node]] = {}
    for node in case.nodes:
        if node.switch == switch and len(seen.setdefault(node.link, [])) < 2:
            seen[node.link].append(node)
    return [node for nodes in seen.values() for node in nodes]


# ── while ranks run ──────────────────────────────────────────────────────────────────────────────────
def _while_ranks_run(cases: Sequence[Case]) -> Table:
    """What changes when, once for all cases, and other people's traffic."""
    told = dict.fromkeys(row for case in cases for row in (*_background(case), *_changes(case)))
    shown = empty("while ranks run", "link", ())
    for heading in ("when", "what"):
        shown.add_column(heading, overflow="fold")
    for row in list(told)[:MOST_ROWS]:
        shown.add_row(*row)
    more = f"; and {len(told) - MOST_ROWS} more" if len(told) > MOST_ROWS else ""
    return _caption(shown, f"counted from the end of the warm-up, emulated{more}")


def _background(case: Case) -> Iterator[tuple[str, str, str]]:
    for each in case.background:
        yield each.cable, "always", f"{each.rate} of other traffic {each.direction}"


def _changes(case: Case) -> Iterator[tuple[str, str, str]]:
    before = {cable.name: Change(cable.name, None, None, cable.link) for cable in case.cables}
    for change in case.changes:
        when = f"step {change.step}" if change.at is None else str(Duration(change.at))
        yield change.cable, when, _difference(before[change.cable], change)
        before[change.cable] = change


def _difference(before: Change, after: Change) -> str:
    if before.plugged != after.plugged:
        return "plugged in again" if after.plugged else "pulled out"
    ups, downs = (_terms(before.link.way(way), after.link.way(way)) for way in WAYS)
    if ups == downs:
        return ", ".join(ups) or "as before"
    return "; ".join(f"{way}: {', '.join(terms)}" for way, terms in zip(WAYS, (ups, downs), strict=True) if terms)


def _terms(before: Impairment, after: Impairment) -> list[str]:
    kept = replace(after, burst=before.burst, queue=before.queue)  # what is derived follows the rate
    terms = [f"rate {after.rate}"] if kept.rate != before.rate else []
    old, new = _fate(before), _fate(kept)
    return terms + [f"{key} {new[key].replace(NOTHING, '0')}" for key in new if new[key] != old[key]]
