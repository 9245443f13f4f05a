"""Dilated k times, a case gives the same emulated answer: links, TCP's timers, timelines and pacing all stretch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rig import measure, pipeline
from rig.errors import WorkloadError
from rig.fabric import shape
from rig.fabric.client import Fabric
from rig.formulas.predict import predict
from rig.lab import Lab, Order, open_lab, orders
from rig.lab.launching import job
from rig.lab.ranks import Outcome, run_ranks
from rig.lab.schedule import NEVER, Schedule
from rig.lab.wiring import build, ways
from rig.model import Case
from rig.plan import expand
from rig.results import CaseResult
from rig.scenario import load
from tests.lab.conftest import new_run

FACTORS = (1, 2, 4, 8)
CHANCES = 3  # for a case: what else this machine does only ever lengthens a step
PACED = """\
name: dilated
nodes: 2
link: {rate: 200mbit}
workload:
  kind: ddp
  model: resnet18
  batch: 16
  compute: {forward: 100ms, backward: 200ms}
  steps: 3
  warmup: 2
expect: {traffic: 0.0001%, step_time: 2%}
"""


def dilated(folder: Path, k: int, *sets: str) -> Case:
    """The two-node case, k times slower."""
    file = folder / "dilated.yaml"
    file.write_text(PACED, encoding="utf-8")
    cases = expand(load(file, [f"dilation={k}", *sets]), cores=2)
    return next(case for case in cases if case.size == 2)


# ── in a lab ─────────────────────────────────────────────────────────────────────────────────────────
def ran(case: Case) -> CaseResult:
    for _ in range(CHANCES):
        result = pipeline.run_case(Order(new_run(), case, print), "netns", pipeline.Known())
        if result.status == "pass":
            break
    assert result.status == "pass", result.reason
    return result


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_emulated_answer_does_not_depend_on_the_dilation(tmp_path: Path) -> None:
    """N = 2 at 200 Mb/s costs any host little. 2 % is what a step's own work of a few ms, undilated, may add."""
    found = {k: ran(dilated(tmp_path, k, "workload.steps=2")) for k in FACTORS}
    times = {k: result.measured["step_time"].value for k, result in found.items()}
    assert max(times.values()) <= 1.02 * min(times.values()), times
    assert len({result.measured["payload_tx"].per_node for result in found.values()}) == 1, "bytes, exactly"
    assert len({result.predicted["step_time"].value for result in found.values()}) == 1
    for k, result in found.items():
        raw = [step["end"] - step["start"] for step in result.raw["steps"] if not step["warmup"]]
        assert sum(raw) / len(raw) == pytest.approx(k * times[k]), "what the clock saw stays in the record"
        for link in result.links:
            assert link.asked["rate"] == 200e6
            assert link.applied["rate"] == pytest.approx(200e6 / k * 1514 / 1538, rel=1e-3)


def test_a_time_out_is_real_time(tmp_path: Path) -> None:
    """So that a person knows when a hung case ends: dilated eightfold, 0.5 s of emulated time are 4 s."""
    case = dilated(tmp_path, 8, "timeout=4s")
    run, began = new_run(), time.monotonic()
    with open_lab("netns", Order(run, case, print)) as lab, pytest.raises(WorkloadError, match="not done within 4s"):
        run_ranks(lab, case, run, Outcome(0, time.monotonic()))
    assert 4 < time.monotonic() - began < 30


