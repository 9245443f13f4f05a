"""Speed-up against bandwidth, as predicted, for the picture of where more nodes begin to pay. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rig import whatif
from rig.formulas.predict import predict, unknown
from rig.model import Case, Host, Phases
from rig.units import Rate
from rig.work import Ddp

COUNTS = (2, 4, 8)  # nodes, besides those that the cases have
SLOWEST, FASTEST, POINTS = 0.1e9, 100e9, 25  # bit/s, and how many rates from one to the other, evenly by logarithm
RATES = tuple(Rate(round(SLOWEST * (FASTEST / SLOWEST) ** (index / (POINTS - 1)))) for index in range(POINTS))

Curve = dict[str, Any]  # {"case": id of the first such case, "nodes": n, "points": [[rate bit/s, speed-up], …]}


def curves(cases: Sequence[Case], known: Mapping[str, Phases], host: Host | None = None) -> list[Curve]:
    """A curve for each workload that trains and each number of nodes: every cable at one rate, all else as it is.

    `known`: one-node case → where its steps spent their time, which real compute needs. Left out: cases whose times
    no formula tells, clusters (a line between them sets the pace), and machines that differ. What the host adds counts
    as in the most dilated of the cases, where it is least.
    """
    found: list[Curve] = []
    for group in _groups(cases).values():
        case = replace(group[0], dilation=max(one.dilation for one in group))
        if case.computes_real:
            seen = next((known[one.baseline] for one in group if one.baseline in known), None)
            if seen is None:
                continue
            case = whatif.paced(case, seen)
        for count in sorted({*COUNTS, *(one.size for one in group)}):
            found.append({"case": case.id, "nodes": count, "points": list(_points(whatif.nodes(case, count), host))})
    return found


def _points(case: Case, host: Host | None) -> Iterator[list[float]]:
    for rate in RATES:
        yield [float(rate), predict(whatif.at_rate(case, rate), host=host)["speedup"].value]


def _groups(cases: Sequence[Case]) -> dict[object, list[Case]]:
    """Cases of two nodes or more in groups that differ in rate and number of nodes only."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        alike = len({(node.link, node.pace, node.batch) for node in case.nodes}) == 1
        if case.size > 1 and isinstance(case.workload, Ddp) and alike and not case.wans and not unknown(case):
            groups.setdefault(_work(case), []).append(case)
    return groups


def _work(case: Case) -> object:
    """What the curve depends on: the training, one node's share of it, and what its cable does besides its rate."""
    work, node = whatif.training(case), case.nodes[0]
    trains = work.model, work.accumulate, work.bucket_cap, node.batch, node.pace, node.threads
    return trains, node.link.up.delay, node.link.down.delay, node.link.mtu, node.link.framing
