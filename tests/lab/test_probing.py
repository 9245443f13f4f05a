"""The probe in real labs: links that are what was asked show it, and links that are not are found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rig import links
from rig.errors import FabricError, LabError
from rig.lab import Lab, Order, open_lab
from rig.lab.probing import Probed, probe
from rig.model import Cable, Case, Impairment, Link, Loss, Node, Switch
from rig.results import LinkReport
from rig.units import Duration, Fraction
from tests.cases import case, impairment
from tests.lab.conftest import new_run

SLOW, SLOWER = "100mbit", "30mbit"  # a busy host can carry them, the slower one packet by packet


def ms(milliseconds: float) -> Duration:
    return Duration(round(milliseconds * 1e6))


def share(text: str) -> Fraction:
    return Fraction.parse(text)


def does(rate: str = SLOW, **changes: Any) -> Impairment:
    return replace(impairment(rate), **changes)


def wired(*each: Link, **changes: Any) -> Case:
    """A case with one node on each of these links."""
    plain = case(len(each), **changes)
    nodes = tuple(replace(node, link=link) for node, link in zip(plain.nodes, each, strict=True))
    return replace(plain, nodes=nodes)


@contextmanager
def opened(kind: str, wanted: Case, run: str) -> Iterator[Lab]:
    """The lab; a machine on which this user may have no delay line, and no netem, cannot test it."""
    try:
        with open_lab(kind, Order(run, wanted, print)) as lab:
            yield lab
    except FabricError as error:
        if "/dev/net/tun" in str(error) or "TAP" in str(error):
            pytest.skip(str(error))
        raise


def probed(kind: str, wanted: Case, built: Case | None = None) -> tuple[dict[str, Probed], list[LinkReport]]:
    """What the probe makes of a lab; it may have been built for another case than it is probed for."""
    run = new_run()
    with opened(kind, built or wanted, run) as lab:
        seen = probe(lab, wanted, run, print)
        return seen, list(links.link_reports(wanted, lab, seen))


def by_way(reports: list[LinkReport], name: str = "n0") -> dict[str, LinkReport]:
    return {report.direction: report for report in reports if report.name == name}


def test_clean_links(kind: str) -> None:
    wanted = wired(Link(does(), does()), Link(does("200mbit"), does()), dilation=2)
    seen, reports = probed(kind, wanted)
    assert links.bad_links(wanted, reports) == ""
    assert [(report.name, report.direction) for report in reports] == [
        ("n0", "up"), ("n0", "down"), ("n1", "up"), ("n1", "down"),
    ]  # fmt: skip
    for report in reports:
        assert report.shaper == "tbf"
        assert report.measured["packets"] >= 1000
        assert report.measured["rtt_low"] <= report.measured["rtt"] <= report.measured["rtt_high"]
        assert report.applied["emulates"] == pytest.approx(report.asked["rate"], rel=1e-3)
    assert by_way(reports, "n1")["up"].measured["goodput"] == pytest.approx(200e6 * 1448 / 1538, rel=0.02)
    assert len(seen["n0"].said["rtt"]["samples"]) >= 50


def test_each_direction_has_its_own_delay_jitter_and_rate(kind: str) -> None:
    down = does("50mbit", delay=ms(30), jitter=ms(5))
    wanted = wired(Link(does(delay=ms(10)), down))
    _, reports = probed(kind, wanted)
    assert links.bad_links(wanted, reports) == ""
    ways = by_way(reports)
    assert ways["up"].measured["rtt"] == pytest.approx(0.04, abs=0.005)
    assert ways["up"].measured["udp"] == pytest.approx(100e6 * 1472 / 1538, rel=0.02)
    assert ways["down"].measured["udp"] == pytest.approx(50e6 * 1472 / 1538, rel=0.02)
    assert ways["down"].measured["jitter"] == pytest.approx(0.005, rel=0.3)
    assert ways["up"].measured["jitter"] < 0.004
    assert {report.shaper for report in reports} <= {"netem", "delayline"}


@pytest.mark.slow
def test_each_packet_has_its_own_fate(kind: str) -> None:
    """Losses in bursts one way; the other way losses, copies and damage."""
    bursty = does(SLOWER, loss=Loss(bad=share("100%"), enter=share("2%"), leave=share("48%")))
    mixed = does(SLOWER, loss=Loss(good=share("5%")), duplicate=share("4%"), corrupt=share("3%"))
    wanted = wired(Link(bursty, mixed))
    _, reports = probed(kind, wanted)
    assert links.bad_links(wanted, reports) == ""
    ways = by_way(reports)
    assert ways["up"].measured["loss"] == pytest.approx(0.04, abs=0.02)
    assert ways["up"].measured["duplicate"] == 0
    assert ways["down"].measured["loss"] == pytest.approx(1 - (1 - 0.05 * 0.96) * 0.97, abs=0.02)
    assert ways["down"].measured["duplicate"] == pytest.approx(0.04, abs=0.015)
    assert ways["down"].measured["corrupt"] == pytest.approx(0.03, abs=0.015)


def test_packets_that_overtake_others(kind: str) -> None:
    wanted = wired(Link(does(SLOWER, delay=ms(20), reorder=share("10%")), does(SLOWER, delay=ms(20))))
    _, reports = probed(kind, wanted)
    assert links.bad_links(wanted, reports) == ""
    ways = by_way(reports)
    assert ways["up"].measured["reorder"] == pytest.approx(0.1, abs=0.03)
    assert ways["down"].measured["reorder"] == 0


def test_a_link_that_is_not_what_was_asked_is_found_out() -> None:
    """Built with nothing but a rate, and probed for more: each figure is named with what was asked and seen."""
    asked = wired(Link(does(delay=ms(20), loss=Loss(good=share("5%"))), does(jitter=ms(8), delay=ms(30))))
    _, reports = probed("netns", asked, built=wired(Link(does(), does())))
    told = links.bad_links(asked, reports)
    assert "link n0 up: RTT: asked 50.0" in told
    assert "applied a delay of 0.000 ms up, measured 0." in told
    assert "link n0 up: loss: asked 5.0000%, applied none, measured 0.0000% of 4000 packets" in told
    assert "link n0 down: jitter: asked 7.99" in told


def test_a_link_that_loses_what_it_should_not_is_found_out() -> None:
    built = wired(Link(does(loss=Loss(good=share("2%"))), does()))
    asked = wired(Link(does(), does()))
    _, reports = probed("netns", asked, built=built) if _has_delay_line(built) else ({}, [])
    assert "link n0 up: loss: asked 0.0000%, applied good 2.0000%, measured" in links.bad_links(asked, reports)


def _has_delay_line(wanted: Case) -> bool:
    with opened("netns", wanted, new_run()):
        return True


def test_a_cable_between_switches_is_probed_like_any_other(kind: str) -> None:
    switches = tuple(Switch(f"switch-{name}", f"198.19.0.{number}", name) for number, name in ((1, "us"), (2, "eu")))
    plain = wired(Link(does(), does()), Link(does(), does()))
    first, second = plain.nodes
    nodes: tuple[Node, ...] = (replace(first, switch="switch-us"), replace(second, switch="switch-eu"))
    line = Link(does(delay=ms(15)), does("50mbit", delay=ms(5)))
    wan = Cable("us-eu", "switch-us", "switch-eu", line)
    wanted = replace(plain, nodes=nodes, switches=switches, wans=(wan,))
    _, reports = probed(kind, wanted)
    assert links.bad_links(wanted, reports) == ""
    ways = by_way(reports, "us-eu")
    assert ways["up"].measured["rtt"] == pytest.approx(0.02, abs=0.004)
    assert ways["up"].measured["goodput"] == pytest.approx(100e6 * 1448 / 1538, rel=0.02)
    assert ways["down"].measured["goodput"] == pytest.approx(50e6 * 1448 / 1538, rel=0.02)


def test_a_link_that_nobody_answers_on_is_an_error() -> None:
    """Probed against an address that no switch has."""
    wanted = case(1)
    elsewhere = replace(wanted, switches=(replace(wanted.switches[0], address="198.19.0.77"),))
    run = new_run()
    with opened("netns", wanted, run) as lab, pytest.raises(LabError, match="switch: start the probe: "):
        probe(lab, elsewhere, run, print)
