"""What a prediction should lie between, and what limits a step: every regime, against figures done here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rig import scenario
from rig.formulas.confidence import ALONE, ALPHA_OFF, BYTES, CROWDED, DELAY, REAL, SMALL, TRAFFIC, USELESS, bounded
from rig.formulas.limits import limit
from rig.formulas.predict import predict
from rig.model import Case, Host, Phases
from rig.plan import expand
from rig.provision import load
from rig.results import Predicted

PACED = """\
name: paced
nodes: 2
link: {rate: 1gbit}
workload: {kind: ddp, model: resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}}
"""
REDUCE = "name: x\nnodes: 4\nlink: {rate: 1gbit}\nworkload: {kind: allreduce, size: 64KiB}\n"
HOST = Host(alpha={2: 1e-3, 4: 5e-3}, reduce=1e-9, step=1e-4, cores=2, cpu="x", kernel="y", date="")


def one(text: str, *sets: str) -> Case:
    return expand(scenario.loads(text, "x.yaml", sets), 2)[-1]


def step(case: Case, share: float = 0.5, host: Host | None = None) -> Predicted:
    return bounded(case, predict(case, None, host), share)["step_time"]


def off(found: Predicted) -> float:
    assert found.low is not None and found.high is not None
    assert found.value / found.low == pytest.approx(found.high / found.value)
    return found.high / found.value - 1


@pytest.mark.parametrize(
    ("sets", "share", "error"),
    [
        (["nodes=1"], 0.1, ALONE.error),
        ([], 0.5, BYTES.error),
        ([], 1.5, CROWDED[1][1].error),
        ([], 4.0, CROWDED[2][1].error),
        ([], 4.1, USELESS.error),
        (["link.rtt=5ms"], 0.5, DELAY.error),
        (["link.rtt=5ms"], 4.0, CROWDED[2][1].error),  # the worst of those that hold
    ],
)
def test_the_regime_sets_the_interval(sets: list[str], share: float, error: float) -> None:
    found = step(one(PACED, *sets), share)
    assert off(found) == pytest.approx(error)
    told = found.inputs["confidence"]
    assert (told["regime"]["error"], told["load"]) == (error, share)
    assert told["regime"]["source"]


def test_real_compute_is_known_from_another_run() -> None:
    case = one(
        PACED.replace("resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}", "cnn, batch: 8, compute: real")
    )
    assert set(bounded(case, predict(case))) == {"payload_tx"}
    found = bounded(case, predict(case, Phases(0.1, (0.1, 0.2), 0.2, 0.01)), 0.1)["step_time"]
    assert found.inputs["confidence"]["regime"]["error"] == REAL.error


def test_all_figures_follow_the_step() -> None:
    case = one(PACED)
    found = bounded(case, predict(case), 0.5)
    seconds = found["step_time"]
    assert seconds.low and seconds.high
    for name in ("throughput", "speedup", "efficiency"):
        one_of = found[name]
        assert one_of.low == pytest.approx(one_of.value * seconds.value / seconds.high)
        assert one_of.high == pytest.approx(one_of.value * seconds.value / seconds.low)
    exposed, sent = found["exposed_comm"], found["payload_tx"]
    assert exposed.high == pytest.approx(exposed.value + seconds.high - seconds.value)
    assert exposed.low == pytest.approx(exposed.value + seconds.low - seconds.value)
    assert sent.high == pytest.approx(sent.value * (1 + TRAFFIC))
    plain = predict(case)
    assert {name: figure.value for name, figure in found.items()} == {name: f.value for name, f in plain.items()}


@pytest.mark.parametrize("dilation", [1, 4])
def test_small_messages_may_take_what_the_host_takes(dilation: int) -> None:
    case = one(REDUCE, f"dilation={dilation}")
    found = step(case)
    assert found.high == pytest.approx(found.value * (1 + BYTES.error) + SMALL * 16 / dilation - found.value)
    measured = 5.5e-3 / dilation  # docs/facts.md: about 5.5 ms at N = 4 on two cores
    assert found.high is not None and found.value < measured < found.high


def test_a_calibrated_host_is_off_by_less() -> None:
    found = step(one(REDUCE, "dilation=1"), host=HOST)
    assert found.value == pytest.approx(5e-3)
    assert found.high == pytest.approx(5e-3 * (1 + BYTES.error) + ALPHA_OFF * 5e-3)


def test_large_messages_owe_the_host_nothing() -> None:
    assert off(step(one(REDUCE, "workload.size=25MiB"))) == pytest.approx(BYTES.error)


# ── what limits a step ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("text", "sets", "share", "expected"),
    [
        (PACED, ["nodes=1"], 0.1, "compute"),
        (PACED, [], 0.5, "link"),
        (PACED, ["link.rate=30gbit"], 0.5, "compute"),  # all of it is hidden
        (PACED, ["link.rtt=100ms"], 0.5, "latency"),
        (PACED, [], 1.01, "host"),
        (REDUCE, [], 0.5, "link"),
        (REDUCE, ["link.rtt=5ms"], 0.5, "latency"),
        (PACED, ["link={rate: 1gbit, loss: 1%}"], 0.5, ""),
    ],
)
def test_what_limits_a_step(text: str, sets: list[str], share: float, expected: str) -> None:
    case = one(text, *sets)
    assert limit(case, predict(case), share) == expected


def test_a_host_that_takes_longer_than_the_bytes_limits_the_step() -> None:
    case = one(REDUCE)
    assert limit(case, predict(case, None, HOST)) == "host"
    assert limit(case, predict(case, None, replace(HOST, alpha={4: 1e-4}))) == "link"


def test_load_is_what_dilation_keeps_within_bounds() -> None:
    """N · rate ÷ k over 1.25 Gb/s × cores."""
    assert load(one(PACED), 2.0) == pytest.approx(2 / 2.5)
    assert load(one(PACED, "nodes=4"), 2.0) == pytest.approx(4 / 2.5 / 2)
    assert load(one(PACED, "link.rate=10gbit", "dilation=1"), 2.0) == pytest.approx(20 / 2.5)
