"""Micro-batches, machines that differ, a host's own time and whole jobs: what is predicted of a step, by hand."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import measure
from rig.errors import ScenarioError
from rig.formulas import overlap, speedup
from rig.formulas.overlap import Transfer
from rig.formulas.predict import predict
from rig.model import Case, Host, Phases
from rig.scenario import loads
from rig.scenario.ddp import DdpKeys
from rig.units import Size
from rig.work import Allreduce, Data, Ddp, Job, LayerTable, Pace, Tensor
from tests.cases import case

MIB = 2**20
GOODPUT = 1e9 * 1448 / 1538
QUARTERS = (Tensor("a", (4 * MIB,), 0.25), Tensor("b", (4 * MIB,), 0.75))  # 16 MiB each: a bucket each
HOST = Host({2: 0.004, 4: 0.02}, reduce=1e-9, step=1e-4, cores=2, cpu="a CPU", kernel="6", date="2026-01-01")


def ddp(nodes: int = 2, paces: tuple[Pace, ...] = (), **changes: Any) -> Case:
    """Two tensors in two buckets over 1 Gb/s; every node computes 60 ms forward, 120 ms backward, 10 ms optimizer."""
    table = LayerTable("two", QUARTERS, (), {})
    fields = {"accumulate": 1, "job": None} | changes
    workload = Ddp(2, 2, "two", "paced", table, Size(16 * MIB), 0, 0.05, Data(), **fields)
    plain = case(nodes)
    each = paces or (Pace(0.06, 0.12, 0.01),) * nodes
    equipped = (replace(node, pace=pace, batch=8) for node, pace in zip(plain.nodes, each, strict=True))
    return replace(plain, nodes=tuple(equipped), workload=workload)


def bucket() -> float:
    """Seconds of 16 MiB between two nodes: 16 segments in all, 144 B of control each."""
    return (16 * MIB + 144 * 16) * 8 / GOODPUT


# ── micro-batches ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_step_of_micro_batches_by_hand(k: int) -> None:
    found = predict(ddp(accumulate=k))
    # b is ready after ¾ of the last backward pass, 90 ms; a at its end, 120 ms, and both are as large
    last = 0.09 + 2 * bucket()
    assert found["step_time"].value == pytest.approx((k - 1) * 0.18 + 0.06 + last + 0.01)
    assert found["exposed_comm"].value == pytest.approx(last - 0.12)
    assert found["payload_tx"].value == 2 * (16 * MIB + 144 * 16)
    alone = k * 0.18 + 0.01
    assert found["speedup"].value == pytest.approx(2 * alone / found["step_time"].value)
    line = found["step_time"].inputs["timeline"]
    assert (line["earlier"], line["forward"], line["before"]) == (pytest.approx((k - 1) * 0.18), 0.06, 0)
    assert line["ready"] == pytest.approx([0.09, 0.12])
    assert line["ends"][-1] == pytest.approx(last)
    assert (line["backward"], line["optimizer"]) == (0.12, 0.01)


@given(st.integers(1, 50))
def test_accumulation_brings_speed_up_nearer_to_n(k: int) -> None:
    less, more = (predict(ddp(accumulate=each))["speedup"].value for each in (k, k + 1))
    assert less < more < 2


def test_gradients_are_ready_as_they_were_timed() -> None:
    timed = Pace(0.06, 0.12, 0.01, forward_shares=(0.5, 0.5), backward_shares=(0.9, 0.1))
    line = predict(ddp(paces=(timed, timed)))["step_time"].inputs["timeline"]
    assert line["ready"] == pytest.approx([0.012, 0.12])


# ── machines that differ ─────────────────────────────────────────────────────────────────────────────
def test_a_fast_machine_waits_in_its_buckets() -> None:
    fast, slow = Pace(0.03, 0.06, 0.01), Pace(0.06, 0.12, 0.01)
    found, like_slow = predict(ddp(paces=(fast, slow))), predict(ddp())
    step = found["step_time"].value
    assert step == pytest.approx(like_slow["step_time"].value)
    assert found["exposed_comm"].per_node == pytest.approx((step - 0.1, step - 0.19))
    # the fast one's first bucket is ready 30 + 45 ms after the start, the slow one's after 60 + 90: it waits for that
    assert found["comm_time"].per_node[0] - found["comm_time"].per_node[1] == pytest.approx(0.075)
    assert found["comm_time"].value == pytest.approx(sum(found["comm_time"].per_node) / 2)
    assert found["speedup"].inputs["one_node_step_time"] == pytest.approx(0.1), "over the first node by itself"


def test_no_node_is_slowest_in_everything() -> None:
    """One is slow forward, the other backward: a bucket waits for whoever has its gradients last."""
    one, other = Pace(0.1, 0.04, 0.01), Pace(0.02, 0.16, 0.01)
    line = predict(ddp(paces=(one, other)))["step_time"].inputs["timeline"]
    assert line["forward"] == 0.1
    assert line["ready"] == pytest.approx([max(0.03, 0.12 - 0.08), max(0.04, 0.16 - 0.08)])


paces = st.builds(Phases, st.floats(0, 1), st.just((0.1, 0.2)), st.just(0.2), st.floats(0, 1), st.floats(0, 1))


@given(st.lists(paces, min_size=1, max_size=5), st.floats(0, 1), st.floats(0, 1))
def test_no_machine_slows_a_step_by_more_than_its_own(nodes: list[Phases], took: float, before: float) -> None:
    def ends(node: Phases) -> tuple[float, ...]:
        return overlap.shared(node.ready, [Transfer(took, took)] * 2)

    together = overlap.slowest(nodes)
    line = overlap.overlap(together, ends(together), before)
    each = [overlap.overlap(node, ends(node), before).step for node in nodes]
    assert line.step == pytest.approx(max(each)), "here all have the same backward pass"
    for node in nodes:
        view = overlap.own(node, together, line)
        assert view.exposed == pytest.approx(line.step - node.step)
        assert view.exposed - 1e-9 <= view.comm <= line.step + 1e-9


# ── the host ─────────────────────────────────────────────────────────────────────────────────────────
def test_a_small_all_reduce_takes_what_the_host_needs() -> None:
    small = replace(case(2), workload=Allreduce(2, 1, Size(64)), dilation=4)
    assert predict(small, host=HOST)["step_time"].value == pytest.approx(0.001), "4 ms of real time, ÷ 4"
    told = predict(small, host=HOST)["step_time"].inputs["host"]
    assert (told["alpha"], told["dilation"]) == (pytest.approx(0.004), 4)
    assert "host" not in predict(small)["step_time"].inputs


def test_the_hosts_time_is_beside_the_bytes_not_on_top() -> None:
    assert bucket() > 0.1, "much longer than 4 ms"
    assert predict(ddp(), host=HOST)["step_time"].value == predict(ddp())["step_time"].value
    slow = replace(HOST, alpha={2: 0.5})
    assert predict(ddp(), host=slow)["exposed_comm"].value > predict(ddp())["exposed_comm"].value
    assert predict(replace(ddp(), dilation=64), host=slow)["step_time"].value == predict(ddp())["step_time"].value


def test_alone_no_host_is_asked() -> None:
    found = predict(ddp(1), host=HOST)["step_time"]
    assert found.value == pytest.approx(0.19)
    assert "host" not in found.inputs


# ── whole jobs ───────────────────────────────────────────────────────────────────────────────────────
def test_how_long_a_job_takes() -> None:
    epochs, steps = (predict(ddp(job=job)) for job in (Job(samples=1_600_000), Job(steps=4000)))
    step = steps["step_time"].value
    assert steps["time_to_train"].value == pytest.approx(4000 * step)
    assert epochs["time_to_train"].value == pytest.approx(100_000 * step), "2 nodes × 8 samples a step"
    assert epochs["time_to_train"].unit == "s"
    assert "time_to_train" not in predict(ddp())
    assert speedup.time_to_train(Job(samples=100), [30, 20], 2.0) == 4


def row(node: str, start: float, **moments: Any) -> dict[str, Any]:
    fields = {"repeat": 0, "step": 2, "warmup": False, "node": node, "payload": 10, "wire": 12, "late": 0.0}
    buckets = [{"start": start + 6, "end": start + 9, "bytes": 10}]
    times = {"forward_start": 1, "forward_end": 5, "backward_end": 7, "end": 10} | moments
    spans = {name: start + at for name, at in times.items()}
    return fields | {"start": start, "earlier": 3.0, "buckets": buckets} | spans


def test_what_is_measured_of_micro_batches() -> None:
    rows = [row("n0", 0.0), row("n1", 100.0, forward_start=0)]
    found = measure.measure(ddp(job=Job(steps=3), accumulate=2), rows)
    assert found["comm_time"].per_node == (4, 3)
    assert found["exposed_comm"].per_node == (3, 2)
    assert found["exposed_comm"].value == 2.5
    assert found["time_to_train"].value == 30
    phases = measure.phases([rows[0]])
    assert phases == Phases(forward=2, ready=(1,), backward=2, optimizer=1, earlier=3, buckets=(10,))
    without = {name: value for name, value in row("n0", 0.0).items() if name != "earlier"}
    assert measure.phases([without]).earlier == 0, "records of a version that had no micro-batches"


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────────
def test_a_prediction_costs_what_its_buckets_do() -> None:
    """Eight times the buckets, or the nodes: no more than some fifteen times as long, on a machine that has others."""

    def spent(tensors: int, nodes: int) -> float:
        table = LayerTable("many", tuple(Tensor(f"p{at}", (MIB,), 1 / tensors) for at in range(tensors)), (), {})
        many = replace(ddp(nodes), workload=Ddp(2, 2, "many", "paced", table, Size(MIB), 0, 0.05, Data()))
        took = []
        for _ in range(5):
            began = time.process_time()
            predict(many)
            took.append(time.process_time() - began)
        return min(took)

    assert spent(2000, 2) < 15 * max(spent(250, 2), 1e-3)
    assert spent(10, 800) < 15 * max(spent(10, 100), 1e-3)


# ── as written ───────────────────────────────────────────────────────────────────────────────────────
TEXT = """\
name: x
nodes: 4
link: {{rate: 1gbit}}
workload: {{kind: ddp, model: {model}, compute: {compute}, {more}}}
"""


def keys(more: str, model: str = "resnet18", compute: str = "{throughput: 100 samples/s}") -> tuple[DdpKeys, Any]:
    written = loads(TEXT.format(more=more, model=model, compute=compute), "x.yaml").cells[0].written
    assert isinstance(written.workload, DdpKeys)
    return written.workload, written


def test_a_batch_is_of_a_micro_batch() -> None:
    workload, written = keys("batch: 8, accumulate: 4")
    assert workload.batch_on(written, "n0") == 32
    pace = workload.pace_on(written, "n0", Path())
    assert pace is not None
    assert pace.step(4) == pytest.approx(0.32)
    assert workload.resolve(Path()).accumulate == 4


def test_a_global_batch_is_divided_by_nodes_and_micro_batches() -> None:
    workload, written = keys("scaling: strong, global_batch: 128, accumulate: 2")
    assert workload.batch_on(written, "n0") == 32
    pace = workload.pace_on(written, "n0", Path())
    assert pace is not None
    assert pace.step() == pytest.approx(0.16)
    with pytest.raises(ScenarioError, match="12 does not divide by 4 nodes × 2 micro-batches"):
        keys("scaling: strong, global_batch: 12, accumulate: 2")


@pytest.mark.parametrize(
    ("more", "job"),
    [
        ("", None),
        (", train: {epoch: 1281167, epochs: 90}", Job(samples=90 * 1281167)),
        (", train: {epoch: 50000}", Job(samples=50000)),
        (", train: {steps: 4000}", Job(steps=4000)),
    ],
)
def test_what_is_to_be_trained(more: str, job: Job | None) -> None:
    assert keys(f"batch: 8{more}")[0].resolve(Path()).job == job


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("batch: 8, accumulate: 0", "x.yaml:4:"),
        ("batch: 8, accumulate: 1001", "x.yaml:4:"),
        ("batch: 8, train: {steps: 4, epoch: 3}", "write {epoch: 1281167, epochs: 90}"),
        ("batch: 8, train: {epochs: 3}", "write {epoch: 1281167, epochs: 90}"),
        ("batch: 8, train: {}", "write {epoch: 1281167, epochs: 90}"),
    ],
)
def test_what_makes_no_sense_is_refused(more: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        keys(more)
    assert said in str(caught.value)


def test_a_factory_is_sent_to_rig_profile() -> None:
    with pytest.raises(ScenarioError, match=r"nets:make: it has to be timed first: `rig profile` makes"):
        keys("batch: 8", model="nets:make")


def test_a_model_may_be_a_file(tmp_path: Path) -> None:
    """Relative to the scenario file, wherever rig is started."""
    parameters = [{"name": "a", "shape": [3], "flops": 1.0}]
    document = {"schema": 1, "name": "mine", "parameters": parameters, "buffers": [], "profiles": {}}
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine.json").write_text(json.dumps(document), encoding="utf-8")
    text = TEXT.format(more="batch: 8", model="tables/mine.json", compute="{throughput: 100 samples/s}")
    written = loads(text, str(tmp_path / "x.yaml")).cells[0].written
    assert isinstance(written.workload, DdpKeys)
    assert written.workload.resolve(tmp_path).table.parameters == (Tensor("a", (3,), 1.0),)
    pace = written.workload.pace_on(written, "n0", tmp_path)
    assert pace is not None
    assert pace.step() == pytest.approx(0.08)
    with pytest.raises(ScenarioError, match=r"x.yaml:4:\d+: workload.model: .*mine.json: read a layer table: "):
        loads(text, str(tmp_path / "elsewhere" / "x.yaml"))
