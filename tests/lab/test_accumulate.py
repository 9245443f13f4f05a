"""Micro-batches in a lab: bytes of one exchange a step, and a step as long as predicted; on machines that differ, too.

A case that is `invalid` was disturbed by something else on this machine, and says so; it gets more chances.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.runs import rig

TRIES = 5
SCENARIO = """\
name: micro-batches
nodes: 2
link: {rate: 200mbit}
workload:
  kind: ddp
  model: cnn
  batch: 8
  accumulate: 3
  compute: {forward: 40ms, backward: 80ms, optimizer: 5ms}
  train: {epoch: 48000}
  steps: 5
machines: {n1: {compute: {forward: 20ms, backward: 30ms}}}
expect: {traffic: 0.01%, step_time: 5%, speedup: 5%}
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Finished cases by their number of nodes."""
    folder = tmp_path_factory.mktemp("accumulate")
    (folder / "x.yaml").write_text(SCENARIO, encoding="utf-8")
    for _ in range(TRIES):
        answer = rig("run", "x.yaml", "--lab", "netns", "--json", "--no-lock", cwd=folder, within=120)
        assert answer.returncode in (0, 1, 4), answer.stderr
        found = {case["params"]["nodes"]: case for case in json.loads(answer.stdout)["cases"]}
        if all(case["status"] != "invalid" for case in found.values()):
            break
    return found


def figures(case: dict[str, Any], metric: str) -> tuple[float, float]:
    """Measured, and predicted."""
    return float(case["measured"][metric]["value"]), float(case["predicted"][metric]["value"])


@pytest.mark.timeout(660)
def test_a_step_of_three_micro_batches(cases: dict[int, dict[str, Any]]) -> None:
    one, two = cases[1], cases[2]
    assert [one["status"], two["status"]] == ["pass", "pass"], [one["reason"], two["reason"]]
    assert two["measured"]["payload_tx"]["per_node"] == two["predicted"]["payload_tx"]["per_node"]
    step, due = figures(two, "step_time")
    alone, due_alone = figures(one, "step_time")
    assert due_alone == pytest.approx(3 * 0.12 + 0.005)
    assert step == pytest.approx(due, rel=0.05)
    assert alone == pytest.approx(due_alone, rel=0.02)
    job, due = figures(two, "time_to_train")
    assert job == pytest.approx(step * 1000), "48 samples a step"
    assert due == pytest.approx(job, rel=0.05)


def test_micro_batches_are_told_step_by_step(cases: dict[int, dict[str, Any]]) -> None:
    for row in cases[2]["raw"]["steps"]:
        span = {"n0": 0.12, "n1": 0.05}[row["node"]]
        assert row["earlier"] == pytest.approx(2 * span)
        assert row["forward_start"] + row["earlier"] <= row["forward_end"] <= row["buckets"][0]["start"]
        assert row["samples"] == 24


def test_a_fast_machine_waits_for_a_slow_one(cases: dict[int, dict[str, Any]]) -> None:
    """Its own computing is 210 ms shorter, and so is what it waits for longer."""
    for metric in ("exposed_comm", "comm_time"):
        seen, due = (cases[2][kind][metric]["per_node"] for kind in ("measured", "predicted"))
        assert seen == [pytest.approx(each, abs=0.03) for each in due]
    slow, fast = cases[2]["predicted"]["exposed_comm"]["per_node"]
    assert fast - slow == pytest.approx(3 * (0.12 - 0.05) + 0.005)
