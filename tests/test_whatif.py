"""One thing changed at a time: bytes and times against sums done here, and against the scenario that says the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig import models, scenario, whatif
from rig.errors import UsageError
from rig.formulas.predict import predict
from rig.model import Background, Case, Change, Phases
from rig.plan import expand
from rig.results import Predicted
from rig.units import Duration, Rate, Size
from rig.work import Data, Ddp, LayerTable, Pace, Tensor
from tests.cases import case as allreduce

MIB = 2**20
CARRIED = 1448 / 1538  # of a cable's rate
PACE = Pace(forward=0.040, backward=0.080, optimizer=0.002)


def training(nodes: int = 2) -> Case:
    """Four tensors of 4 MiB, each a bucket, one ready every 20 ms of the backward pass; 1 Gb/s, 32 samples a node."""
    table = LayerTable("four", tuple(Tensor(f"w{i}", (MIB,), 0.25) for i in range(4)), (), {})
    work = Ddp(5, 2, "four", "paced", table, bucket_cap=Size(4 * MIB), seed=0, lr=0.1, data=Data())
    bare = allreduce(nodes, workload=work)
    return replace(bare, nodes=tuple(replace(node, batch=32, pace=PACE) for node in bare.nodes))


def taken(size: float, rate: float = 1e9) -> float:
    return size * 8 / (rate * CARRIED)


def near(*figures: float) -> Any:
    """The same but for the last digits of a float."""
    return pytest.approx(figures, rel=1e-9)


def told(case: Case) -> tuple[float, float]:
    """Bytes and seconds of a step."""
    found = predict(case)
    return found["payload_tx"].value, found["step_time"].value


BUCKET = 4 * MIB + 4 * 144  # at N = 2, in four segments


def test_the_case_itself() -> None:
    """The first bucket is ready after 20 ms, the others wait for one another."""
    assert told(training()) == near(4 * BUCKET, 0.040 + 0.020 + 4 * taken(BUCKET) + 0.002)


def test_faster_links() -> None:
    """At 10 Gb/s only the last bucket has nothing to hide behind."""
    assert told(whatif.at_rate(training(), Rate(10**10))) == near(
        4 * BUCKET, 0.040 + 0.080 + taken(BUCKET, 1e10) + 0.002
    )


def test_links_that_are_faster_already_stay() -> None:
    case = training()
    assert whatif.at_least(case, Rate(10**9)) == case
    assert whatif.at_least(case, Rate(10**8)) == case
    assert whatif.slowest(whatif.at_least(case, Rate(10**10))) == 10**10


@pytest.mark.parametrize(("nodes", "segments"), [(3, 6), (4, 8), (8, 16)])
def test_more_nodes(nodes: int, segments: int) -> None:
    sent = 2 * (nodes - 1) / nodes * (4 * MIB + segments * 144)
    case = whatif.nodes(training(), nodes)
    assert told(case) == near(4 * sent, 0.060 + 4 * taken(sent) + 0.002)
    assert whatif.samples(case) == nodes * 32
    assert len({(node.name, node.address) for node in case.nodes}) == nodes


def test_one_node_sends_nothing_and_computes_only() -> None:
    case = whatif.nodes(training(), 1)
    assert told(case) == near(0, 0.122)
    assert predict(case)["speedup"].value == 1


@pytest.mark.parametrize("change", [
    lambda case: whatif.at_rate(case, Rate(10**7)), whatif.half, lambda case: whatif.buckets(case, Size(MIB)),
])  # fmt: skip
def test_on_one_node_the_network_changes_nothing(change: Callable[[Case], Case]) -> None:
    assert told(change(whatif.nodes(training(), 1))) == near(0, 0.122)


def test_the_same_batch_on_more_nodes() -> None:
    case = whatif.spread(training(), 4)
    sent = 1.5 * (4 * MIB + 8 * 144)
    assert [node.batch for node in case.nodes] == [16] * 4
    assert told(case) == near(4 * sent, 0.020 + 0.010 + 4 * taken(sent) + 0.002)
    assert whatif.spread(case, 2) == training()


def test_a_larger_batch() -> None:
    """Ready every 40 ms, which is longer than a bucket takes; the optimizer takes what it took."""
    case = whatif.batch(training(), 2)
    assert [node.batch for node in case.nodes] == [64, 64]
    assert told(case) == near(4 * BUCKET, 0.080 + 0.160 + taken(BUCKET) + 0.002)


def test_accumulation() -> None:
    case = whatif.accumulate(training(), 4)
    assert whatif.samples(case) == 4 * 64
    assert told(case) == near(4 * BUCKET, 3 * 0.120 + told(training())[1])
    assert whatif.accumulate(case, 1) == training()


def test_half_precision() -> None:
    bucket = 2 * MIB + 4 * 144
    case = whatif.half(training())
    assert told(case) == near(4 * bucket, 0.040 + 0.080 + taken(bucket) + 0.002)


@pytest.mark.parametrize("cap", [MIB, 5 * MIB, 25 * MIB])
def test_half_precision_keeps_the_buckets(cap: int) -> None:
    """As the hook does: buckets are made of whole gradients, then each is halved; they are ready when they were."""
    case = training()
    case = whatif.buckets(
        replace(case, workload=replace(whatif.training(case), table=models.load("resnet50"))), Size(cap)
    )
    whole, halved = (predict(one)["step_time"].inputs for one in (case, whatif.half(case)))
    assert [2 * size for size in halved["buckets"]] == whole["buckets"]
    assert halved["timeline"]["ready"] == pytest.approx(whole["timeline"]["ready"])
    assert halved["broadcasts"] == whole["broadcasts"]


def test_larger_buckets() -> None:
    """One bucket of 16 MiB, ready with the backward pass's end; in eight segments a chunk, for it is large."""
    sent = 16 * MIB + 16 * 144
    assert told(whatif.buckets(training(), Size(16 * MIB))) == near(sent, 0.122 + taken(sent))


