"""Ways to exchange: as written, what is refused, what is predicted by hand, and what a message holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rig import measure
from rig.errors import ScenarioError, WorkloadError
from rig.formulas import collectives, compression, exchange, rings, traffic
from rig.formulas.edges import ring
from rig.formulas.predict import predict
from rig.model import Case, Phases
from rig.plan import expand
from rig.scenario import loads
from rig.units import Fraction
from rig.work import Ddp, Exchange
from rig.workloads.hooks import EightBits, Largest
from rig.workloads.periodic import Rounds
from rig.workloads.standins import Part, StandIn, parts

MIB = 2**20
TEXT = """\
name: x
nodes: {nodes}
link: {{rate: 1gbit{link}}}
workload: {{kind: ddp, model: resnet18, batch: 8, compute: {{forward: 60ms, backward: 120ms, optimizer: 10ms}}, {more}}}
"""
COMPUTE = 0.19
ways = st.sampled_from(["allreduce", "fp16", "bf16", "powersgd", "topk", "quantized"])


def case(more: str, nodes: int = 4, link: str = "") -> Case:
    cases = expand(loads(TEXT.format(nodes=nodes, more=more, link=link), "x.yaml"), cores=2)
    return next(one for one in cases if one.size == nodes)


def training(more: str) -> Ddp:
    return trained_by(case(more))


def trained_by(one: Case) -> Ddp:
    assert isinstance(one.workload, Ddp)
    return one.workload


# ── as written ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("allreduce", Exchange()),
        ("fp16", Exchange("fp16")),
        ("powersgd", Exchange("powersgd", rank=4)),
        ("{powersgd: {rank: 1}}", Exchange("powersgd", rank=1)),
        ("{quantized: }", Exchange("quantized")),
        ("{topk: {share: 0.5%}}", Exchange("topk", share=Fraction(5 * 10**6))),
        ("local_sgd", Exchange("local_sgd", every=8)),
        ("{hierarchical: {group: 4}}", Exchange("hierarchical", every=2, group=4, every_all=8)),
        ("{diloco: {every: 4, outer_lr: 1.0}}", Exchange("diloco", every=4, outer_lr=1.0, outer_momentum=0.9)),
    ],
)
def test_a_word_or_a_mapping_of_one(written: str, found: Exchange) -> None:
    assert training(f"steps: 8, exchange: {written}").exchange == found


def test_without_a_word_gradients_are_reduced() -> None:
    work = training("steps: 5")
    assert (work.exchange, work.precision, work.optimizer, work.lr) == (Exchange(), "float32", "sgd", 0.05)


def test_diloco_goes_with_the_optimizer_of_its_authors() -> None:
    work = training("steps: 32, exchange: diloco")
    assert (work.optimizer, work.lr) == ("adamw", 0.002)
    assert training("steps: 32, exchange: diloco, optimizer: sgd").optimizer == "sgd"


def test_each_may_be_swept() -> None:
    text = TEXT.format(nodes=4, more="steps: 8, exchange: {powersgd: {rank: 1}}", link="")
    ranks = loads(f"{text}sweep: {{workload.exchange.powersgd.rank: [1, 2]}}\n", "x.yaml").cells
    methods = loads(f"{text}sweep: {{workload.exchange: [fp16, {{local_sgd: {{every: 4}}}}]}}\n", "x.yaml").cells
    found = [cell.written.workload.resolve(Path()) for cell in (*ranks, *methods)]
    assert [one.exchange for one in found if isinstance(one, Ddp)] == [
        Exchange("powersgd", rank=1), Exchange("powersgd", rank=2), Exchange("fp16"), Exchange("local_sgd", every=4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("exchange: fp61", "workload.exchange: fp61 is no way to exchange; did you mean fp16?"),
        ("exchange: [fp16]", "found ['fp16']; write a word such as fp16, or a mapping of one with its own keys"),
        ("exchange: {fp16: , bf16: }", "write a word such as fp16, or a mapping of one"),
        ("exchange: {powersgd: {rnk: 4}}", "workload.exchange.powersgd.rnk: unknown key; did you mean rank?"),
        ("exchange: {powersgd: {rank: 0}}", "workload.exchange.powersgd.rank: must be at least 1, found 0"),
        ("exchange: {fp16: {rank: 4}}", "workload.exchange.fp16.rank: unknown key"),
        ("exchange: {topk: {share: 0%}}", "workload.exchange.topk.share: must be above 0% and at most 100%"),
        ("exchange: {local_sgd: {every: 1}}", "must be at least 2, found 1"),
        ("exchange: {diloco: {outer_momentum: 1}}", "workload.exchange.diloco.outer_momentum: must be less than 1"),
        ("exchange: {local_sgd: {every: 3}}", "no whole periods of local_sgd, which repeats every 3 steps; write 9"),
        ("exchange: diloco", "repeats every 32 steps; write 32"),
        ("exchange: {hierarchical: {group: 3}}", "4 nodes do not divide into groups of 3; write 2 or 4"),
        ("exchange: {hierarchical: {every: 4, every_all: 4}}", "not twice every: 4, or another multiple of it"),
        ("exchange: fp16, precision: float16", "fp16 sends gradients as float16, which they are already"),
        ("exchange: topk, precision: bfloat16", "topk makes float32 gradients smaller, and by workload.precision they"),
        ("precision: half", "workload.precision: found half; allowed: float32, bfloat16, float16"),
        ("optimizer: adam", "did you mean adamw?"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_at_its_key(more: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        case(f"steps: 8, {more}")
    assert said in str(caught.value)


def test_one_node_needs_no_groups() -> None:
    assert case("steps: 8, exchange: {hierarchical: {group: 3}}", nodes=1).size == 1


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────
def sent(more: str, nodes: int = 4) -> tuple[float, ...]:
    return predict(case(f"steps: 32, {more}", nodes))["payload_tx"].per_node


@given(ways)
def test_alone_nothing_is_sent_and_a_step_is_plain(method: str) -> None:
    found = predict(case(f"steps: 32, exchange: {method}", nodes=1))
    assert found["payload_tx"].value == 0
    assert found["step_time"].value == pytest.approx(COMPUTE)


@pytest.mark.parametrize("nodes", [2, 4])
def test_what_a_step_sends_against_plain_gradients(nodes: int) -> None:
    plain, parameters = sent("exchange: allreduce", nodes)[-1], 11_689_512  # the last rank broadcasts no buffers
    for word in ("fp16", "bf16"):
        assert sent(f"exchange: {word}", nodes)[-1] == pytest.approx(plain / 2, rel=1e-3)
    assert sent("precision: bfloat16", nodes)[-1] == pytest.approx(plain / 2, rel=1e-3)
    assert sent("exchange: quantized", nodes)[-1] == pytest.approx((nodes - 1) * parameters, rel=1e-3)
    assert sent("exchange: {topk: {share: 1%}}", nodes)[-1] == pytest.approx((nodes - 1) * 0.08 * parameters, rel=2e-3)
    whole = traffic.gloo_allreduce_payload(4 * parameters, nodes)
    assert sent("exchange: {local_sgd: {every: 8}}", nodes) == (whole / 8,) * nodes
    assert sent("exchange: {diloco: {every: 32}}", nodes) == (whole / 32,) * nodes
    server = (nodes - 1) * (4 * parameters + 144)
    assert sent("exchange: parameter_server", nodes) == (server, *(4 * parameters + 144,) * (nodes - 1))


def test_powersgd_sends_its_factors() -> None:
    work = training("steps: 8")
    shapes = [tensor.shape for tensor in work.table.parameters]
    due = sum(compression.powersgd_sizes(shapes, 4)) * 2 * 3 / 4
    assert sent("exchange: {powersgd: {rank: 4}}")[-1] == pytest.approx(due, rel=0.02), "and some control"


def test_groups_average_between_the_averages_of_all() -> None:
    size = 4 * 11_689_512
    pair, whole = (traffic.gloo_allreduce_payload(size, n) for n in (2, 4))
    found = sent("exchange: {hierarchical: {every: 2, group: 2, every_all: 8}}")
    assert found == pytest.approx((3 * pair / 8 + whole / 8,) * 4)
    assert exchange.periodic_payload(size, [2, 2, 2, 4], 8) == pytest.approx(found[0])


shapes_of_bucket = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=5)


@given(st.sampled_from(["fp16", "bf16", "powersgd", "topk", "quantized"]), shapes_of_bucket, st.integers(1, 8))
def test_stand_ins_are_as_large_as_the_formulas_say(method: Any, shapes: list[list[int]], rank: int) -> None:
    numel = sum(torch.Size(shape).numel() for shape in shapes)
    way = Exchange(method, rank=rank, share=Fraction(3 * 10**7))
    sized = [
        (part.numel * part.dtype.itemsize, part.gathered)
        for part in parts({"method": method, "rank": rank, "share": int(way.share)}, shapes)
    ]
    due = compression.bucket_collectives(way, 4 * numel, 4, shapes)
    assert sized == [(one.size, one.gathered) for one in due]


# ── times ────────────────────────────────────────────────────────────────────────────────────────────
def test_an_average_in_so_many_steps_is_shared_among_them() -> None:
    one = case("steps: 8, exchange: {local_sgd: {every: 8}}")
    found, took = predict(one), rings.ring_time(4 * 11_689_512, 4, ring(one)[0].edge)
    assert found["step_time"].value == pytest.approx(COMPUTE + took / 8)
    assert found["exposed_comm"].per_node == pytest.approx((took / 8,) * 4)
    assert found["speedup"].value == pytest.approx(4 * COMPUTE / (COMPUTE + took / 8))


def test_a_server_takes_all_and_gives_all_back() -> None:
    one = case("steps: 8, exchange: parameter_server", link=", delay: 5ms")
    size = 4 * 11_689_512
    took = 2 * 3 * size * 8 / (1e9 * 1448 / 1538) + 1.5 * 0.02
    assert predict(one)["step_time"].value == pytest.approx(COMPUTE + took)


def test_a_slow_worker_may_be_the_servers_limit() -> None:
    one = case("steps: 8, exchange: parameter_server")
    slow = replace(one.nodes[3], link=case("steps: 8", link=", up: {rate: 100mbit}").nodes[3].link)
    size, goodput = 4 * 11_689_512, 1e9 * 1448 / 1538
    took = size * 8 / (goodput / 10) + 3 * size * 8 / goodput  # up from the slow one, then from the server
    found = predict(replace(one, nodes=(*one.nodes[:3], slow)))
    assert found["step_time"].value == pytest.approx(COMPUTE + took)


def test_buckets_in_turn_wait_for_the_one_before() -> None:
    """Eight bits of four nodes: every byte three times, one bucket after another, the last ones not hidden."""
    found = predict(case("steps: 8, exchange: quantized"))
    line, sizes = found["step_time"].inputs["timeline"], found["payload_tx"].inputs["buckets"]
    now = 0.0
    for ready, size, end in zip(line["ready"], sizes, line["ends"], strict=True):
        now = max(now, ready) + collectives.gloo_allgather_payload(size, 4) * 8 / (1e9 * 1448 / 1538)
        assert end == pytest.approx(now)


@given(ways)
def test_a_method_is_between_its_parts(method: str) -> None:
    found = predict(case(f"steps: 8, exchange: {method}"))
    assert COMPUTE < found["step_time"].value <= COMPUTE + found["comm_time"].value + 1e-9


def test_a_model_without_a_table_is_known_by_its_one_node_run() -> None:
    one = case("steps: 8, exchange: {powersgd: {rank: 1}}", nodes=2)
    work = trained_by(one)
    bare = replace(work, compute="real", table=replace(work.table, parameters=(), buffers=()))
    real = replace(one, workload=bare, nodes=tuple(replace(node, pace=None) for node in one.nodes))
    seen = Phases(0.1, (0.1, 0.2), 0.2, 0.01, buckets=(4 * 640, 40), shapes=(((64, 10),), ((10,),)))
    assert predict(real, seen)["payload_tx"].inputs["buckets"] == [4 * 64, 4 * 10, 40]
    assert "payload_tx" not in predict(real)


# ── measured ─────────────────────────────────────────────────────────────────────────────────────────
def row(step: int, end: float, *buckets: tuple[float, float]) -> dict[str, Any]:
    spans = [{"start": start, "end": done, "bytes": 8} for start, done in buckets]
    moments = {"start": 0.0, "forward_start": 0.0, "forward_end": 1.0, "backward_end": 3.0, "end": end}
    fields = {"repeat": 0, "warmup": step < 2, "node": "n0", "payload": 10, "wire": 12, "late": 0.0}
    return {"step": step, "buckets": spans, **moments, **fields}


def test_an_exchange_after_the_optimizer_does_not_expose_the_optimizer() -> None:
    late = row(2, 9.0, (4.0, 9.0))
    assert (measure.comm(late), measure.exposed(late)) == (5, 5)
    hidden = row(2, 6.0, (1.0, 2.5), (2.0, 5.0))
    assert (measure.comm(hidden), measure.exposed(hidden)) == (4, 2)


def test_a_sample_is_a_whole_period() -> None:
    one = case("steps: 4, exchange: {local_sgd: {every: 2}}", nodes=1)
    rows = [row(at, 10.0 if at % 2 else 4.0) for at in range(6)]
    found = measure.measure(one, rows)["step_time"]
    assert (found.value, found.samples) == (7, (7, 7))
    assert (found.low, found.high) == (7, 7), "every period is like the other"


# ── in the ranks ─────────────────────────────────────────────────────────────────────────────────────
@given(st.integers(1, 50), st.integers(2, 40), st.integers(1, 5))
def test_each_period_that_counts_ends_in_an_exchange(warmup: int, every: int, periods: int) -> None:
    rounds = Rounds({"method": "local_sgd", "every": every}, warmup, 2)
    due = [step for step in range(warmup, warmup + periods * every) if rounds.due(step)]
    assert due == [warmup + every * (number + 1) - 1 for number in range(periods)]
    assert rounds.due(warmup - 1), "so that all start the measurement from one model"


def test_the_largest_and_their_places() -> None:
    gradients, total = torch.tensor([0.5, -3.0, 0.25, 2.0]), torch.zeros(4)
    codec = Largest(0.5)
    message = codec.packed(gradients)
    assert (message.dtype, message.nbytes) == (torch.int32, compression.topk_message(16, 0.5))
    codec.add(message, total, 2.0)
    assert total.tolist() == [0, -6, 0, 4]


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=50))
def test_eight_bits_are_within_half_a_level(values: list[float]) -> None:
    gradients, codec = torch.tensor(values), EightBits()
    message, total = codec.packed(gradients), torch.zeros(len(values))
    assert message.nbytes == compression.quantized_message(gradients.nbytes)
    codec.add(message, total, 1.0)
    level = float(gradients.abs().max()) / 127
    assert float((total - gradients).abs().max()) <= level * 0.5001 + 1e-30


def test_a_wrong_sum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    one = StandIn(Part(4), rank=0, size=3)
    with pytest.raises(WorkloadError, match="found 1 to 1, expected 6 throughout; the collective is broken"):
        one.check()
    one.tensor.fill_(6)
    one.check()
    one.renew()
    assert one.tensor.tolist() == [1, 1, 1, 1]
