"""Links in a record and on a terminal: what is said of one that misses, ways between nodes, and `rig probe`'s table."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rig import inspection, links, scenario
from rig.lab.due import due
from rig.model import Cable, Case, Loss, Switch
from rig.progress import Lines
from rig.report import figures
from rig.report import links as drawn
from rig.results import LinkReport
from rig.units import Duration, Fraction
from tests.cases import case, impairment

GOODPUT = 941_482_444.7  # bit/s of TCP payload on 1 Gb/s Ethernet: 1448/1538
TRANSIT = {"delay": 40_000_000, "jitter": 0, "good": 0, "bad": 10**9, "enter": 10**6, "leave": 2 * 10**8,
           "duplicate": 0, "corrupt": 5 * 10**6, "reorder": 0}  # fmt: skip
SEEN = {"rtt": 0.01, "rtt_low": 0.0099, "rtt_high": 0.0123, "jitter": 1e-5, "loss": 0.0, "packets": 1000.0,
        "goodput": GOODPUT, "goodput_all": GOODPUT}  # fmt: skip
SOURCE = """\
name: two
workload: {kind: allreduce, size: 1MiB, steps: 2, warmup: 1}
link: {rate: 50mbit}
dilation: 1
sweep: {nodes: [1], workload.size: [1MiB, 2MiB]}
"""


def lossy(dilation: int = 1) -> tuple[Case, LinkReport]:
    """A link with 10 ms and bursts of loss each way, as it should be."""
    does = replace(
        impairment(), delay=Duration(10_000_000), corrupt=Fraction.parse("0.5%"),
        loss=Loss(bad=Fraction.parse("100%"), enter=Fraction.parse("0.1%"), leave=Fraction.parse("20%")),
    )  # fmt: skip
    plain = case(1, dilation=dilation)
    link = replace(plain.nodes[0].link, up=does, down=does)
    asked = due(link, "up", "delayline")
    applied = {"rate": 984.4e6, "emulates": 1e9, "transit": TRANSIT}
    measured = SEEN | {"rtt": asked["rtt"], "loss": asked["loss"], "udp": asked["udp"], "packets": 20_000.0}
    whole = replace(plain, nodes=(replace(plain.nodes[0], link=link),))
    return whole, LinkReport("n0", "up", asked, applied, measured, "delayline")


def with_measured(report: LinkReport, **changes: float) -> LinkReport:
    return replace(report, measured={**report.measured, **changes})


def test_bad_links_says_asked_applied_and_measured() -> None:
    asked = {"rate": 1e9, "goodput": GOODPUT, "rtt": 0.0}
    report = LinkReport("n0", "up", asked, {"rate": 984.4e6}, {"goodput": 0.5 * GOODPUT, "rtt": 1e-4}, "tbf")
    assert links.bad_links(case(1), [report]) == (
        "link n0 up: alone: asked 941.5 Mb/s of goodput, applied a cable of 1000.0 Mb/s, measured 470.7 (-50.0%); "
        "if other programs kept this host busy, close them, or use a larger dilation (--set dilation=…)"
    )
    busy = replace(report, measured={"goodput_all": 1.1 * GOODPUT})
    assert "link n0 up: with all links busy: asked 941.5 Mb/s of goodput" in links.bad_links(case(1), [busy])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"udp": 9e8}, "alone: asked 947.6 Mb/s of UDP payload, applied a cable of 1000.0 Mb/s, "
                       "measured 900.0 (-5.0%)"),
        ({"rtt": 0.03}, "RTT: asked 20.000 ms, applied a delay of 10.000 ms up, measured 30.000 ms"),
        ({"loss": 0.5}, "loss: asked 0.9950%, applied bad 100.0000%, enter 0.1000%, leave 20.0000%, corrupt 0.5000%, "
                        "measured 50.0000% of 20000 packets"),
        ({"duplicate": 0.1}, "duplicate: asked 0.0000%, applied none, measured 10.0000% of 20000 packets"),
    ],
)  # fmt: skip
def test_every_figure_that_misses_is_named_in_emulated_units(changes: dict[str, float], said: str) -> None:
    whole, report = lossy(dilation=4)
    assert links.bad_links(whole, [report]) == ""
    assert links.bad_links(whole, [with_measured(report, **changes)]) == f"link n0 up: {said}{links.BUSY}"


def test_a_round_trip_is_both_ways_and_told_once() -> None:
    whole, report = lossy()
    slow = with_measured(report, rtt=0.03)
    assert links.bad_links(whole, [slow, replace(slow, direction="down")]).count("RTT") == 1


def test_paths_are_the_slowest_hop_and_all_delays() -> None:
    plain = case(3)
    delayed = replace(impairment("2.5gbit"), delay=Duration(2_000_000))
    far = replace(plain.nodes[2], link=replace(plain.nodes[2].link, up=delayed, down=delayed), switch="switch-eu")
    nodes = (*(replace(node, switch="switch-us") for node in plain.nodes[:2]), far)
    line = replace(plain.nodes[0].link, up=replace(impairment("200mbit"), delay=Duration(7_000_000)))
    wan = Cable("us-eu", "switch-us", "switch-eu", line)
    switches = (Switch("switch-us", "198.19.0.1", "us"), Switch("switch-eu", "198.19.0.2", "eu"))
    found = links.paths(replace(plain, nodes=nodes, switches=switches, wans=(wan,)))
    assert len(found) == 6
    assert found[0] == {"from": "n0", "to": "n1", "rate": 10**9, "rtt": 0.0}
    assert {"from": "n0", "to": "n2", "rate": 2 * 10**8, "rtt": pytest.approx(0.011)} in found
    assert {"from": "n2", "to": "n0", "rate": 10**9, "rtt": pytest.approx(0.011)} in found


# ── rig probe ────────────────────────────────────────────────────────────────────────────────────────
def text_of(table: Any) -> str:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as drawing:
        console.print(table)
    return drawing.get()


def test_the_table_shows_asked_applied_and_measured_in_80_columns() -> None:
    _, report = lossy(dilation=4)
    network = {"cases": ["nodes=1"], "dilation": 4, "links": [asdict(report)], "wrong": ""}
    text = text_of(drawn.table({"networks": [network]}))
    assert max(map(len, text.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "nodes=1 (k = 4)" in rows
    assert "n0 up asked 1.000 Gb/s UDP 20.00 ms 0 s 1.00 %".replace("UDP", figures.rate(report.asked["udp"])) in rows
    assert "delayline 1.000 Gb/s 10.00 ms 0 s 1.00 %" in rows
    assert any(row.startswith("measured ") and row.endswith(" 941.5 Mb/s 20.00 ms 10.00 us 1.00 %") for row in rows)
    assert "udp 9.90-12.3" in rows
    assert "udp: payload of UDP" in text


def test_a_miss_is_told_below_the_table() -> None:
    _, report = lossy()
    network = {"cases": ["nodes=1"], "dilation": 1, "links": [asdict(report)], "wrong": "link n0 up: RTT: too long"}
    assert "link n0 up: RTT: too long" in text_of(drawn.table({"networks": [network]}))


def test_cases_with_equal_networks_are_probed_once(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(SOURCE, encoding="utf-8")
    document, table, code = inspection.run_probe(scenario.load(file, ()), "netns", Lines(), locked=False)
    (network,) = document["networks"]
    assert len(network["cases"]) == 2
    assert (network["wrong"], code) == ("", 0)
    assert {(link["name"], link["direction"]) for link in network["links"]} == {("n0", "up"), ("n0", "down")}
    assert "47.07 Mb/s" in text_of(table)
    assert len(network["probe"]["n0"]["rtt"]["samples"]) >= 50


# ── the delay line while ranks ran ───────────────────────────────────────────────────────────────────
def counted(given: int, late: float, overflowed: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    ways = {"late_mean": late, "given": given, "overflowed": overflowed}
    return {"n0": {"up": ways, "down": ways}, "n1": {"up": {"bytes": 1}, "down": {"bytes": 1}}}


def test_what_was_late_before_the_ranks_ran_does_not_count() -> None:
    found = links.held_back(counted(1000, 0.010), counted(3000, 0.004))
    assert found.keys() == {"n0 up", "n0 down"}
    assert found["n0 up"] == {"late": pytest.approx(0.001), "overflowed": 0}


@pytest.mark.parametrize(
    ("late", "overflowed", "why"), [(0.0004, 0, ""), (0.0006, 0, "0.60 ms late"), (0.0, 3, "dropped 3")]
)
def test_a_delay_line_that_fell_behind_is_told(late: float, overflowed: int, why: str) -> None:
    told = links.bad_lines(case(2), {"n0 up": {"late": late, "overflowed": overflowed}})
    assert (why in told) if why else told == ""


def test_a_long_delay_may_be_off_by_more() -> None:
    far = replace(impairment(), delay=Duration(100 * 10**6))
    two = case(2)
    two = replace(two, nodes=tuple(replace(node, link=replace(node.link, up=far)) for node in two.nodes))
    assert links.bad_lines(two, {"n0 up": {"late": 0.004, "overflowed": 0}}) == ""
    assert links.bad_lines(two, {"n0 down": {"late": 0.004, "overflowed": 0}}) != ""
