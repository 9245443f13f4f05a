"""What lies between the ranks of a ring: every edge of it as TCP meets it, from the cables on its way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rig.formulas.rings import Edge
from rig.formulas.timing import goodput
from rig.model import Case, Direction
from rig.topology import Hop, Ways

Use = tuple[str, Direction]  # a cable by name, one way


@dataclass(frozen=True)
class Leg:
    """One edge of a case's ring, and the hop of it that is slowest."""

    edge: Edge
    slowest: Mapping[str, Any]  # {cable, direction, rate, mtu, framing, background, edges, burst}: for the record


def ring(case: Case) -> tuple[Leg, ...]:
    """The ring's edges, rank by rank; gloo's ranks send to the one before them. Of edges that are alike, one; none for
    one node. Two edges that cross one cable the same way share it.
    """
    names = [node.name for node in case.nodes]
    pairs = list(zip(names, [names[-1], *names[:-1]], strict=True)) if len(names) > 1 else []
    ways = Ways(case)
    routes = {pair: ways.route(*pair) for pair in pairs}
    uses = Counter((cable.name, direction) for hops in routes.values() for cable, direction in hops)
    taken = background(case)
    found: dict[Edge, Leg] = {}
    seen = set()
    for pair, hops in routes.items():
        alike = tuple(_kind(hop, taken) for hop in hops)
        if alike not in seen:  # of ten thousand edges most are one
            seen.add(alike)
            leg = _leg(hops, ways.rtt(*pair), pair[::-1] in routes, uses, taken)
            found.setdefault(leg.edge, leg)
    return tuple(found.values())


def _kind(hop: Hop, taken: Mapping[Use, int]) -> tuple[object, ...]:
    """What makes two hops alike: the link, and what else is on it. Every node's cable is crossed once each way, one
    between switches is like no other.
    """
    cable, direction = hop
    between = cable.name if cable.name != cable.start else ""
    return id(cable.link), between, direction, taken.get((cable.name, direction), 0)


def background(case: Case) -> Mapping[Use, int]:
    """Other people's traffic by cable and direction (bit/s on the wire)."""
    taken: Counter[Use] = Counter()
    for stream in case.background:
        taken[stream.cable, stream.direction] += int(stream.rate)
    return taken


def _leg(hops: Sequence[Hop], round_trip: float, both: bool, uses: Mapping[Use, int], taken: Mapping[Use, int]) -> Leg:
    """`both`: data goes both ways between these two, on the one connection they have."""

    def free(hop: Hop) -> float:
        cable, direction = hop
        use = cable.name, direction
        return (cable.link.way(direction).rate - taken.get(use, 0)) / uses[use]

    def carried(hop: Hop) -> float:
        return goodput(free(hop), hop[0].link.mtu, hop[0].link.framing)

    slowest = min(hops, key=carried)
    (cable, direction), link = slowest, slowest[0].link
    way = link.way(direction)
    # A sender's own queue holds back its own data only (TCP small queues); at any other, both ways may be full.
    back: Use = cable.name, "down" if direction == "up" else "up"
    queued = both or (slowest is not hops[0] and back in uses)
    edge = Edge(carried(slowest), round_trip, int(way.burst) * 8 / free(slowest), queued)
    return Leg(edge, {
        "cable": cable.name, "direction": direction, "rate": int(way.rate), "mtu": link.mtu, "framing": link.framing,
        "background": taken.get((cable.name, direction), 0), "edges": uses[cable.name, direction],
        "burst": int(way.burst),
    })  # fmt: skip


def document(leg: Leg) -> dict[str, Any]:
    """A leg as plain data, for the record."""
    return {**leg.slowest, **asdict(leg.edge)}
