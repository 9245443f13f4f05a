"""Which cables a packet crosses from one place of a case to another, and what the way adds up to. Pure.

Nodes are leaves, each on one switch; cables between switches make a chain, a mesh or anything in between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rig.model import Cable, Case, Change, Direction, Impairment, Link, Node

Hop = tuple[Cable, Direction]


class Ways:
    """A case's places, looked up once, for whoever asks for many ways: each then takes as long as its own cables."""

    def __init__(self, case: Case) -> None:
        self._nodes = {node.name: node for node in case.nodes}
        self._leaving = _leaving(case.wans)
        self._between: dict[tuple[str, str], tuple[Hop, ...]] = {}

    def route(self, start: str, end: str) -> tuple[Hop, ...]:
        """As `route`."""
        if start == end:
            return ()
        first, last = self._nodes.get(start), self._nodes.get(end)
        ends = (first.switch if first else start, last.switch if last else end)
        if ends not in self._between:
            self._between[ends] = _between(self._leaving, *ends)
        up: tuple[Hop, ...] = ((_cable(first), "up"),) if first else ()
        down: tuple[Hop, ...] = ((_cable(last), "down"),) if last else ()
        return (*up, *self._between[ends], *down)

    def rtt(self, start: str, end: str) -> float:
        """As `rtt`."""
        return sum(hop.delay.seconds for hop in way((*self.route(start, end), *self.route(end, start))))


def route(case: Case, start: str, end: str) -> tuple[Hop, ...]:
    """The hops from one place (a node's or a switch's name) to another: the fewest cables there are, and of equals
    those that stand first in the scenario. Raises KeyError when no cable leads there.
    """
    return Ways(case).route(start, end)


def _cable(node: Node) -> Cable:
    return Cable(node.name, node.name, node.switch, node.link)


def _between(leaving: Mapping[str, Sequence[Hop]], start: str, end: str) -> tuple[Hop, ...]:
    """Breadth first over the switches."""
    came: dict[str, tuple[str, Hop]] = {}
    waiting = deque([start])
    while waiting and end not in came:
        place = waiting.popleft()
        for hop in leaving.get(place, ()):
            there = hop[0].end if hop[1] == "up" else hop[0].start
            if there != start and there not in came:
                came[there] = (place, hop)
                waiting.append(there)
    hops: list[Hop] = []
    while end != start:
        end, hop = came[end]
        hops.append(hop)
    return tuple(reversed(hops))


def _leaving(wans: Iterable[Cable]) -> dict[str, list[Hop]]:
    """Switch → the hops that start there, in the scenario's order."""
    leaving: dict[str, list[Hop]] = {}
    for cable in wans:
        leaving.setdefault(cable.start, []).append((cable, "up"))
        leaving.setdefault(cable.end, []).append((cable, "down"))
    return leaving


def way(hops: Sequence[Hop]) -> tuple[Impairment, ...]:
    """What each hop does, in order."""
    return tuple(cable.link.way(direction) for cable, direction in hops)


def rtt(case: Case, start: str, end: str) -> float:
    """Seconds a small packet and its answer spend in transit, emulated: the sum of both ways' delays."""
    return Ways(case).rtt(start, end)


@dataclass(frozen=True)
class Extremes:
    """Of all ways from node to node: the longest RTT (s), and of the one that holds most its rate (bit/s) and RTT."""

    rtt: float
    fullest: tuple[int, float]


@dataclass(frozen=True)
class _End:
    """Nodes of one switch on equal links, as a way begins or ends there."""

    group: int
    many: bool  # so that one of them may reach another
    rate: int  # up where a way begins, down where it ends
    delay: int  # ns, there and back