def test_adapters_in_the_models_place() -> None:
    case = training()
    case = replace(case, workload=replace(whatif.training(case), model="sd-unet", table=models.load("sd-unet")))
    assert whatif.has_adapters(case)
    changed = whatif.adapters(case)
    whole, few = (sum(tensor.nbytes for tensor in whatif.training(one).table.parameters) for one in (case, changed))
    pace = changed.nodes[0].pace
    assert (whatif.training(changed).model, few) == ("sd-unet-lora", 4 * 797_184)
    assert pace is not None
    assert (pace.forward, pace.backward) == (PACE.forward, PACE.backward)
    assert pace.optimizer == pytest.approx(PACE.optimizer * few / whole)
    assert predict(changed)["payload_tx"].value < predict(case)["payload_tx"].value / 900


def test_a_model_without_adapters() -> None:
    assert not whatif.has_adapters(training())
    with pytest.raises(UsageError, match="four-lora"):
        whatif.adapters(training())


# ── a case changed, and the scenario that says the same ──────────────────────────────────────────────
TEXT = """\
name: x
nodes: {nodes}
threads: 1
dilation: 4
link: {{rate: {rate}, rtt: 4ms}}
workload:
  kind: ddp
  model: resnet18
  batch: {batch}
  compute: {{forward: 40ms, backward: 80ms, optimizer: 2ms}}
"""


def written(nodes: int = 2, rate: str = "1gbit", batch: int = 32) -> Case:
    cases = expand(scenario.loads(TEXT.format(nodes=nodes, rate=rate, batch=batch), "x.yaml"), 2)
    return next(case for case in cases if case.role == "case")


def test_a_rate_brings_bucket_and_queue_along() -> None:
    for rate in ("200mbit", "10gbit"):
        assert whatif.at_rate(written(), Rate.parse(rate)).nodes == written(rate=rate).nodes


def test_nodes_are_those_of_a_larger_or_smaller_scenario() -> None:
    assert whatif.nodes(written(), 5).nodes == written(nodes=5).nodes
    assert whatif.nodes(written(nodes=5), 2).nodes == written().nodes
    assert whatif.nodes(written(), 5).params == {"nodes": 5}


CLUSTERS = """\
name: x
link: {rate: 1gbit}
clusters: {us: {nodes: 2}, eu: {nodes: 2}}
wan: {rate: 200mbit, rtt: 20ms}
workload: {kind: ddp, model: resnet18, batch: 32, compute: {profile: resnet18-gtx1080}}
"""


def clusters(text: str = CLUSTERS) -> Case:
    return next(case for case in expand(scenario.loads(text, "x.yaml"), 2) if case.role == "case")


def test_a_line_between_clusters() -> None:
    faster = whatif.at_least(clusters(), Rate(10**9), between=True)
    assert faster.nodes == clusters().nodes
    assert faster.wans == clusters(CLUSTERS.replace("200mbit", "1gbit")).wans
    assert whatif.slowest(faster, between=True) == 10**9
    assert told(faster)[1] < told(clusters())[1] / 2


def test_two_nodes_of_one_cluster_do_without_the_line() -> None:
    assert told(whatif.nodes(clusters(), 2)) == told(whatif.at_rate(whatif.nodes(clusters(), 2), Rate(10**9)))
    assert told(whatif.nodes(clusters(), 3))[1] > 4 * told(whatif.nodes(clusters(), 2))[1]


def test_what_happens_to_a_cable_that_is_gone_happens_no_more() -> None:
    case = training(3)
    slow = whatif.at_rate(case, Rate(10**8)).nodes[0].link
    case = replace(
        case,
        changes=(Change("n2", Duration(0), None, slow),),
        background=(Background("n2", "up", Rate(10**8)), Background("n0", "up", Rate(10**8))),
    )
    fewer = whatif.nodes(case, 2)
    assert (fewer.changes, [stream.cable for stream in fewer.background]) == ((), ["n0"])
    assert "step_time" not in predict(case)
    assert "step_time" in predict(fewer)


# ── real compute ─────────────────────────────────────────────────────────────────────────────────────
def real(nodes: int = 2) -> Case:
    path = Path(__file__).parents[1] / "scenarios" / "accuracy" / "digits.yaml"
    return next(case for case in expand(scenario.load(path, [f"sweep.nodes=[1, {nodes}]"]), 2) if case.size == nodes)


def seen(case: Case) -> Phases:
    """A one-node run of it: gradients come late, in no simple proportion."""
    count = len(predict(case)["payload_tx"].inputs["buckets"])
    return Phases(0.030, tuple(0.05 + 0.004 * index**2 for index in range(count)), 0.070, 0.003)


@pytest.mark.parametrize("nodes", [2, 4])
def test_paced_by_a_one_node_run_predicts_the_same(nodes: int) -> None:
    case = real(nodes)
    paced, by_run = predict(whatif.paced(case, seen(case))), predict(case, seen(case))
    assert set(paced) == set(by_run)
    assert figures(paced) == pytest.approx(figures(by_run))
    assert not whatif.paced(case, seen(case)).computes_real


def test_a_measured_case_can_be_changed_further() -> None:
    case = whatif.paced(real(), seen(real()))
    larger = whatif.batch(whatif.at_rate(case, Rate(10**12)), 2)
    assert told(larger)[1] == pytest.approx(2 * 0.100 + 0.003, rel=0.01)
    assert [node.batch for node in larger.nodes] == [64, 64]


def figures(predicted: dict[str, Predicted]) -> dict[str, float]:
    return {name: figure.value for name, figure in predicted.items()}
