"""Ways through networks of every shape, against sums and counts done here."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig import scenario, topology
from rig.model import Cable, Case, Change, Impairment, Link
from rig.plan import expand
from rig.units import Duration, Rate, Size

MS = 10**6  # ns
SHAPE = """\
name: shape
link: {rate: 1gbit, delay: 1ms}
clusters: {a: {nodes: 2}, b: {nodes: 1}, c: {nodes: 1}, d: {nodes: 2}}
machines: {n3: {link: {up: {delay: 3ms}}}}
workload: {kind: allreduce, size: 1MiB}
"""
ROW = "wan: {rate: 100mbit, topology: chain, up: {delay: 10ms}, down: {delay: 20ms}}\n"
MESH = "wan: {rate: 100mbit, rtt: 30ms}\n"
RING = (
    "wan: ["
    + ", ".join(f"{{between: [{pair[0]}, {pair[1]}], rate: 100mbit}}" for pair in ("ab", "bc", "cd", "da"))
    + "]\n"
)


def case(wan: str = "", text: str = SHAPE) -> Case:
    return expand(scenario.loads(text + wan, "x.yaml"), 2)[0]


def named(hops: tuple[topology.Hop, ...]) -> list[str]:
    return [f"{cable.name} {way}" for cable, way in hops]


def test_along_a_row_of_clusters() -> None:
    row = case(ROW)
    assert named(topology.route(row, "n0", "n5")) == ["n0 up", "a-b up", "b-c up", "c-d up", "n5 down"]
    assert named(topology.route(row, "n5", "n2")) == ["n5 up", "c-d down", "b-c down", "n2 down"]
    assert named(topology.route(row, "n0", "n1")) == ["n0 up", "n1 down"]
    assert named(topology.route(row, "switch-d", "n0")) == ["c-d down", "b-c down", "a-b down", "n0 down"]
    assert named(topology.route(row, "n0", "switch-a")) == ["n0 up"]
    assert topology.route(row, "n0", "n0") == topology.route(row, "switch-a", "switch-a") == ()
    with pytest.raises(KeyError):
        topology.route(row, "n0", "switch-z")


def test_delays_add_up_there_and_back() -> None:
    row = case(ROW)
    assert topology.rtt(row, "n0", "n1") == pytest.approx(0.004)
    assert topology.rtt(row, "n0", "n5") == pytest.approx(0.004 + 3 * 0.030)
    assert topology.rtt(row, "n0", "n3") == topology.rtt(row, "n3", "n0") == pytest.approx(0.006 + 2 * 0.030)
    assert topology.rtt(row, "switch-a", "switch-b") == pytest.approx(0.030)
    assert topology.extremes(row.cables).rtt == pytest.approx(0.004 + 3 * 0.030)
    assert topology.extremes(case(MESH).cables).rtt == pytest.approx(0.006 + 0.030)


def test_a_ring_is_gone_round_the_short_way() -> None:
    ring = case(RING)
    assert named(topology.route(ring, "n0", "n4")) == ["n0 up", "d-a down", "n4 down"]
    assert len(topology.route(ring, "n0", "n3")) == 4
    assert topology.route(ring, "n0", "n3")[1][0].name == "a-b"  # of equals what stands first


def test_next_hops_lead_where_the_route_does() -> None:
    for shaped in (case(ROW), case(MESH), case(RING)):
        for switch in shaped.switches:
            hops = topology.next_hops(shaped, switch.name)
            assert len(hops) == len(shaped.nodes) + len(shaped.switches) - 1
            for place in hops:
                seen, here = {switch.name}, switch.name
                while here != place:  # every switch on the way decides for itself
                    cable = topology.next_hops(shaped, here)[place]
                    here = cable.end if here == cable.start else cable.start
                    assert here not in seen
                    seen.add(here)


# ── all paths ────────────────────────────────────────────────────────────────────────────────────────
def link(rate: int, up: int, down: int) -> Link:
    one, other = (Impairment(Rate(rate), Size(0), Size(0), Duration(delay)) for delay in (up, down))
    return Link(one, other)


def test_a_lone_node_goes_to_its_switch_and_back() -> None:
    found = topology.extremes([Cable("n0", "n0", "switch", link(10, 1 * MS, 2 * MS))])
    assert (found.rtt, found.fullest) == (0.003, (10, 0.003))


def test_nodes_that_nothing_joins() -> None:
    with pytest.raises(KeyError):
        topology.extremes([Cable("n0", "n0", "a", link(1, 0, 0)), Cable("n1", "n1", "b", link(1, 0, 0))])


@settings(max_examples=50, deadline=None)
@given(
    nodes=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)),
        min_size=2,
        max_size=6,
    ),
    lines=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=3),
)
def test_extremes_are_those_of_every_pair(
    nodes: list[tuple[str, int, int, int]], lines: list[tuple[int, int, int]]
) -> None:
    """A row of four switches, where the way between two of them is all that lies between."""
    cables = [Cable(f"n{n}", f"n{n}", switch, link(rate, up, down)) for n, (switch, rate, up, down) in enumerate(nodes)]
    wans = [Cable(f"{a}-{b}", a, b, link(*line)) for a, b, line in zip("abc", "bcd", lines, strict=True)]
    expected = set()
    for one, other in [*combinations(cables, 2), *combinations(reversed(cables), 2)]:
        low, high = sorted((one.end, other.end))
        crossed = [wan.link for wan in wans if low <= wan.start < high]
        ends = [one.link, other.link]
        rate = min(each.up.rate for each in (*crossed, *ends))
        expected.add((rate, sum(each.up.delay + each.down.delay for each in (*crossed, *ends))))
    found = topology.extremes([*cables, *wans])
    fullest, span = found.fullest
    assert round(found.rtt * 1e9) == max(delay for _, delay in expected)
    assert fullest * round(span * 1e9) == max(rate * delay for rate, delay in expected)
    assert not span or (fullest, round(span * 1e9)) in expected


def test_thousands_of_links_that_differ_take_no_longer_than_they_are() -> None:
    cables = [Cable(f"n{n}", f"n{n}", "switch", link(n % 997 + 1, n * 7 % 1009, n * 11 % 1013)) for n in range(5000)]
    began = time.process_time()
    topology.extremes(cables)
    assert time.process_time() - began < 2  # every pair of them would take a minute


def test_the_most_that_cables_ever_are() -> None:
    first, later, last = link(10, 1, 5), link(20, 0, 7), link(5, 3, 0)
    cables = [Cable("n0", "n0", "switch", first), Cable("n1", "n1", "switch", first)]
    changes = [Change("n1", Duration(1), None, later), Change("n1", Duration(2), None, last)]
    one, other = topology.at_most(cables, changes)
    assert one.link == first
    assert (other.link.up.rate, other.link.up.delay, other.link.down.delay) == (20, 3, 7)
