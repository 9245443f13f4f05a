"""What follows from a script's one-node run: its moments, what it would send, what several nodes should take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import measure
from rig.formulas import collectives, traffic
from rig.formulas.predict import predict
from rig.model import Case, Phases
from rig.work import Script
from rig.workloads.onlooker.watch import Moments
from tests.cases import case, node

SCRIPT = Script(steps=0, warmup=3, command=("python", "train.py"), folder="/", files="mounted", torchrun=False, batch=8)
ALONE = Phases(
    forward=0.01, ready=(0.005, 0.02), backward=0.02, optimizer=0.002, buckets=(2_117_648, 19_584), broadcasts=(384, 16)
)
LAYOUT = {"event": "layout", "broadcasts": [384, 16], "maps": [], "hooks": []}
sizes = st.lists(st.integers(4, 2**26), max_size=4)


def scripted(nodes: int = 2) -> Case:
    seats = tuple(replace(node(number), batch=8) for number in range(nodes))
    return replace(case(nodes=nodes, workload=SCRIPT), nodes=seats)


def row(step: int, buckets: list[tuple[float, int]], **moments: float) -> dict[str, Any]:
    """A step of 10 s, its moments from its start; buckets take 1 s each."""
    fields = {"start": 0.0, "forward_start": 2.0, "forward_end": 4.0, "backward_end": 8.0, "end": 10.0, "loading": 1.5}
    spans = [{"start": start, "end": start + 1, "bytes": count} for start, count in buckets]
    return {"step": step, "warmup": step == 0, "buckets": spans} | fields | moments


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────
def test_of_a_step_that_nothing_tells_the_start_of_nothing_is_told() -> None:
    assert Moments().marks(5.0, []) is None


def test_a_step_without_ddp_has_the_moments_of_its_backward_pass() -> None:
    marks = Moments(start=1.0, backward=3.0, backward_end=4.0).marks(5.0, [])
    assert marks is not None
    assert (marks.forward_start, marks.forward_end, marks.backward_end, marks.loading) == (1.0, 3.0, 4.0, 0.0)


@given(st.lists(st.none() | st.floats(0, 100), min_size=5, max_size=5), st.lists(st.floats(0, 100), max_size=3))
def test_moments_are_in_order_whatever_was_noticed(noticed: list[float | None], starts: list[float]) -> None:
    """A script may do things in any order; the report still has spans that are none less than nothing."""
    called, forward, micro_batch, backward, backward_end = noticed
    moments = Moments(0.0, called, forward, micro_batch, backward, backward_end)
    marks = moments.marks(100.0, [[start, start, 4] for start in starts])
    assert marks is not None
    told = [marks.start, marks.forward_start, marks.forward_end, marks.backward_end, marks.end]
    assert told == sorted(told)
    assert 0 <= marks.loading <= marks.forward_start - marks.start
    assert marks.earlier >= 0


# ── what one node would send ─────────────────────────────────────────────────────────────────────────
def test_waiting_for_data_is_no_communication() -> None:
    step = row(1, [(6.0, 40), (8.0, 4)])
    assert measure.comm(step) == 0.5 + 1 + 1
    assert measure.exposed(step) == 0.5 + 1


def test_a_one_node_run_tells_what_several_nodes_send() -> None:
    phases = measure.phases([row(at, [(6.0, 40), (8.0, 4)]) for at in range(3)], [{"event": "hello"}, LAYOUT])
    assert (phases.buckets, phases.broadcasts, phases.maps, phases.silent) == ((40, 4), (384, 16), (), "")
    assert phases.ready == (2.0, 4.0)
    assert (phases.forward, phases.backward, phases.optimizer) == (4.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("buckets", "layout", "why"),
    [
        ([[], []], LAYOUT, "there is no DDP in it"),
        ([[(6.0, 40)], [(6.0, 40), (7.0, 4)]], LAYOUT, "not every step of it exchanges the same buckets"),
        (
            [[(6.0, 40)]] * 2,
            LAYOUT | {"hooks": ["powerSGD_hook"]},
            "its buckets do not tell what it sends: powerSGD_hook",
        ),
    ],
)
def test_what_a_one_node_run_does_not_tell(
    buckets: list[list[tuple[float, int]]], layout: Mapping[str, Any], why: str
) -> None:
    phases = measure.phases([row(at + 1, spans) for at, spans in enumerate(buckets)], [layout])
    assert (phases.silent, phases.buckets) == (why, ())
    assert predict(scripted(), phases) == {}


def test_of_several_backward_passes_bytes_are_told_and_no_times() -> None:
    phases = measure.phases([row(at, [(3.0, 40), (8.0, 4)]) for at in range(3)], [LAYOUT])
    assert phases.silent == "it exchanges in several backward passes of a step"
    assert set(predict(scripted(), phases)) == {"payload_tx"}


# ── prediction ───────────────────────────────────────────────────────────────────────────────────────
def test_one_node_sends_nothing_and_without_a_one_node_run_nothing_is_known() -> None:
    assert predict(scripted(1))["payload_tx"].per_node == (0.0,)
    assert predict(scripted(2)) == {}


@pytest.mark.parametrize("nodes", [2, 4])
def test_bytes_and_times_are_those_of_ddp(nodes: int) -> None:
    found = predict(scripted(nodes), ALONE)
    sent = traffic.ddp_step_payload(ALONE.buckets, ALONE.broadcasts, nodes)
    assert found["payload_tx"].per_node == pytest.approx(sent)
    assert found["payload_tx"].value == pytest.approx(sum(sent) / nodes)
    assert found["step_time"].value > ALONE.step
    assert found["throughput"].value == pytest.approx(8 * nodes / found["step_time"].value)
    assert 1 < found["speedup"].value < nodes


def test_a_map_of_used_parameters_goes_with_the_last_bucket() -> None:
    plain, mapped = (predict(scripted(), phases) for phases in (ALONE, replace(ALONE, maps=(32,))))
    more = mapped["payload_tx"].value - plain["payload_tx"].value
    assert more == traffic.unused_map_payload(8, 2)
    assert mapped["step_time"].value > plain["step_time"].value


@given(sizes, sizes, st.integers(1, 9))
def test_with_one_rank_a_node_sends_what_a_rank_does(buckets: list[int], broadcasts: list[int], n: int) -> None:
    each = traffic.node_step_payload(buckets, broadcasts, [1] * n)
    assert each == pytest.approx(traffic.ddp_step_payload(buckets, broadcasts, n))


@given(st.integers(1, 64), sizes)
def test_ranks_of_one_node_send_nothing_over_its_link(ranks: int, buckets: list[int]) -> None:
    assert traffic.node_step_payload(buckets, buckets, [ranks]) == (0.0,)


def test_a_node_of_several_ranks_by_hand() -> None:
    """Ranks 0, 1 on one node, 2, 3 on the other: of the tree's copies 0→1, 0→2, 1→3 two leave the node."""
    ring = traffic.gloo_allreduce_payload(2**20, 4)
    assert ring == pytest.approx(collectives.node_link_payload(2**20, 2, 2), rel=2e-3)
    assert traffic.node_step_payload([2**20], [100], [2, 2]) == (ring + 2 * 196, ring + 2 * 48)