# ── what is told to whom ─────────────────────────────────────────────────────────────────────────────
class Told(Fabric):
    """A fabric that only remembers what it is to build, and has netem."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}

    def build(self, document: Any) -> None:
        self.document = dict(document)

    def offers(self) -> dict[str, Any]:
        return {"netem": True}


DELAYED = ("link={rate: 200mbit, delay: 5ms, jitter: 1ms, queue: 1MiB, burst: 256KiB}", "tcp.rto_min=250ms")


@pytest.mark.parametrize("k", FACTORS)
def test_the_kernel_is_told_stretched_times_and_slower_rates(tmp_path: Path, k: int) -> None:
    fabric = Told()
    lab = Lab("none", fabric, {"n0": 2, "n1": 3}, lambda *_: [], ())
    build(lab, dilated(tmp_path, k, *DELAYED))
    assert fabric.document["tcp"]["rto_min"] == 250 * k  # ms
    up = fabric.document["cables"][0]["up"]
    assert up["transit"]["delay"] == 5_000_000 * k and up["transit"]["jitter"] == 1_000_000 * k  # ns
    assert up["tbf"]["rate"] == pytest.approx(200e6 / 8 * 1514 / 1538 / k, rel=1e-6)
    assert (up["tbf"]["burst"], up["tbf"]["limit"]) == (2**18, 2**20), "bytes do not dilate"


@pytest.mark.parametrize("k", FACTORS)
def test_what_is_read_back_is_told_in_emulated_units(tmp_path: Path, k: int) -> None:
    case = dilated(tmp_path, k)
    asked = ways(case, "netem")["n0"]["up"]
    assert shape.emulated(asked.bucket, case.nodes[0].link, k) == pytest.approx(200e6, rel=1e-6)


@pytest.mark.parametrize("k", FACTORS)
def test_a_timeline_is_in_emulated_time(tmp_path: Path, k: int) -> None:
    case = dilated(tmp_path, k, "timeline=[{at: 3s, link: n1, rate: 100mbit}, {step: 2, link: n0, rate: 100mbit}]")
    schedule = Schedule(Lab("none", Told(), {}, lambda *_: [], ()), case, [])
    assert schedule.wake() == NEVER
    schedule.heard({"rank": 0, "step": case.workload.warmup - 1})
    assert schedule.began is not None
    assert schedule.wake() == pytest.approx(schedule.began + 3 * k)


@pytest.mark.parametrize("k", FACTORS)
def test_ranks_pace_by_the_dilation_they_are_told(tmp_path: Path, k: int) -> None:
    """What they make of it: tests/test_workloads.py."""
    case = dilated(tmp_path, k)
    told = job(case, case.nodes[0])
    assert told["dilation"] == k
    assert (told["pace"]["forward"], told["pace"]["backward"]) == (0.1, 0.2)


@pytest.mark.parametrize("k", FACTORS)
def test_a_probe_waits_for_longer_round_trips(tmp_path: Path, k: int) -> None:
    plain, slow = (dilated(tmp_path, one, "link={rate: 200mbit, delay: 50ms}") for one in (1, k))
    patience = [orders.rtt(case, case.cables[0])["patience"] - orders.PATIENCE for case in (plain, slow)]
    assert patience[1] == pytest.approx(k * patience[0])


@pytest.mark.parametrize("k", FACTORS)
def test_predictions_and_measurements_are_in_emulated_units(tmp_path: Path, k: int) -> None:
    plain, slow = dilated(tmp_path, 1), dilated(tmp_path, k)
    one, other = predict(plain), predict(slow)
    assert {name: figure.value for name, figure in one.items()} == {
        name: figure.value for name, figure in other.items()
    }
    step = {
        "node": "n0", "rank": 0, "repeat": 0, "step": 0, "warmup": False, "start": 0.0, "forward_start": 0.0,
        "forward_end": 1.0 * k, "backward_end": 2.0 * k, "end": 4.0 * k, "late": 0.5 * k, "payload": 7, "wire": 8,
        "buckets": [{"start": 1.5 * k, "end": 3.0 * k, "bytes": 4}],
    }  # fmt: skip
    seen = measure.measure(slow, [step, {**step, "node": "n1", "rank": 1}])
    emulated = {name: seen[name].value for name in ("step_time", "comm_time", "exposed_comm", "lateness", "payload_tx")}
    assert emulated == {"step_time": 4.0, "comm_time": 1.5, "exposed_comm": 1.0, "lateness": 0.5, "payload_tx": 7.0}
