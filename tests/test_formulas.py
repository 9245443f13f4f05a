"""The formulas: figures measured elsewhere, limits, bounds and monotonicity."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import models
from rig.formulas import FORMULAS, rings, speedup, timing, traffic
from rig.formulas.overlap import Timeline, Transfer, overlap, shared
from rig.formulas.predict import predict
from rig.formulas.rings import Edge
from rig.model import Phases
from rig.plan import expand
from rig.scenario import load

MIB = 2**20
sizes = st.integers(4, 2**32)
nodes = st.integers(1, 256)


def test_resnet50_over_four_ranks_sends_what_tcp_info_counted() -> None:
    buckets = [sum(resnet()[i] for i in bucket) for bucket in traffic.ddp_buckets(resnet(), 25 * MIB)]
    assert sum(traffic.gloo_allreduce_payload(bucket, 4) for bucket in buckets) == 153_365_520


@pytest.mark.parametrize(("n", "sent"), [(2, 1_000_580), (3, 1_334_490.67), (4, 1_501_734)])
def test_allreduce_of_a_size_that_does_not_divide(n: int, sent: float) -> None:
    assert traffic.gloo_allreduce_payload(1_000_004, n) == pytest.approx(sent, abs=0.01)


def test_an_empty_segment_is_not_sent() -> None:
    assert traffic.gloo_allreduce_payload(4, 2) == 148


@pytest.mark.parametrize(
    ("n", "sent"),
    [(2, [6152, 96]), (3, [12304, 96, 96]), (4, [12304, 6248, 96, 96]), (5, [18456, 6248, 96, 96, 96])],
)
def test_buffer_broadcast_as_tcp_info_counted(n: int, sent: list[int]) -> None:
    assert traffic.ddp_step_payload([], [5912, 48], n) == tuple(sent)


def resnet() -> list[int]:
    return [tensor.nbytes for tensor in models.load("resnet50").parameters]


def test_ddp_buckets_of_resnet50_as_torch_builds_them() -> None:
    buckets = traffic.ddp_buckets(resnet(), 25 * MIB)
    assert [round(sum(resnet()[i] for i in bucket) / 1e6, 2) for bucket in buckets] == [8.2, 31.5, 26.26, 26.55, 9.72]


@given(st.lists(st.integers(1, 100 * MIB), min_size=1, max_size=60), st.integers(1, 50 * MIB))
def test_every_tensor_is_in_one_bucket_in_reverse_order(tensors: list[int], cap: int) -> None:
    buckets = traffic.ddp_buckets(tensors, cap)
    assert [i for bucket in buckets for i in bucket] == list(reversed(range(len(tensors))))
    for position, bucket in enumerate(buckets[:-1]):
        limit = MIB if position == 0 and cap == 25 * MIB else cap
        assert sum(tensors[i] for i in bucket) >= limit > sum(tensors[i] for i in bucket[:-1])


@given(sizes)
def test_one_node_sends_nothing(size: int) -> None:
    assert traffic.gloo_allreduce_payload(size, 1) == 0
    assert traffic.gloo_broadcast_payload(size, 1) == (0,)
    assert rings.ring_time(size, 1, Edge(1e9, rtt=1)) == 0
    assert traffic.ddp_step_payload([size], [size], 1) == (0,)


@given(sizes, st.integers(2, 256))
def test_allreduce_payload_grows_towards_twice_the_size(size: int, n: int) -> None:
    payload, more = traffic.gloo_allreduce_payload(size, n), traffic.gloo_allreduce_payload(size, n + 1)
    assert size <= payload <= 2 * size + traffic.CONTROL * 2 * (n - 1) * max(2, ceil(ceil(size / MIB) / n))
    assert more > payload or n > 2  # control may round down as segments shrink, the data part never does
    assert 2 * n / (n + 1) * size > 2 * (n - 1) / n * size


@given(st.integers(2, 256))
def test_broadcast_reaches_every_rank_once_and_its_root_sends_log_n_copies(n: int) -> None:
    alone = traffic.gloo_broadcast_payload(MIB, n)
    copies = [round(sent / (MIB + 96)) for sent in alone]
    assert sum(copies) == n - 1
    assert copies[0] == ceil(log2(n))


def test_goodput_of_well_known_cables() -> None:
    assert timing.goodput(1e9, 1500, "ethernet") == pytest.approx(941.48e6, rel=1e-4)
    assert timing.goodput(1e9, 1500, "none") == pytest.approx(956.4e6, rel=1e-4)
    assert timing.goodput(1e9, 9000, "ethernet") == pytest.approx(8948 / 9038 * 1e9)


phases = st.builds(
    lambda forward, gaps, tail, optimizer: Phases(
        forward, tuple(sum(gaps[: i + 1]) for i in range(len(gaps))), sum(gaps) + tail, optimizer
    ),
    st.floats(0, 10), st.lists(st.floats(0, 5), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip


def stepped(phases: Phases, buckets: list[Transfer], before: float = 0.0) -> Timeline:
    return overlap(phases, shared(phases.ready, buckets), before)


@given(phases, st.data())
def test_a_step_is_bounded_by_its_parts(one: Phases, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.floats(0, 5), min_size=len(one.ready), max_size=len(one.ready)))
    before = data.draw(st.floats(0, 1))
    shares = data.draw(st.lists(st.floats(0.01, 1), min_size=len(one.ready), max_size=len(one.ready)))
    buckets = [Transfer(time, time * share) for time, share in zip(times, shares, strict=True)]
    line = stepped(one, buckets, before)
    assert max(line.compute, line.comm) <= line.step * (1 + 1e-12) + 1e-12
    assert line.step <= (line.compute + line.comm) * (1 + 1e-12) + 1e-12
    assert line.exposed == pytest.approx(line.step - line.compute, abs=1e-9)
    for ready, bucket, end in zip(one.ready, buckets, line.ends, strict=True):
        assert end >= ready + bucket.alone - 1e-9, "no bucket is faster than by itself"
    assert line.comm <= before + sum(times) + 1e-9
    assert line.comm >= before + sum(bucket.busy for bucket in buckets) - 1e-9, "nor the link faster than it is"


@given(phases, st.data())
def test_without_delay_the_last_bucket_ends_as_if_they_came_one_after_another(one: Phases, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.floats(0, 5), min_size=len(one.ready), max_size=len(one.ready)))
    end = 0.0
    for ready, time in zip(one.ready, times, strict=True):
        end = max(ready, end) + time
    line = stepped(one, [Transfer(time, time) for time in times])
    assert max(line.ends) == pytest.approx(end)
    assert line.comm == pytest.approx(sum(times))


@given(phases)
def test_without_communication_a_step_is_its_compute(one: Phases) -> None:
    line = stepped(one, [Transfer(0.0, 0.0)] * len(one.ready))
    assert line.step == pytest.approx(one.step, abs=1e-9)
    assert line.exposed == pytest.approx(0, abs=1e-9)


def test_overlap_by_hand() -> None:
    # Ready at 2, 4, 6 of a backward pass of 6; each takes 3. From 4 on two share: 6, 10, 11; 5 beyond that pass.
    line = stepped(Phases(3, (2, 4, 6), 6, 1), [Transfer(3, 3)] * 3, before=0.5)
    assert (line.ends, line.step, line.exposed, line.comm) == ((6, 10, 11), 15.5, 5.5, 9.5)


@pytest.mark.parametrize(
    ("busy", "ends"),
    [
        (1, (4, 4, 8)),  # a quarter of the link each: two at once, as fast as alone; the third waits for a worker
        (2, (4, 4, 8)),
        (4, (8, 8, 12)),  # all of it: halves
        (3, (6, 6, 10)),
    ],
)
def test_one_bucket_waits_while_anothers_bytes_pass(busy: float, ends: tuple[float, ...]) -> None:
    assert shared((0, 0, 0), [Transfer(4, busy)] * 3) == ends


@given(st.floats(1e-3, 1e3), st.integers(1, 64), nodes)
def test_perfect_scaling_is_n(step: float, batch: int, n: int) -> None:
    gain = speedup.speedup(speedup.throughput([batch] * n, step), speedup.throughput([batch], step))
    assert gain == pytest.approx(n)
    assert speedup.efficiency(gain, n) == pytest.approx(1)


def test_what_a_prediction_cites_is_in_the_table() -> None:
    for scenario in ("bandwidth", "allreduce", "accuracy/digits"):
        for case in expand(load(Path(__file__).parents[1] / "scenarios" / f"{scenario}.yaml"), cores=2):
            some = Phases(0.1, tuple([0.1] * 5), 0.2, 0.01) if scenario == "accuracy/digits" else None
            if some:
                some = Phases(0.1, tuple([0.1] * len(predict(case)["payload_tx"].inputs["buckets"])), 0.2, 0.01)
            assert {figure.formula for figure in predict(case, some).values()} <= set(FORMULAS)


def test_every_formula_says_what_it_is() -> None:
    assert all((formula.__doc__ or "").strip() for formula in FORMULAS.values())


@pytest.mark.parametrize(("n", "sent"), [(2, [2_422_344, 440]), (4, [4_844_984, 2_423_080, 1032, 1032])])
def test_startup_is_a_model_broadcast_and_a_little_more(n: int, sent: list[int]) -> None:
    table = models.load("cnn")
    least = traffic.ddp_startup_payload([tensor.nbytes for tensor in (*table.parameters, *table.buffers)], n)
    assert all(0 <= measured - due <= 4096 for measured, due in zip(sent, least, strict=True))
