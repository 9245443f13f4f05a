"""The topology as text, as Mermaid and as SVG: what it says, that it fits, and that no record can break it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import graph
from rig.graph import drawing, sketch
from rig.model import Background, Cable, Case, Change, Link, Loss, Node, Switch
from rig.record import plain
from rig.report.topologies import MOST_DRAWN, topologies
from rig.units import Duration, Fraction, Rate
from tests.cases import case, impairment

MS = 10**6
SVG = "{http://www.w3.org/2000/svg}"


def way(rate: str, delay: int = 0, **more: Any) -> Any:
    return replace(impairment(rate), delay=Duration(delay * MS), **more)


def clusters(counts: dict[str, int], wans: list[tuple[str, str]], link: Link | None = None) -> Case:
    """So many nodes in each cluster, and cables of 200 Mb/s and 10 ms between these pairs."""
    where = [name for name, count in counts.items() for _ in range(count)]
    far = link or Link(way("200mbit", 10), way("200mbit", 10))
    return replace(
        case(len(where)),
        nodes=tuple(
            replace(node, switch=f"switch-{name}") for node, name in zip(case(len(where)).nodes, where, strict=True)
        ),
        switches=tuple(Switch(f"switch-{name}", f"198.19.0.{at + 1}", name) for at, name in enumerate(counts)),
        wans=tuple(Cable(f"{a}-{b}", f"switch-{a}", f"switch-{b}", far) for a, b in wans),
    )


NODES = {"us": 20, "eu": 16, "asia": 8, "australia": 8, "africa": 8, "antarctica": 4}
MESH = clusters(NODES, list(combinations(NODES, 2)))


def with_link(one: Case, number: int, up: Any, down: Any) -> Case:
    nodes: list[Node] = list(one.nodes)
    nodes[number] = replace(nodes[number], link=Link(up, down))
    return replace(one, nodes=tuple(nodes))


def test_two_clusters_as_text() -> None:
    assert graph.text(clusters({"us": 4, "eu": 2}, [("us", "eu")])).splitlines() == [
        "n0…n3     ── 1gbit ────────── switch-us",
        "n4, n5    ── 1gbit ────────── switch-eu",
        "switch-us ══ 200mbit, 10ms ══ switch-eu",
    ]


def test_what_each_way_does_is_said() -> None:
    one = with_link(
        case(3),
        1,
        way("20mbit", 20, jitter=Duration(2 * MS), loss=Loss(good=Fraction(5 * 10**6))),
        way("100mbit", corrupt=Fraction(10**7)),
    )
    one = replace(one, background=(Background("n0", "up", Rate(10**8)),))
    one = replace(one, changes=(Change("n2", Duration(0), None, one.nodes[2].link),))
    assert graph.text(one).splitlines() == [
        "n0 ── → 1gbit, 100mbit of it others' ── switch",
        "      ← 1gbit",
        "n1 ── → 20mbit, 20ms ±2ms, loss 0.5% ── switch",
        "      ← 100mbit, corrupt 1%",
        "n2 ── 1gbit, changing ───────────────── switch",
    ]


def test_bursts_of_loss_show_their_mean() -> None:
    bursty = Loss(bad=Fraction(10**9), enter=Fraction(10**7), leave=Fraction(3 * 10**8))
    one = with_link(case(1), 0, way("1gbit", loss=bursty), way("1gbit", loss=bursty))
    assert "loss 3.23% in bursts" in graph.text(one)


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ((), "n0…n11"),
        ((3,), "n0…n2, n4…n11"),
        ((1, 2), "n0, n3…n11"),
        ((10,), "n0…n9, n11"),
        ((1, 3, 5, 7), "n0 … n11 (8 nodes)"),
    ],
)
def test_nodes_are_named_by_their_runs(slow: tuple[int, ...], name: str) -> None:
    one = case(12)
    for number in slow:
        one = with_link(one, number, way("1mbit"), way("1mbit"))
    assert graph.text(one).splitlines()[0].partition(" ──")[0].strip() == name


links = st.builds(
    Link,
    *[
        st.builds(
            way,
            st.sampled_from(["1mbit", "123.456mbit", "2.5gbit"]),
            st.integers(0, 5000),
            jitter=st.integers(0, 10**9).map(Duration),
            loss=st.integers(0, 10**8).map(lambda share: Loss(good=Fraction(share))),
            duplicate=st.integers(0, 10**8).map(Fraction),
            corrupt=st.integers(0, 10**8).map(Fraction),
        )
    ]
    * 2,
)


@given(links, st.integers(1, 64), st.integers(0, 63))
def test_it_fits_a_terminal_and_is_well_formed(link: Link, nodes: int, other: int) -> None:
    one = with_link(
        clusters({"australia": nodes, "eu": 1}, [("australia", "eu")], link), other % nodes, link.up, link.down
    )
    assert max(map(len, graph.text(one).splitlines())) <= 80
    ElementTree.fromstring(graph.svg(one))


def test_mermaid_quotes_every_text() -> None:
    lines = graph.mermaid(clusters({"us": 4, "eu": 1}, [("us", "eu")])).splitlines()
    assert lines == [
        "flowchart LR",
        '  s0(("switch-us"))',
        '  s1(("switch-eu"))',
        '  g0["n0…n3 (4 nodes)"]',
        '  g0 ---|"1gbit"| s0',
        '  g1["n4"]',
        '  g1 ---|"1gbit"| s1',
        '  s0 ===|"200mbit, 10ms"| s1',
    ]


# ── the drawing ──────────────────────────────────────────────────────────────────────────────────────
def boxes(root: ElementTree.Element, fill: str) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of rectangles with such a stroke, or none."""
    found = []
    for box in list(root.iter(f"{SVG}rect"))[1:]:
        if box.get("stroke", "") == fill:
            x, y, wide, high = (float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + wide, y + high))
    return found


