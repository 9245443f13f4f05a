"""Plans of networks: links with delay and loss, clusters, and what changes, against arithmetic done here."""

from __future__ import annotations

from pathlib import Path

import pytest

from rig import scenario
from rig.model import WAYS, Background, Case, Loss, ProbeLimits, Switch
from rig.plan import expand, resolved
from rig.units import Duration, Fraction, Rate
from tests.test_plan import BARE, PACED, one, plan

MS = 10**6  # ns

TWO = """\
name: two
link: {rate: 1gbit, delay: 1ms}
clusters: {us: {nodes: 2, link: {rate: 2gbit}}, eu: {nodes: 1}}
wan: [{between: [us, eu], rate: 200mbit, rtt: 20ms, up: {loss: 1%}}]
machines: {n1: {link: {rate: 100mbit}}}
workload: {kind: ddp, model: resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}}
"""


# ── what happens on a link ───────────────────────────────────────────────────────────────────────────
def test_every_key_of_a_link_one_direction_before_both_and_a_machine_before_all() -> None:
    case = one(
        PACED,
        "link={rate: 1gbit, delay: 3ms, jitter: 1ms, loss: 1%, up: {delay: 5ms}}",
        "machines={n1: {link: {rtt: 8ms, down: {loss: {enter: 1%, leave: 30%}, duplicate: 2%, distribution: pareto}}}}",
        "link.corrupt=0.01%",
        "link.reorder=5%",
    )
    first, second = (node.link for node in case.nodes)
    assert (first.up.delay, first.down.delay, second.up.delay, second.down.delay) == (5 * MS, 3 * MS, 2 * MS, 2 * MS)
    assert first.up.loss == first.down.loss == second.up.loss == Loss(good=Fraction(10**7))
    assert second.down.loss == Loss(Fraction(0), Fraction(10**9), Fraction(10**7), Fraction(3 * 10**8))
    assert second.down.loss.mean == pytest.approx(1 / 31)
    assert [way.distribution for way in (second.up, second.down)] == ["normal", "pareto"]
    assert [way.duplicate for way in (second.up, second.down)] == [0, 2 * 10**7]
    assert {way.corrupt for link in (first, second) for way in (link.up, link.down)} == {10**5}
    assert {way.jitter for link in (first, second) for way in (link.up, link.down)} == {MS}


@pytest.mark.parametrize(
    ("queue", "octets"),
    [("1MiB", 2**20), ("100packets", 151_400), ("1packet", 1514), ("20ms", 250_000), ("1s", 12_500_000)],
)
def test_a_queue_in_bytes_packets_or_time(queue: str, octets: int) -> None:
    case = one(PACED, f"link={{rate: 100mbit, queue: {queue}, loss: 1%}}", "dilation=4")  # 1packet: no super-packets
    assert {way.queue for node in case.nodes for way in (node.link.up, node.link.down)} == {octets}


def test_a_path_is_filled_by_one_stream() -> None:
    """1 Gb/s × 100 ms are 12.5 MB in flight: as much in the queue, twice both in a socket's buffer."""
    case = one(PACED, "link.rtt=100ms")
    assert case.nodes[0].link.up.delay == 25 * MS
    assert case.nodes[0].link.up.queue == 12_500_000
    assert case.tcp.buffer == 2 * (12_500_000 + 12_500_000)
    assert one(PACED, "link.rtt=100ms", "tcp.buffer=1MiB").tcp.buffer == 2**20


def test_only_what_a_path_needs_is_given_to_fast_links_before_slow_ones() -> None:
    """The narrow line's product, 200 Mb/s × 24 ms, is in flight; not the LAN's rate times the long way."""
    case = one(TWO, "link.rate=10gbit")
    assert case.wans[0].link.up.queue == 600_000
    assert case.nodes[2].link.up.queue == 25_000_000  # a switch's 20 ms, not 24


@pytest.mark.parametrize(
    ("link", "k"),
    [
        ("{rate: 1gbit}", 2),  # 4 nodes ÷ (1.25 Gb/s × 2 cores)
        ("{rate: 1gbit, delay: 1ms}", 2),  # ÷ (1.0 × 2)
        ("{rate: 1gbit, up: {loss: 1%}}", 8),  # ÷ (0.3 × 2)
        ("{rate: 10mbit, loss: 1%, delay: 10ms}", 1),
    ],
)
def test_packets_that_are_handled_one_by_one_cost_dilation(link: str, k: int) -> None:
    assert one(PACED, "nodes=4", f"link={link}").dilation == k


