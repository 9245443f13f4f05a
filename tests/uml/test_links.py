"""netem for real, by the rig's own shaping code, and the delay line beside it: the same links read the same."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb, hypot
from statistics import median
from typing import Any

import pytest

from rig.fabric.shape import Transit
from rig.formulas import chance
from rig.formulas.timing import goodput
from rig.lab.due import due
from rig.lab.wiring import ways
from rig.model import Case
from rig.node.datagrams import spread
from tests.uml.links import PINGS, SHAPERS, case

GUEST, PATIENCE = "tests.uml.links", 400.0
AGREE = 0.02  # of goodput and RTT, between the shapers and with what was asked
ALMOST_SURE = 0.999

pytestmark = [pytest.mark.slow, pytest.mark.timeout(450)]

Readings = Mapping[tuple[str, str], Mapping[str, Any]]


@pytest.fixture(scope="module")
def readings(said: list[dict[str, Any]]) -> Readings:
    """By shaper and "scenario cable"."""
    return {(line["shaper"], f"{line['of']} {line['cable']}"): line for line in said}


def asked(which: str) -> tuple[Case, str]:
    """The case, whatever the shaper, and the cable's name."""
    name, cable = which.split()
    return case(name, "netem"), cable


WHICH = ("delay n0", "fates n0", "fates n1", "fates n2", "fates n3")


@pytest.mark.parametrize("shaper", SHAPERS)
@pytest.mark.parametrize("which", WHICH)
def test_holds_what_was_asked(readings: Readings, which: str, shaper: str) -> None:
    whole, cable = asked(which)
    held = readings[shaper, which]["held"]
    for way, wanted in ways(whole, shaper)[cable].items():
        assert held[way]["kind"] == shaper
        assert wanted.transit is not None
        off = {
            name: (value, held[way]["transit"][name])
            for name, value in wanted.transit.document().items()
            if held[way]["transit"][name] != value and abs(held[way]["transit"][name] - value) > 1
        }
        assert off == {}
        assert Transit.of(held[way]["transit"]).distribution == wanted.transit.distribution
        assert held[way]["tbf"]["rate"] == pytest.approx(wanted.bucket.rate, rel=0.001)


@pytest.mark.parametrize("way", ["up", "down"])
def test_goodput_is_the_wires_by_both_shapers(readings: Readings, way: str) -> None:
    whole, _ = asked("delay n0")
    link = whole.nodes[0].link
    wire = goodput(link.up.rate, link.mtu, link.framing)
    netem, line = (readings[shaper, "delay n0"][way]["goodput"] for shaper in SHAPERS)
    assert netem == pytest.approx(wire, rel=AGREE)
    assert line == pytest.approx(netem, rel=AGREE)


def test_rtt_is_what_was_asked_by_both_shapers(readings: Readings) -> None:
    whole, _ = asked("delay n0")
    link = whole.nodes[0].link
    both = link.up.delay.seconds + link.down.delay.seconds
    netem, line = (readings[shaper, "delay n0"]["up"]["rtt"] for shaper in SHAPERS)
    assert netem == pytest.approx(both, rel=AGREE)
    assert line == pytest.approx(netem, rel=AGREE)


def test_jitter_spreads_alike(readings: Readings) -> None:
    """Of 300 normal samples the spread's standard error is 1.2/√300 = 7 % of it: four of them."""
    whole, _ = asked("fates n0")
    link = whole.nodes[0].link
    both = hypot(link.up.jitter.seconds, link.down.jitter.seconds)
    for shaper in SHAPERS:
        trips = readings[shaper, "fates n0"]["rtt"]
        assert len(trips) > 0.95 * PINGS
        assert spread(trips) == pytest.approx(both, rel=0.3)
        assert median(trips) == pytest.approx(link.up.delay.seconds + link.down.delay.seconds, rel=0.05)


# Event, in the words of rig.lab.due; which packets it is counted in, and of which it is a share.
COUNTS = {"duplicate": ("duplicated", "received"), "reorder": ("early", "received"), "damaged": ("damaged", "sent")}


def count(line: Mapping[str, Any], event: str) -> tuple[int, int]:
    """How often it happened, of how many; a packet that found no room in the receiver's socket was not lost."""
    counted = line["counted"]
    if event == "loss":
        return counted["sent"] - counted["received"] - counted["overflowed"], counted["sent"]
    what, of = COUNTS[event]
    return counted[what], counted[of]


@pytest.mark.parametrize(
    ("which", "event"),
    [
        ("fates n1", "reorder"),
        ("fates n2", "loss"),
        ("fates n2", "duplicate"),
        ("fates n2", "damaged"),
        ("fates n3", "loss"),
    ],
)
def test_packets_fare_alike(readings: Readings, which: str, event: str) -> None:
    """Each shaper's count is likely of what was asked; and so are both of one probability, whatever that is."""
    whole, cable = asked(which)
    link = next(node.link for node in whole.nodes if node.name == cable)
    inflation = chance.inflation(link.up.loss)
    counts = []
    for shaper in SHAPERS:
        found = count(readings[shaper, which], event)
        due_share = {"damaged": link.up.corrupt.ratio, **due(link, "up", shaper)}[event]
        assert chance.likely(*found, due_share, ALMOST_SURE, inflation), (shaper, found, due_share)
        counts.append(found)
    assert alike(counts[0], counts[1], inflation) > 1 - ALMOST_SURE


def alike(one: tuple[int, int], other: tuple[int, int], inflation: float = 1.0) -> float:
    """Fisher's exact test of two counts: how likely a table is that is no likelier than this one, if one probability
    made both. Events in bursts tell as much as events ÷ inflation would alone.
    """
    (hits, of), (more, out_of) = ((round(a / inflation), round(b / inflation)) for a, b in (one, other))
    total = hits + more
    tables = {k: comb(of, k) * comb(out_of, total - k) for k in range(max(0, total - out_of), min(of, total) + 1)}
    return sum(ways for ways in tables.values() if ways <= tables[hits]) / sum(tables.values())


def test_fishers_test_tells_unlike_counts_apart() -> None:
    """Against the tea-tasting table of Fisher (1935): p = 34/70; and two clearly different shares."""
    assert alike((3, 4), (1, 4)) == pytest.approx(34 / 70)
    assert alike((40, 2000), (110, 2000)) < 1e-6