def extremes(cables: Sequence[Cable]) -> Extremes:
    """What buffers have to hold, from the ends of every two switches; of a lone node, its cable there and back. Raises
    KeyError when two nodes cannot reach one another.
    """
    nodes = _alike(cables)
    if nodes.total() == 1:
        ((_, lone),) = nodes
        spans = (lone.up.delay + lone.down.delay) / 1e9
        return Extremes(spans, (int(min(lone.up.rate, lone.down.rate)), spans))
    leaving = _leaving(cable for cable in cables if cable.start != cable.name)
    starts, ends = _ends(nodes, "up"), _ends(nodes, "down")
    longest, fullest = 0, (0, 0)
    for one, other in product(starts, repeat=2):
        there, back = way(_between(leaving, one, other)), way(_between(leaving, other, one))
        limit, apart = min((hop.rate for hop in there), default=None), sum(hop.delay for hop in (*there, *back))
        for rate, delay in _most(starts[one], ends[other], limit):
            longest = max(longest, delay + apart)
            fullest = max(fullest, (rate, delay + apart), key=lambda pair: pair[0] * pair[1])
    return Extremes(longest / 1e9, (fullest[0], fullest[1] / 1e9))


def _ends(nodes: Mapping[tuple[str, Link], int], direction: Direction) -> dict[str, list[_End]]:
    """Switch → its nodes, the fastest first."""
    found: dict[str, list[_End]] = {}
    for group, ((switch, link), count) in enumerate(nodes.items()):
        delay = link.up.delay + link.down.delay
        found.setdefault(switch, []).append(_End(group, count > 1, int(link.way(direction).rate), int(delay)))
    return {switch: sorted(ends, key=lambda end: -end.rate) for switch, ends in found.items()}


def _most(starts: Sequence[_End], ends: Sequence[_End], limit: int | None) -> Iterator[tuple[int, int]]:
    """For every rate that a way between them may have, that rate (bit/s) and the longest delay (ns) of those that are
    at least as fast. In one pass from the fastest: the longest two on each side are enough, as a node has no way to
    itself.
    """
    every = {end.rate if limit is None else min(end.rate, int(limit)) for end in (*starts, *ends)}
    first: list[_End] = []
    last: list[_End] = []
    begins, stops = deque(starts), deque(ends)
    for rate in sorted(every, reverse=True):
        for waiting, longest in ((begins, first), (stops, last)):
            while waiting and waiting[0].rate >= rate:
                longest.append(waiting.popleft())
                longest.sort(key=lambda end: -end.delay)
                del longest[2:]
        pairs = [one.delay + other.delay for one in first for other in last if one.group != other.group or one.many]
        if pairs:
            yield rate, max(pairs)


def _alike(cables: Sequence[Cable]) -> Counter[tuple[str, Link]]:
    """How many nodes a switch has on equal links. Most share one object, and to compare objects is quick."""
    same = Counter((cable.end, id(cable.link)) for cable in cables if cable.start == cable.name)
    links = {id(cable.link): cable.link for cable in cables}
    found: Counter[tuple[str, Link]] = Counter()
    for (switch, which), count in same.items():
        found[switch, links[which]] += count
    return found


def at_most(cables: Sequence[Cable], changes: Iterable[Change]) -> tuple[Cable, ...]:
    """The cables with the highest rate and the longest delay that each ever has, one direction at a time."""
    later = tuple(changes)
    if not later:
        return tuple(cables)
    links = {cable.name: cable.link for cable in cables}
    for change in later:
        if (link := links.get(change.cable)) is not None:
            up, down = _more(link.up, change.link.up), _more(link.down, change.link.down)
            links[change.cable] = replace(link, up=up, down=down)
    return tuple(replace(cable, link=links[cable.name]) for cable in cables)


def _more(one: Impairment, other: Impairment) -> Impairment:
    return replace(one, rate=max(one.rate, other.rate), delay=max(one.delay, other.delay))


def next_hops(case: Case, switch: str) -> Mapping[str, Cable]:
    """Every other place → the cable by which a switch reaches it."""
    places = [*(node.name for node in case.nodes), *(one.name for one in case.switches)]
    ways = Ways(case)
    return {place: ways.route(switch, place)[0][0] for place in places if place != switch}