def test_a_change_later_on_counts_too() -> None:
    assert one(PACED, "nodes=4", "timeline=[{at: 1s, link: n1, loss: 1%}]").dilation == 8
    assert one(PACED, "timeline=[{at: 1s, link: n1, delay: 100ms}]").tcp.buffer > one(PACED).tcp.buffer


def test_what_is_said_of_all_links() -> None:
    case = one(PACED, "shaper=delayline", "seed=7", "probe={goodput: 5%, slack: 2ms}")
    assert (case.shaper, case.seed) == ("delayline", 7)
    assert case.limits == ProbeLimits(goodput=Fraction(50_000_000), slack=Duration(2 * MS))
    assert one(PACED).limits == ProbeLimits()


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────────
def test_clusters_have_switches_of_their_own() -> None:
    baseline, case = plan(TWO)
    assert case.switches == (Switch("switch-us", "198.19.0.1", "us"), Switch("switch-eu", "198.19.0.2", "eu"))
    assert [(node.name, node.switch, node.link.up.rate) for node in case.nodes] == [
        ("n0", "switch-us", 2 * 10**9),
        ("n1", "switch-us", 10**8),
        ("n2", "switch-eu", 10**9),
    ]
    (wan,) = case.wans
    assert (wan.name, wan.start, wan.end) == ("us-eu", "switch-us", "switch-eu")
    assert (wan.link.up.rate, wan.link.up.delay, wan.link.down.delay) == (2 * 10**8, 10 * MS, 10 * MS)
    assert (wan.link.up.loss.mean, wan.link.down.loss.mean) == (0.01, 0)
    assert case.id == "nodes=3"
    assert [cable.name for cable in case.cables] == ["n0", "n1", "n2", "us-eu"]
    assert (baseline.id, baseline.role, baseline.size, baseline.wans) == ("nodes=1", "baseline", 1, ())
    assert baseline.nodes[0].link.up.rate == 2 * 10**9
    assert [switch.name for switch in baseline.switches] == ["switch-us"]


def test_one_baseline_serves_every_line_between_clusters() -> None:
    cases = plan(TWO, "sweep={wan.0.rate: [100mbit, 1gbit], clusters.eu.nodes: [1, 2]}")
    assert [case.role for case in cases] == ["baseline", "case", "case", "case", "case"]
    assert {case.baseline for case in cases} == {"nodes=1"}
    assert cases[-1].id == "nodes=4,rate=1gbit,clusters.eu.nodes=2"


@pytest.mark.parametrize(
    ("wan", "names"),
    [
        ("{rate: 1gbit}", ["us-eu", "us-asia", "eu-asia"]),
        ("{rate: 1gbit, topology: mesh}", ["us-eu", "us-asia", "eu-asia"]),
        ("{rate: 1gbit, topology: chain}", ["us-eu", "eu-asia"]),
        ("[{between: [asia, us], rate: 1gbit}, {between: [eu, us], rate: 1gbit}]", ["asia-us", "eu-us"]),
    ],
)
def test_what_joins_clusters(wan: str, names: list[str]) -> None:
    text = BARE + "clusters: {us: {nodes: 1}, eu: {nodes: 1}, asia: {nodes: 1}}\n"
    assert [cable.name for cable in one(text, f"wan={wan}").wans] == names


def test_measured_lines_between_continents() -> None:
    text = BARE + "clusters: {eu: {nodes: 1}, us: {nodes: 1}, asia: {nodes: 1}, australia: {nodes: 1}}\n"
    case = one(text, "wan={profile: arxiv-2306.03163}")
    told = {wan.name: (wan.link.up.rate / 10**9, 2 * wan.link.down.delay.seconds) for wan in case.wans}
    assert told == {
        "eu-us": (0.21, 0.103),
        "us-asia": (0.13, 0.157),
        "us-australia": (0.12, 0.176),
        "eu-asia": (0.08, 0.253),
        "eu-australia": (0.07, 0.272),
        "asia-australia": (0.16, 0.131),
    }
    slower = one(text, "wan={profile: in-region, rate: 1gbit, down: {delay: 1ms}}").wans[0].link
    assert (slower.up.rate, slower.up.delay, slower.down.delay) == (10**9, 350_000, MS)


def test_one_network_has_one_mtu() -> None:
    case = one(TWO, "link.mtu=9000", "link.framing=none")
    assert {cable.link.mtu for cable in case.cables} == {9000}
    assert case.wans[0].link.framing == "ethernet"


