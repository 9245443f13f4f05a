"""What a probe must see: the arithmetic, and which readings are misses."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import pytest

from rig.fabric.quantiles import SCALE, table
from rig.lab import orders
from rig.lab.due import due, misses, steady
from rig.model import Impairment, Link, Loss, ProbeLimits
from rig.node.datagrams import spread
from rig.units import Duration, Fraction
from tests.cases import case, impairment

LIMITS = ProbeLimits()


def ms(milliseconds: float) -> Duration:
    return Duration(round(milliseconds * 1e6))


def share(text: str) -> Fraction:
    return Fraction.parse(text)


def does(rate: str = "1gbit", **changes: Any) -> Impairment:
    return replace(impairment(rate), **changes)


def both(rate: str = "1gbit", **changes: Any) -> Link:
    return Link(does(rate, **changes), does(rate, **changes))


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────────
def test_a_clean_cable() -> None:
    found = due(Link(does(), does("100mbit", delay=ms(3))), "up", "delayline")
    assert found == {
        "rate": 1e9, "goodput": pytest.approx(1e9 * 1448 / 1538), "delay": 0.0, "jitter": 0.0, "loss": 0.0,
        "duplicate": 0.0, "rtt": pytest.approx(0.003),
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": Loss(good=share("1%"))}, {"duplicate": share("1%")}, {"corrupt": share("1%")},
        {"reorder": share("1%"), "delay": ms(5)}, {"jitter": ms(1), "delay": ms(5)},
    ],
)  # fmt: skip
def test_where_packets_have_fates_udp_tells_the_rate(changes: dict[str, Any]) -> None:
    for link in (both(**changes), Link(does(**changes), does()), Link(does(), does(**changes))):
        assert not steady(link)
        assert "udp" in due(link, "up", "tbf") and "goodput" not in due(link, "up", "tbf")


def test_delay_alone_leaves_tcp_a_measure() -> None:
    assert steady(both(delay=ms(50)))


def test_what_arrives_of_a_flood_depends_on_which_side_of_the_bucket_packets_are_lost() -> None:
    wire = 1e9 * 1472 / 1538
    link = both(loss=Loss(good=share("10%")), duplicate=share("1%"), corrupt=share("2%"))
    assert due(link, "up", "netem")["udp"] == pytest.approx(wire * 0.98)
    assert due(link, "up", "delayline")["udp"] == pytest.approx(wire * 0.98 * 0.9 * 1.01)


def test_damaged_packets_count_as_lost_and_copies_save_some() -> None:
    link = both(loss=Loss(good=share("10%")), duplicate=share("5%"), corrupt=share("1%"))
    assert due(link, "up", "tbf")["loss"] == pytest.approx(1 - (1 - 0.1 * 0.95) * 0.99)


@pytest.mark.parametrize("name", ["normal", "uniform", "pareto", "paretonormal"])
@pytest.mark.parametrize("jitter", [2.0, 20.0])
def test_jitter_is_that_of_what_the_shapers_draw(name: str, jitter: float) -> None:
    """Against drawing as they do, cut at zero; twenty thousand draws are within 3 % of a quarter of the spread."""
    random, up, down = Random(3), does(delay=ms(20), jitter=ms(jitter), distribution=name), does(delay=ms(5))
    drawn = [random.uniform(-1, 1) if name == "uniform" else random.choice(table(name)) / SCALE for _ in range(20_000)]
    delays = [max(0.0, 0.02 + jitter / 1e3 * one) for one in drawn]
    found = due(Link(up, down), "up", "delayline")
    assert found["jitter"] == pytest.approx(spread(delays), rel=0.05)
    assert found["rtt"] == pytest.approx(0.005 + median(delays), abs=0.03 * spread(delays))
    assert found["rtt_jitter"] == found["jitter"]


def test_the_median_of_two_jittery_ways_is_not_twice_one_median() -> None:
    random, link = Random(4), both(delay=ms(20), jitter=ms(4), distribution="pareto")
    drawn = [0.04 + 4e-3 * (random.choice(table("pareto")) + random.choice(table("pareto"))) / SCALE
             for _ in range(40_000)]  # fmt: skip
    found = due(link, "down", "delayline")
    assert found["rtt"] == pytest.approx(median(drawn), abs=1e-4)
    assert found["rtt"] - 2 * (0.02 + 4e-3 * median(table("pareto")) / SCALE) > 2e-4


def test_round_trips_with_too_many_early_packets_are_not_judged() -> None:
    assert "rtt" in due(both(delay=ms(5), reorder=share("20%")), "up", "tbf")
    assert "rtt" not in due(both(delay=ms(5), reorder=share("30%")), "up", "tbf")


# ── misses ───────────────────────────────────────────────────────────────────────────────────────────
CLEAN = due(both(), "up", "tbf")
LONG = due(both(delay=ms(50)), "up", "delayline")
JITTERY = due(both(delay=ms(50), jitter=ms(10)), "up", "delayline")
LOSSY = due(both(loss=Loss(good=share("1%"))), "up", "delayline")
BURSTY = due(both(loss=Loss(bad=share("100%"), enter=share("0.1%"), leave=share("9.9%"))), "up", "delayline")
DOUBLING = due(both(duplicate=share("1%")), "up", "delayline")
OVERTAKING = due(both(delay=ms(10), reorder=share("5%")), "up", "delayline")


@pytest.mark.parametrize(
    ("asked", "measured", "k", "missed"),
    [
        (CLEAN, {"goodput": 0.981 * CLEAN["goodput"], "goodput_all": 1.019 * CLEAN["goodput"]}, 1, []),
        (CLEAN, {"goodput": 0.979 * CLEAN["goodput"]}, 1, ["goodput"]),
        (CLEAN, {"goodput_all": 1.021 * CLEAN["goodput"]}, 1, ["goodput_all"]),
        (LOSSY, {"goodput": 1e6, "goodput_all": 1e6}, 1, []),  # reported, not judged
        (LOSSY, {"udp": 0.979 * LOSSY["udp"]}, 1, ["udp"]),
        (LOSSY, {"udp": 0.981 * LOSSY["udp"]}, 1, []),
        # a host may add 1 ms of its own to a round trip, of its own time, and take 0.2 ms from it
        (CLEAN, {"rtt": 0.9e-3}, 1, []),
        (CLEAN, {"rtt": 1.1e-3}, 1, ["rtt"]),
        (CLEAN, {"rtt": 0.3e-3}, 4, ["rtt"]),
        (LONG, {"rtt": 0.104}, 1, []),
        (LONG, {"rtt": 0.106}, 1, ["rtt"]),
        (LONG, {"rtt": 0.096}, 1, []),
        (LONG, {"rtt": 0.094}, 1, ["rtt"]),
        (due(both(delay=ms(1)), "up", "tbf"), {"rtt": 1.75e-3}, 1, ["rtt"]),
        (due(both(delay=ms(1)), "up", "tbf"), {"rtt": 1.85e-3}, 1, []),
        (JITTERY, {"rtt": 0.110, "round_trips": 240.0}, 1, ["rtt"]),
        (JITTERY, {"rtt": 0.109, "round_trips": 240.0}, 1, []),
        (JITTERY, {"jitter": 11.9e-3, "packets": 2000.0}, 1, []),
        (JITTERY, {"jitter": 12.5e-3, "packets": 2000.0}, 1, ["jitter"]),
        (JITTERY, {"jitter": 1e-3, "packets": 2000.0}, 1, ["jitter"]),
        (CLEAN, {"jitter": 0.5, "packets": 1000.0}, 1, []),  # the host's own: nothing was asked
        (CLEAN, {"loss": 0.0, "duplicate": 0.0, "reorder": 0.3, "packets": 1000.0}, 1, []),
        (CLEAN, {"loss": 0.001, "packets": 1000.0}, 1, ["loss"]),
        (CLEAN, {"loss": 0.0, "duplicate": 0.001, "packets": 1000.0}, 1, ["duplicate"]),
        (LOSSY, {"loss": 0.0118, "packets": 20_000.0}, 1, []),
        (LOSSY, {"loss": 0.0132, "packets": 20_000.0}, 1, ["loss"]),
        (LOSSY, {"loss": 0.007, "packets": 20_000.0}, 1, ["loss"]),
        (BURSTY, {"loss": 0.0132, "packets": 20_000.0}, 1, []),
        (BURSTY, {"loss": 0.03, "packets": 20_000.0}, 1, ["loss"]),
        (DOUBLING, {"loss": 0.0, "duplicate": 0.011, "packets": 20_000.0}, 1, []),
        (DOUBLING, {"loss": 0.0, "duplicate": 0.014, "packets": 20_000.0}, 1, ["duplicate"]),
        (OVERTAKING, {"loss": 0.0, "reorder": 0.052, "packets": 4000.0}, 1, []),
        (OVERTAKING, {"loss": 0.0, "reorder": 0.0, "packets": 4000.0}, 1, ["reorder"]),
    ],
)  # fmt: skip
def test_misses(asked: dict[str, float], measured: dict[str, float], k: int, missed: list[str]) -> None:
    assert misses(asked, measured, LIMITS, k) == missed


def test_limits_are_the_scenario_s() -> None:
    wide = ProbeLimits(goodput=share("10%"), rtt=share("20%"), slack=ms(100), confidence=share("99.99999%"))
    measured = {"goodput": 0.95 * CLEAN["goodput"], "rtt": 0.05}
    assert misses(CLEAN, measured, LIMITS, 1) == ["goodput", "rtt"]
    assert misses(CLEAN, measured, wide, 1) == []


# ── orders ───────────────────────────────────────────────────────────────────────────────────────────
def order_of(link: Link, kind: str, k: int = 1) -> dict[str, Any]:
    plain = case(1, dilation=k)
    one = replace(plain, nodes=(replace(plain.nodes[0], link=link),))
    cable, asked = one.cables[0], due(link, "up", "delayline")
    if kind == "counted":
        return orders.counted(one, cable, "up", asked)[0]
    if kind == "flood":
        return orders.flood(one, cable, "up", asked)
    return orders.tcp(one, cable, "up", "delayline" if kind == "tcp" else kind)


def test_a_long_path_gets_its_slow_start_and_ten_round_trips() -> None:
    """1 Gb/s × 100 ms is 12.5 MB: ten doublings of ten packets."""
    order = order_of(both(delay=ms(50)), "tcp")
    assert 1.2 < order["skip"] < 1.6
    assert order["seconds"] == pytest.approx(1.0)
    assert order_of(both(delay=ms(50)), "tcp", k=8)["skip"] == pytest.approx(8 * order["skip"], rel=0.3)


def test_only_netem_needs_a_window() -> None:
    assert order_of(both(delay=ms(50)), "tcp")["window"] == 0
    assert 12.5e6 < order_of(both(delay=ms(50)), "netem")["window"] < 12.5e6 + 2.5e6
    assert order_of(both(delay=ms(50), loss=Loss(good=share("1%"))), "netem")["window"] == 0


@pytest.mark.parametrize(
    ("changes", "rate", "count"),
    [
        ({}, "1gbit", 1000), ({}, "1mbit", 195), ({"delay": ms(5), "jitter": ms(1)}, "100mbit", 2000),
        ({"loss": Loss(good=share("1%"))}, "1gbit", 20_000), ({"loss": Loss(good=share("20%"))}, "1gbit", 2000),
        ({"loss": Loss(good=share("0.01%"))}, "1gbit", 1_200_000), ({"duplicate": share("2%")}, "1gbit", 10_000),
        ({"loss": Loss(bad=share("100%"), enter=share("0.1%"), leave=share("9.9%"))}, "1gbit", 378_000),
    ],
)  # fmt: skip
def test_how_many_packets_are_counted(changes: dict[str, Any], rate: str, count: int) -> None:
    assert order_of(both(rate, **changes), "counted")["count"] == pytest.approx(count, rel=0.02)


def test_counted_packets_leave_the_wire_room_and_a_flood_does_not() -> None:
    wire = 1e8 / 8 / 1538
    link = both("100mbit", loss=Loss(good=share("50%")))
    assert order_of(link, "counted")["pace"] == pytest.approx(0.8 * wire)
    assert order_of(link, "flood")["pace"] == pytest.approx(2.2 * wire)
    assert order_of(link, "flood", k=4)["pace"] == pytest.approx(2.2 * wire / 4)
    assert order_of(both("100mbit", delay=ms(5), jitter=ms(1)), "counted")["pace"] == pytest.approx(0.4 * wire)


def test_a_flood_empties_the_bucket_at_once_and_is_measured_after_that() -> None:
    """256 KiB last 21 ms at 100 Mb/s; at a pace 10 % above the rate they would last ten times as long."""
    order = order_of(both("100mbit", loss=Loss(good=share("1%"))), "flood", k=2)
    credit = 2 * 2**18 * 8 / 1e8
    assert order["head"] == pytest.approx(2 * credit)
    assert order["skip"] >= 3 * credit
    assert order["count"] / order["pace"] == pytest.approx(order["head"] + order["skip"] + 1.0, abs=0.01)


def test_a_packet_is_not_one_of_many_where_netem_would_damage_only_one_of_them() -> None:
    assert order_of(both(loss=Loss(good=share("1%"))), "flood")["segments"] == 16
    assert order_of(both(corrupt=share("1%")), "flood")["segments"] == 1
