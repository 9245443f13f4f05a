"""Probes every cable of a lab from its start to the switch at its end: round trips, counted packets and goodput of
each direction alone, then the goodput of all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rig.errors import LabError
from rig.lab import Lab, Tell, orders
from rig.lab.due import due, misses
from rig.lab.orders import Order
from rig.lab.talk import Talk
from rig.model import WAYS, Cable, Case, Direction
from rig.node.datagrams import spread

CONNECT = 15.0
TRIES, NEAR = 3, 0.01  # a reading off by more than this is taken again: was it the link, or a busy moment?

Said = Mapping[str, Any]  # an answer of rig.node.probe


@dataclass
class Probed:
    """What was seen on one cable, in real bit/s and seconds; `asked` and `emulated` are in emulated ones."""

    shaper: str
    asked: Mapping[Direction, Mapping[str, float]]
    dilation: int
    said: dict[str, Said] = field(default_factory=dict)  # "rtt", and by mode and direction: "udp up", …

    def emulated(self, way: Direction) -> dict[str, float]:
        """The figures of one direction, as `asked` has them; those that were measured."""
        k, found = self.dilation, _round_trips(self.said["rtt"], self.dilation)
        for what, figures in (("udp", _counted), ("flood", _flooded), ("tcp", _goodput), ("all", _goodput_all)):
            if said := self.said.get(f"{what} {way}"):
                found |= figures(said, k)
        return found


@dataclass(frozen=True)
class _Probe:
    """A probe under way: who is talked to, and what was seen."""

    case: Case
    talk: Talk
    seen: Mapping[str, Probed]


def probe(lab: Lab, case: Case, run: str, tell: Tell) -> dict[str, Probed]:
    """Measure all cables of an idle lab; by name. Raises LabError when one cannot be measured."""
    held = lab.fabric.read_back()
    seen = {}
    for cable in case.cables:
        shaper = held[cable.name]["up"]["kind"]
        asked = {way: due(cable.link, way, shaper) for way in WAYS}
        seen[cable.name] = Probed(shaper, asked, case.dilation)
    switches = dict.fromkeys(orders.end(case, cable) for cable in case.cables)
    with Talk(lab, {one.name: ["rig.node.probe", "serve", one.address] for one in switches}, run) as ends:
        ends.await_all("serving", CONNECT, "start the probe")
        with Talk(lab, {cable.start: ["rig.node.probe", "ask"] for cable in case.cables}, run) as talk:
            going = _Probe(case, talk, seen)
            for cable in case.cables:
                tell(f"probe {cable.name}")
                _alone(going, cable, tell)
            tell("probe all links at once")
            _together(going)
    return seen


def _alone(going: _Probe, cable: Cable, tell: Tell) -> None:
    """Round trips first, on an idle cable; streams last, since they leave a queue behind."""
    case, seen = going.case, going.seen[cable.name]
    _take(going, cable, "rtt", orders.rtt(case, cable), _Nearness(going, cable, "up", _round_trips))
    for way in WAYS:
        order, wanted = orders.counted(case, cable, way, seen.asked[way])
        if order["count"] < wanted and seen.asked[way]["loss"]:
            tell(f"probe {cable.name} {way}: time for {order['count']} packets, {wanted} would tell more of its loss")
        _take(going, cable, f"udp {way}", order, _Nearness(going, cable, way, _counted))
        if "udp" in seen.asked[way]:
            order = orders.flood(case, cable, way, seen.asked[way])
            _take(going, cable, f"flood {way}", order, _Nearness(going, cable, way, _flooded))
    for way in WAYS:
        order = orders.tcp(case, cable, way, seen.shaper)
        _take(going, cable, f"tcp {way}", order, _Nearness(going, cable, way, _goodput))


@dataclass(frozen=True)
class _Nearness:
    """How far an answer is from what is due: for a rate its relative error, else the number of figures that miss."""

    going: _Probe
    cable: Cable
    way: Direction
    figures: Callable[[Said, int], dict[str, float]]

    def __call__(self, said: Said) -> float:
        case, asked = self.going.case, self.going.seen[self.cable.name].asked[self.way]
        found = self.figures(said, case.dilation)
        rates = [abs(found[name] / asked[name] - 1) for name in ("goodput", "udp") if name in found and name in asked]
        return max(rates, default=float(len(misses(asked, found, case.limits, case.dilation))))


def _take(going: _Probe, cable: Cable, what: str, order: Order, off: Callable[[Said], float]) -> None:
    """One reading, again while it is not near. Of several the nearest stands: a busy host only ever spoils one."""
    readings: list[Said] = []
    while len(readings) < TRIES and (not readings or off(readings[-1]) > NEAR):
        readings += _round(going, {cable.name: [order]})
    going.seen[cable.name].said[what] = min(readings, key=off)


def _together(going: _Probe) -> None:
    """TCP in both directions of every cable at the same time."""
    case = going.case
    for _ in range(TRIES):
        given = {
            cable.name: [orders.tcp(case, cable, way, going.seen[cable.name].shaper) for way in WAYS]
            for cable in case.cables
        }
        for said in _round(going, given):
            of, what = going.seen[said["cable"]], f"all {said['way']}"
            of.said[what] = min((said, of.said.get(what, said)), key=lambda one: _off(of, one))
        if all(_off(of, of.said[f"all {way}"]) <= NEAR for of in going.seen.values() for way in WAYS):
            return


def _off(of: Probed, said: Said) -> float:
    asked = of.asked[said["way"]].get("goodput")
    return abs(said["bit_s"] * of.dilation / asked - 1) if asked else 0.0


# ── from an answer to figures ────────────────────────────────────────────────────────────────────────
def _round_trips(said: Said, k: int) -> dict[str, float]:
    """Median, and what 5 % are faster and slower than."""
    ordered = sorted(sample / k for sample in said["samples"])
    last = len(ordered) - 1
    low, high = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
    return {"rtt": median(ordered), "rtt_low": low, "rtt_high": high, "rtt_jitter": spread(ordered),
            "round_trips": float(len(ordered))}  # fmt: skip


def _counted(said: Said, k: int) -> dict[str, float]:
    """Packets that arrived and found no room in the socket were not lost on the cable."""
    arrived = min(said["sent"], said["received"] + said["overflowed"])
    of = max(1, said["received"])
    return {
        "jitter": said["spread"] / k, "loss": 1 - arrived / said["sent"], "duplicate": said["duplicated"] / of,
        "reorder": said["early"] / of, "corrupt": said["damaged"] / said["sent"], "packets": float(said["sent"]),
    }  # fmt: skip


def _flooded(said: Said, k: int) -> dict[str, float]:
    return {"udp": said["bit_s"] * k}


def _goodput(said: Said, k: int) -> dict[str, float]:
    return {"goodput": said["bit_s"] * k}


def _goodput_all(said: Said, k: int) -> dict[str, float]:
    return {"goodput_all": said["bit_s"] * k}


# ── talking ──────────────────────────────────────────────────────────────────────────────────────────
def _round(going: _Probe, given: Mapping[str, Sequence[Order]]) -> list[Said]:
    """Give orders by cable, all at the same time, and wait for every answer."""
    starts = {cable.name: cable.start for cable in going.case.cables}
    by_place: dict[str, list[Order]] = {}
    for name, of in given.items():
        by_place.setdefault(starts[name], []).extend(of)
    longest = max(_lasts(order) for of in given.values() for order in of) + CONNECT
    for place, of in by_place.items():
        going.talk.say(place, of)
    answers: list[Said] = []
    for place, said in going.talk.hear(time.monotonic() + longest):
        if said["event"] not in ("rtt", "tcp", "udp"):
            where = said.get("cable") or ", ".join(name for name, start in starts.items() if start == place)
            raise LabError(f"link {where}: probe: {said.get('why') or said.get('words') or said}")
        answers.append(said)
        if len(answers) == sum(map(len, given.values())):
            return answers
    raise LabError(f"link {', '.join(given)}: probe: no answer within {longest:.0f} s")


def _lasts(order: Order) -> float:
    """Seconds an order takes at most."""
    pings = order.get("count", 0) * order.get("gap", 0.0) + 6 * order.get("patience", 0.0)
    return float(order.get("skip", 0.0) + order.get("seconds", 0.0) + order.get("within", 0.0) + pings)