# ── what happens to links ────────────────────────────────────────────────────────────────────────────
def told(case: Case) -> list[tuple[str, float | None, int | None, float, float, bool]]:
    """cable, at (s), step, rate up (Mb/s), delay up (ms), plugged"""
    return [
        (
            each.cable,
            None if each.at is None else each.at.seconds,
            each.step,
            each.link.up.rate / 10**6,
            each.link.up.delay / MS,
            each.plugged,
        )
        for each in case.changes
    ]


def test_changes_compose_in_the_order_of_time() -> None:
    timeline = """[
        {at: 20s, link: n1, rate: 10mbit},
        {at: 5s, link: n1, outage: 8s},
        {at: 6s, link: n1, outage: 2s},
        {at: 7s, link: n1, rtt: 40ms},
        {at: 20s, link: n1, delay: 1ms},
        {at: 30s, link: n1, rate: 1gbit}]"""
    assert told(one(PACED, f"timeline={timeline}")) == [
        ("n1", 5, None, 1000, 0, False),
        ("n1", 6, None, 1000, 0, False),
        ("n1", 7, None, 1000, 10, False),
        ("n1", 8, None, 1000, 10, False),
        ("n1", 13, None, 1000, 10, True),
        ("n1", 20, None, 10, 1, True),
        ("n1", 30, None, 1000, 1, True),
    ]


def test_changes_by_step_on_every_link() -> None:
    cases = plan(TWO, "timeline=[{step: 3, link: all, rate: 10mbit}, {step: 1, link: us-eu, up: {delay: 30ms}}]")
    assert told(cases[1]) == [
        ("us-eu", None, 1, 200, 30, True),
        ("n0", None, 3, 10, 1, True),
        ("n1", None, 3, 10, 1, True),
        ("n2", None, 3, 10, 1, True),
        ("us-eu", None, 3, 10, 30, True),
    ]
    assert cases[1].changes[0].link.down.delay == 10 * MS
    assert cases[0].changes == ()  # nothing happens to the one-node case


def test_a_link_that_a_cell_has_not_does_not_change_there() -> None:
    cases = plan(
        BARE,
        "sweep.nodes=[1, 4]",
        "timeline=[{step: 1, link: n3, rate: 10mbit}]",
        "background=[{link: n3, rate: 1mbit}]",
    )
    assert [len(case.changes) for case in cases] == [0, 1]
    assert [len(case.background) for case in cases] == [0, 2]


@pytest.mark.parametrize(("direction", "rates"), [("both", (5, 5)), ("up", (5, 1000)), ("down", (1000, 5))])
def test_a_trace_is_followed_line_by_line(direction: str, rates: tuple[int, int], tmp_path: Path) -> None:
    last = "0" if direction == "both" else "7mbit"
    trace = f"\ufefftime, rate\r\n# a comment\n0, 5mbit\n0.5,20000000.4 # bit/s\n\n2,{last}\n3.25,5mbit\n"
    (tmp_path / "t.csv").write_text(trace, encoding="utf-8")
    path = tmp_path / "x.yaml"
    entry = f"{{trace: t.csv, link: n0, at: 10s, direction: {direction}}}"
    path.write_text(f"{PACED}timeline: [{entry}]\n", encoding="utf-8")
    case = expand(scenario.load(path), 2)[1]
    assert [each.at.seconds for each in case.changes if each.at is not None] == [10, 10.5, 12, 13.25]
    assert [each.plugged for each in case.changes] == [True, True, direction != "both", True]
    first, second = case.changes[0].link, case.changes[1].link
    assert (first.up.rate / 10**6, first.down.rate / 10**6) == rates
    assert 20 * 10**6 in (second.up.rate, second.down.rate)
    assert case.changes[-1].link == first


def test_background_traffic() -> None:
    case = one(
        PACED,
        "background=[{link: n1, direction: up, rate: 200mbit}, {link: all, rate: 1mbit}, {link: n0, rate: 0mbit}]",
    )
    assert case.background == (
        Background("n1", "up", Rate(2 * 10**8)),
        *(Background(name, way, Rate(10**6)) for name in ("n0", "n1") for way in WAYS),
    )


def test_a_record_tells_what_differs_only() -> None:
    case = one(PACED, "timeline=[{at: 1s, link: n1, down: {rate: 10mbit}}]")
    assert resolved(case)["changes"] == [
        {"cable": "n1", "at": 10**9, "step": None, "plugged": True, "up": {}, "down": {"rate": 10**7, "queue": 262_144}}
    ]
