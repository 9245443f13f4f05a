"""What the ends of a cable are told to do to measure it: how long, how many, how fast. Pure; real time and rates."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

from rig.formulas.timing import IP_TCP_HEADERS
from rig.lab.due import IP_UDP_HEADERS, overhead, steady
from rig.model import Cable, Case, Direction, Impairment, Switch

Order = dict[str, Any]

SHORTEST, LONGEST = 0.5, 30.0  # seconds of measuring
SUPER_PACKETS = 100 * 65536  # bytes; fewer say little of a rate
LEAST_WINDOW = 256 * 2**10  # bytes under way beside what the path holds: four super-packets
INITIAL_WINDOW = 10  # packets: TCP_INIT_CWND

PINGS, JITTERY_PINGS, GAP = 60, 240, 0.004  # round trips, and s between them
PATIENCE = 0.5  # s beyond what is due; an answer that comes later counts as lost

SHARE, LIGHT = 0.8, 0.4  # of the wire's rate that counted packets are sent at; the lesser where jitter is measured,
# to which a queue would add
FASTEST = 40_000  # packets/s that one process sends and another receives, with room to spare
CLEAN, LOSSY, TELLING = 1000, 2000, 200  # packets counted: on a clean cable, on another, of the rarest event
CLEAN_FOR = 3.0  # s at most of counting on a clean cable
BURST = 0.001  # s of the pace that counted packets are sent in at most
EXCESS, SEGMENTS = 1.1, 16  # what a cable's rate is judged by: more than it takes, many packets with one call
SHARPNESS = (4 / 0.01) ** 2  # packets × share lost at which four standard deviations of what arrives are 1 %
QUIET = 0.05  # s without a packet that end a count, beyond what is due


def rtt(case: Case, cable: Cable) -> Order:
    """Round trips of small packets."""
    jitter = cable.link.up.jitter or cable.link.down.jitter
    count, patience = JITTERY_PINGS if jitter else PINGS, PATIENCE + _slowest(case, cable)
    return _to(case, cable) | {"mode": "rtt", "count": count, "gap": GAP, "patience": patience}


def tcp(case: Case, cable: Cable, way: Direction, shaper: str) -> Order:
    """TCP goodput: slow start takes a round trip for each doubling of its window; then at least ten are measured.

    netem takes packets from their socket at once, and with them the kernel's measure of how many it has queued
    (skb_orphan_partial, TCP small queues): there the sender itself must see to it that no queue overflows. Where TCP
    does not measure the rate (see due.steady) it is left to the route's congestion control, for that long.
    """
    does = cable.link.way(way)
    rate = does.rate / case.dilation
    rtt = (cable.link.up.delay.seconds + cable.link.down.delay.seconds) * case.dilation
    window = int(rate * rtt / 8) + max(does.queue * 3 // 4, LEAST_WINDOW)
    doublings = log2(max(2.0, window / (INITIAL_WINDOW * (cable.link.mtu - IP_TCP_HEADERS))))
    skip = max(0.1, 3 * does.burst * 8 / rate, (doublings + 3) * rtt)
    measures = steady(cable.link)
    seconds = max(SHORTEST, SUPER_PACKETS * 8 / rate if measures else 0.0, 10 * rtt)
    return _to(case, cable) | {
        "mode": "tcp", "way": way, "skip": min(skip, LONGEST / 2), "seconds": min(seconds, LONGEST / 2),
        "steady": measures, "window": window if measures and shaper == "netem" else 0,
    }  # fmt: skip


def counted(case: Case, cable: Cable, way: Direction, due: Mapping[str, float]) -> tuple[Order, int]:
    """Packets of full size at 80 % of the wire's rate (40 % where there is jitter), each counted, and how many of them
    would tell enough of the rarest event; fewer are sent where those would take too long.
    """
    does = cable.link.way(way)
    pace = min(FASTEST, (LIGHT if does.jitter else SHARE) * _wire(case, cable, does))
    shares = (due["loss"] / due.get("inflation", 1.0), due["duplicate"], due.get("reorder", 0.0))
    rare = [TELLING / share for share in shares if share]
    wanted = round(max(LOSSY, *rare)) if rare else LOSSY if does.jitter else CLEAN
    count = max(2, min(wanted, int(pace * (LONGEST if rare else CLEAN_FOR))))
    order = _udp(case, cable, way) | {
        "pace": pace, "count": count, "segments": 1, "head": 0.0, "burst": BURST, "skip": 0.0,
        "within": 2 * count / pace + 10 * PATIENCE + _slowest(case, cable),
    }  # fmt: skip
    return order, wanted


def flood(case: Case, cable: Cable, way: Direction, due: Mapping[str, float]) -> Order:
    """Packets faster than the wire takes them: what arrives is its rate. What a stall kept back is made up for, and
    the bucket is emptied at once: else its credit would last ten times as long as it is deep.
    """
    does = cable.link.way(way)
    pace = EXCESS / (1 - due["loss"]) * _wire(case, cable, does)  # netem loses packets before the bucket sees them
    credit = does.burst * 8 * case.dilation / does.rate
    skip = max(0.1, 3 * credit)
    seconds = min(LONGEST, max(2 * SHORTEST, SHARPNESS * due.get("inflation", 1.0) * due["loss"] / pace))
    order, head = _udp(case, cable, way), 2 * credit
    segments = 1 if does.corrupt else min(SEGMENTS, 65000 // order["size"])  # netem damages one packet of many
    return order | {
        "pace": pace, "count": int((head + skip + seconds) * pace), "segments": segments,
        "head": head, "burst": head + seconds, "skip": skip,
        "within": 3 * (skip + seconds) + 10 * PATIENCE + _slowest(case, cable),
    }  # fmt: skip


def _udp(case: Case, cable: Cable, way: Direction) -> Order:
    does = cable.link.way(way)
    quiet = QUIET + (does.delay.seconds + 5 * does.jitter.seconds) * case.dilation
    return _to(case, cable) | {"mode": "udp", "way": way, "size": cable.link.mtu - IP_UDP_HEADERS, "quiet": quiet}


def _wire(case: Case, cable: Cable, does: Impairment) -> float:
    """Full packets a second that the wire takes, in real time."""
    return does.rate / case.dilation / 8 / (cable.link.mtu + overhead(cable.link))


def _slowest(case: Case, cable: Cable) -> float:
    """Seconds of real time within which all but the rarest round trips end, twice."""
    ways = (cable.link.up, cable.link.down)
    return 2 * case.dilation * sum(way.delay.seconds + 5 * way.jitter.seconds for way in ways)


def _to(case: Case, cable: Cable) -> Order:
    return {"cable": cable.name, "to": end(case, cable).address}


def end(case: Case, cable: Cable) -> Switch:
    """The switch a cable is measured against."""
    return next(switch for switch in case.switches if switch.name == cable.end)
