"""What round trips, shared cables and other people's traffic do to a ring: measured figures, limits, whole cases."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.formulas import timing
from rig.formulas.edges import ring
from rig.formulas.predict import predict, unknown
from rig.formulas.timing import Edge
from rig.model import Allreduce, Background, Cable, Case, Change, Impairment, Link, Loss, Node, Switch
from rig.units import Duration, Fraction, Rate, Size
from tests.cases import case, impairment

GOODPUT = 1448 / 1538
BURST = 256 * 1024
MS = 10**6
sizes = st.integers(64, 2**30)
rtts = st.floats(0, 1)


@pytest.mark.parametrize(
    ("nodes", "rate", "rtt", "size", "measured"),
    [
        # docs/facts.md, Latency: rate in Mb/s, the rest in ms
        (2, 1000, 40, 1024, 82), (2, 1000, 40, 1e6, 86.5), (2, 1000, 40, 25e6, 665), (2, 1000, 40, 1e8, 2640),
        (2, 1000, 20, 1024, 41.6), (2, 1000, 20, 4e6, 72), (2, 1000, 20, 25e6, 430), (2, 1000, 20, 1e8, 1700),
        (2, 1000, 8, 4e6, 48), (2, 1000, 8, 25e6, 278), (2, 1000, 8, 1e8, 1135), (2, 1000, 2, 25e6, 219),
        (2, 200, 20, 4e6, 195), (2, 200, 20, 25e6, 1100), (2, 200, 40, 25e6, 1350), (2, 100, 200, 25e6, 4100),
        (3, 200, 40, 4e6, 306), (3, 200, 40, 25e6, 1480), (3, 100, 200, 25e6, 4560), (3, 100, 80, 25e6, 3100),
        (4, 200, 40, 1024, 250), (4, 200, 8, 25e6, 1600), (4, 200, 40, 25e6, 1660), (4, 200, 20, 25e6, 1630),
        (4, 100, 200, 25e6, 5243), (4, 100, 400, 25e6, 8800),
    ],
)  # fmt: skip
def test_all_reduces_as_measured(nodes: int, rate: float, rtt: float, size: float, measured: float) -> None:
    edge = Edge(rate * 1e6 * GOODPUT, rtt / 1e3, BURST * 8 / (rate * 1e6), queued=nodes == 2)
    assert timing.ring_time(int(size), nodes, edge) == pytest.approx(measured / 1e3, rel=0.08)


def test_a_line_that_two_edges_cross_as_measured() -> None:
    """Two clusters of two nodes, 50 Mb/s and 80 ms between them: 25 MB in 7.35 s, of which 6.37 are its bytes."""
    line = Edge(50e6 * GOODPUT, 0.08, 2**20 / 50e6, queued=True)
    assert timing.ring_busy(25 * 10**6, 4, line) == pytest.approx(6.37, abs=0.01)
    assert timing.ring_time(25 * 10**6, 4, line) == pytest.approx(7.35, rel=0.02)


@given(sizes, st.integers(2, 64), st.floats(0, 0.1))
def test_without_delay_a_ring_takes_what_its_bytes_take(size: int, nodes: int, credit: float) -> None:
    assert timing.ring_wait(size, nodes, Edge(1e9, 0.0, credit)) == 0


@given(sizes, st.integers(2, 64), rtts, rtts)
def test_a_longer_way_takes_longer(size: int, nodes: int, one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    assert timing.ring_wait(size, nodes, Edge(1e9, shorter)) <= timing.ring_wait(size, nodes, Edge(1e9, longer))


@given(st.integers(2, 64), st.floats(1e-3, 1))
def test_a_small_all_reduce_takes_two_round_trips_for_every_other_rank(nodes: int, rtt: float) -> None:
    assert timing.ring_time(64 * nodes, nodes, Edge(1e12, rtt)) == pytest.approx(2 * (nodes - 1) * rtt, rel=1e-3)


@pytest.mark.parametrize(("nodes", "trips"), [(1, 0), (2, 1), (3, 1.5), (4, 1.5), (5, 2), (8, 2), (9, 2.5)])
def test_a_broadcast_goes_down_a_tree(nodes: int, trips: float) -> None:
    assert timing.broadcast_wait(nodes, 1.0) == trips


# ── whole cases ──────────────────────────────────────────────────────────────────────────────────────
def cable(rate: str, delay: int = 0, name: str = "us-eu") -> Cable:
    start, _, end = name.partition("-")
    way = replace(impairment(rate), delay=Duration(delay * MS))
    return Cable(name, f"switch-{start}", f"switch-{end}", Link(way, way))


def clustered(*where: str, wans: tuple[Cable, ...], **changes: Any) -> Case:
    """A node in each of these clusters, in this order."""
    plain = case(len(where))
    nodes = tuple(replace(node, switch=f"switch-{name}") for node, name in zip(plain.nodes, where, strict=True))
    switches = tuple(
        Switch(f"switch-{name}", f"198.19.0.{at + 1}", name) for at, name in enumerate(dict.fromkeys(where))
    )
    return replace(plain, nodes=nodes, switches=switches, wans=wans, **changes)


def with_way(node: Node, **changes: Any) -> Node:
    way: Impairment = replace(node.link.up, **changes)
    return replace(node, link=replace(node.link, up=way))


def test_equal_links_make_one_edge() -> None:
    (leg,) = ring(case(8))
    assert astuple(leg.edge) == pytest.approx((1e9 * GOODPUT, 0.0, BURST * 8 / 1e9, False))
    assert ring(case(1)) == ()


def test_a_ring_over_two_clusters_crosses_the_line_once_each_way() -> None:
    legs = ring(clustered("us", "us", "eu", "eu", wans=(cable("200mbit", 10),)))
    slow = [leg for leg in legs if leg.edge.rtt]
    assert len(slow) == 1
    assert astuple(slow[0].edge) == pytest.approx((2e8 * GOODPUT, 0.02, BURST * 8 / 2e8, True))
    assert slow[0].slowest["edges"] == 1


def test_words_wait_where_data_goes_both_ways() -> None:
    """On the one connection of two nodes; not in a ring of more; not on lines that are crossed one way only."""
    lines = (cable("100mbit"), cable("100mbit", 0, "eu-asia"), cable("100mbit", 0, "us-asia"))
    assert [leg.edge.queued for leg in ring(case(2))] == [True]
    assert [leg.edge.queued for leg in ring(case(3))] == [False]
    assert not any(leg.edge.queued for leg in ring(clustered("us", "eu", "asia", wans=lines)))


def test_edges_that_cross_one_cable_the_same_way_share_it() -> None:
    legs = ring(clustered("us", "eu", "us", "eu", wans=(cable("200mbit"),)))
    assert [leg.edge.goodput for leg in legs] == [pytest.approx(1e8 * GOODPUT)]
    assert legs[0].slowest["edges"] == 2


def test_background_traffic_takes_its_part() -> None:
    busy = clustered("us", "eu", wans=(cable("200mbit"),), background=(Background("us-eu", "down", Rate(50_000_000)),))
    legs = {leg.slowest["direction"]: leg for leg in ring(busy)}
    assert legs["down"].edge.goodput == pytest.approx(1.5e8 * GOODPUT)
    assert legs["down"].slowest["background"] == 50_000_000
    assert legs["up"].edge.goodput == pytest.approx(2e8 * GOODPUT)


def test_ranks_send_to_the_one_before_them() -> None:
    """gloo/allreduce.cc: so the second rank's uplink and the first one's downlink make an edge."""
    slow = replace(case(3), nodes=(with_way(case(3).nodes[0], rate=Rate(10**8)), *case(3).nodes[1:]))
    legs = ring(slow)
    assert min(leg.edge.goodput for leg in legs) == pytest.approx(1e8 * GOODPUT)
    line = ring(
        clustered(
            "us", "eu", "asia", wans=(cable("1gbit", 1), cable("1gbit", 2, "eu-asia"), cable("1gbit", 4, "us-asia"))
        )
    )
    assert sorted(leg.edge.rtt for leg in line) == [pytest.approx(rtt) for rtt in (0.002, 0.004, 0.008)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loss": Loss(good=Fraction(10**7))}, "loss"),
        ({"jitter": Duration(MS)}, "jitter"),
        ({"delay": Duration(MS)}, ""),
    ],
)
def test_no_time_is_predicted_where_packets_are_lost(changes: dict[str, Any], why: str) -> None:
    lossy = replace(case(2), nodes=(with_way(case(2).nodes[0], **changes), case(2).nodes[1]))
    assert unknown(lossy) == why
    assert ("step_time" in predict(lossy)) == (not why)
    assert predict(lossy)["payload_tx"].value > 0


def test_no_time_is_predicted_where_links_change() -> None:
    changing = replace(case(2), changes=(Change("n0", Duration(0), None, case(2).nodes[0].link),))
    assert unknown(changing) == "timeline"
    assert set(predict(changing)) == {"payload_tx"}


def test_every_input_of_a_time_is_in_the_prediction() -> None:
    far = clustered("us", "eu", wans=(cable("200mbit", 10),), workload=Allreduce(2, 1, Size(25 * 10**6)))
    figure = predict(far)["step_time"]
    assert figure.formula == "ring_time"
    size, nodes, edges = (figure.inputs[name] for name in ("bytes", "nodes", "edges"))
    again = [
        timing.ring_time(size, nodes, Edge(*(edge[name] for name in ("goodput", "rtt", "credit", "queued"))))
        for edge in edges
    ]
    assert figure.value == max(again)
