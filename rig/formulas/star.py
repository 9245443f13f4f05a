"""A parameter server among the nodes: how long all take to push to one of them, and to get back. Pure."""

from __future__ import annotations

from collections import Counter

from rig.formulas.edges import background
from rig.formulas.timing import goodput
from rig.model import Case
from rig.topology import Hop, Ways


def serving_node_time(case: Case, size: int) -> float:
    """Seconds until the first node has S bytes of every other one and each has S bytes back: 2·(N−1)·S·8/goodput where
    links are alike, and one and a half round trips.

    Each way, streams share the cables that they cross, and the one that is slowest for its streams sets the pace: the
    server's own, down and then up, unless another is N−1 times slower. The server gives its word that it is ready for a
    push, which then takes half a round trip; the answer is awaited, and takes another half. Nothing is hidden by
    computing, and what the server sums takes no time.
    """
    if case.size == 1:
        return 0.0
    server, *others = (node.name for node in case.nodes)
    ways = Ways(case)
    pushed = [ways.route(other, server) for other in others]
    pulled = [ways.route(server, other) for other in others]
    wait = 1.5 * max(ways.rtt(server, other) for other in others)
    return wait + sum(_shared(case, routes, size) for routes in (pushed, pulled))


def _shared(case: Case, routes: list[tuple[Hop, ...]], size: int) -> float:
    """Seconds of one stream of S bytes along each route, all at once (s)."""
    taken = background(case)
    uses = Counter((cable.name, way) for hops in routes for cable, way in hops)
    cables = {cable.name: cable.link for hops in routes for cable, _ in hops}

    def seconds(name: str, count: int, free: float) -> float:
        return count * size * 8 / goodput(free, cables[name].mtu, cables[name].framing)

    return max(
        seconds(name, count, cables[name].way(way).rate - taken.get((name, way), 0))
        for (name, way), count in uses.items()
    )
