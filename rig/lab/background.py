"""Other people's traffic on a case's cables, for as long as ranks run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from rig.lab import Lab
from rig.lab.due import IP_UDP_HEADERS, overhead
from rig.lab.talk import Talk
from rig.model import Background, Case

START_WITHIN = 15.0  # seconds


@contextmanager
def background(lab: Lab, case: Case, run: str) -> Iterator[None]:
    """All of the case's background traffic, flowing. Raises LabError when some of it cannot be started."""
    with ExitStack() as stack:
        for module in (_sinks, _senders):
            for modules in _one_a_place(module(case)):
                stack.enter_context(Talk(lab, modules, run)).await_all(
                    "ready", START_WITHIN, "start background traffic"
                )
        yield


def _ends(case: Case, one: Background) -> tuple[str, str]:
    """Where it comes from, and where it goes: the two ends of its cable."""
    cable = case.cable(one.cable)
    return (cable.start, cable.end) if one.direction == "up" else (cable.end, cable.start)


def _sinks(case: Case) -> list[tuple[str, Sequence[str]]]:
    places = dict.fromkeys(_ends(case, one)[1] for one in case.background)
    return [(place, ["rig.node.background", "sink", case.address(place)]) for place in places]


def _senders(case: Case) -> list[tuple[str, Sequence[str]]]:
    found: list[tuple[str, Sequence[str]]] = []
    for one in case.background:
        start, end = _ends(case, one)
        link = case.cable(one.cable).link
        figures = (one.rate / case.dilation, link.mtu - IP_UDP_HEADERS, link.mtu + overhead(link))
        found.append((start, ["rig.node.background", "send", case.address(end), *map(str, figures)]))
    return found


def _one_a_place(orders: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Mapping[str, Sequence[str]]]:
    """A Talk has one process in a place: so many of them that each place's orders are all carried out."""
    left = list(orders)
    while left:
        now: dict[str, Sequence[str]] = {}
        for order in list(left):
            if order[0] not in now:
                now[order[0]] = order[1]
                left.remove(order)
        yield now