@pytest.mark.parametrize("one", [case(2), case(64), MESH], ids=["two", "many", "mesh"])
def test_everything_is_inside_and_no_label_covers_another(one: Case) -> None:
    root = ElementTree.fromstring(graph.svg(one))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    labels = boxes(root, "")
    for left, top, right, bottom in [*labels, *boxes(root, drawing.NODE), *boxes(root, drawing.INK)]:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for index, (left, top, right, bottom) in enumerate(labels):
        for other in labels[index + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    assert len(labels) == len(one.wans) + len(sketch.of_case(one).groups)


def test_every_switch_group_and_cable_is_drawn() -> None:
    root = ElementTree.fromstring(graph.svg(MESH))
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert {switch.name for switch in MESH.switches} <= set(texts)
    assert "n0…n19 ×20" in texts
    assert texts.count("200mbit, 10ms") == 15
    arcs = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("stroke") == drawing.WAN]
    assert len(arcs) == len(set(arcs)) == 15


def test_an_arrow_points_where_its_cable_leads() -> None:
    """Drawn from left to right, a cable from the right one to the left one turns round."""
    apart = Link(way("200mbit"), way("10mbit"))
    here = graph.svg(clusters({"us": 1, "eu": 1}, [("us", "eu")], apart))
    there = graph.svg(clusters({"us": 1, "eu": 1}, [("eu", "us")], apart))
    assert "→ 200mbit" in here
    assert "← 10mbit" in here
    assert "← 200mbit" in there
    assert "→ 10mbit" in there


def test_colours_are_the_pages_own_with_something_to_fall_back_on() -> None:
    colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', graph.svg(MESH))) - {"none"}
    assert colours
    assert all(re.fullmatch(r"var\(--[a-z]+, #[0-9a-f]{3,6}\)", colour) for colour in colours)


# ── from a record ────────────────────────────────────────────────────────────────────────────────────
def recorded(one: Case) -> dict[str, Any]:
    names = ("nodes", "switches", "wans", "background", "changes")
    document: dict[str, Any] = plain({name: [asdict(each) for each in getattr(one, name)] for name in names})
    return document | {"id": one.id}


def test_a_record_draws_what_the_case_did() -> None:
    (drawn,), left = topologies([recorded(MESH)])
    assert drawn.svg == graph.svg(MESH)
    assert drawn.title == "64 nodes on 6 switches"
    assert left == 0


def test_equal_networks_are_drawn_once_and_not_too_many() -> None:
    drawn, left = topologies([recorded(case(nodes, id=f"{again}")) for again in "ab" for nodes in range(1, 9)])
    assert [one.title for one in drawn] == [f"{nodes} nodes on 1 switch" for nodes in (8, 7, 6, 5)]
    assert all(one.cases == ("a", "b") for one in drawn)
    assert (len(drawn), left) == (MOST_DRAWN, 4)


def test_names_cannot_leave_their_place() -> None:
    evil = recorded(case(2))
    evil["nodes"][0]["name"] = evil["switches"][0]["name"] = evil["nodes"][0]["switch"] = '"><script>alert(1)</script>'
    drawn, _ = topologies([evil | {"nodes": evil["nodes"][:1]}])
    assert "<script" not in drawn[0].svg
    ElementTree.fromstring(drawn[0].svg)


scraps = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["up", "rate", "loss", "name"]), inner),
    max_leaves=6,
)


@given(st.data())
def test_a_damaged_record_draws_nothing_rather_than_break(data: st.DataObject) -> None:
    document = recorded(clusters({"us": 1, "eu": 1}, [("us", "eu")]))
    place: Any = document
    for _ in range(data.draw(st.integers(0, 5))):
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key]:
            break
        place = place[key]
    for key in list(place) if isinstance(place, dict) else range(len(place)):
        place[key] = data.draw(scraps)
    for drawn in topologies([document])[0]:
        ElementTree.fromstring(drawn.svg)
