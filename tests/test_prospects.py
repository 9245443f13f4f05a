"""The curves of speed-up against bandwidth: which there are, that they are the predictions, and what they cost."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest

from rig import prospects, scenario, whatif
from rig.formulas.predict import predict
from rig.model import Case, Host, Phases
from rig.plan import expand
from rig.units import Rate
from tests.lab.runs import ROOT

TEXT = """\
name: x
link: {{rate: 1gbit{link}}}
workload: {{kind: ddp, model: resnet18, batch: 32, compute: {{profile: resnet18-gtx1080}}}}
sweep: {{nodes: [{nodes}]{sweep}}}
"""


def shipped(name: str) -> tuple[Case, ...]:
    return expand(scenario.load(next((ROOT / "scenarios").rglob(f"{name}.yaml"))), 2)


def written(nodes: str, link: str = "", sweep: str = "") -> tuple[Case, ...]:
    return expand(scenario.loads(TEXT.format(nodes=nodes, link=link, sweep=sweep), "x.yaml"), 2)


def named(cases: tuple[Case, ...], known: Mapping[str, Phases] | None = None) -> list[tuple[str, int]]:
    return [(curve["case"], curve["nodes"]) for curve in prospects.curves(cases, known or {})]


def test_one_workload_has_a_curve_for_each_number_of_nodes() -> None:
    assert named(shipped("bandwidth")) == [("nodes=2,rate=1gbit", count) for count in (2, 4, 8)]
    assert named(written("2, 3")) == [("nodes=2", count) for count in (2, 3, 4, 8)]


def test_another_share_of_work_or_another_cable_has_curves_of_its_own() -> None:
    for sweep in ("workload.batch: [32, 64]", "link.rtt: [0ms, 5ms]", "link.mtu: [1500, 9000]"):
        assert len(named(written("1, 2, 4", sweep=f", {sweep}"))) == 6


def test_what_has_no_curve() -> None:
    assert named(shipped("allreduce")) == []
    assert named(shipped("wan")) == []
    assert named(written("2", ", loss: 1%")) == []
    assert named(written("1")) == []
    assert named(shipped("digits")) == [], "not known before a one-node run"


def test_real_compute_has_a_curve_once_it_is_known() -> None:
    cases = shipped("digits")
    two = next(case for case in cases if case.size == 2)
    count = len(predict(two)["payload_tx"].inputs["buckets"])
    known = {two.baseline: Phases(0.002, (0.004,) * count, 0.004, 0.0005)}
    assert [nodes for _, nodes in named(cases, known)] == [2, 4, 8]


def test_points_are_the_predictions_and_rise_towards_n() -> None:
    cases = shipped("bandwidth")
    for curve in prospects.curves(cases, {}):
        rates, gains = zip(*curve["points"], strict=True)
        assert (rates[0], rates[-1], len(rates)) == (1e8, 1e11, 25)
        assert list(gains) == sorted(gains)
        assert curve["nodes"] * 0.98 < gains[-1] < curve["nodes"]
        case = whatif.nodes(next(case for case in cases if case.size == 2), curve["nodes"])
        assert gains[8] == predict(whatif.at_rate(case, Rate(10**9)))["speedup"].value
    planned = {(case.size, int(case.nodes[0].link.up.rate)): predict(case)["speedup"].value for case in cases}
    curves = {(curve["nodes"], rate): gain for curve in prospects.curves(cases, {}) for rate, gain in curve["points"]}
    assert all(curves[nodes, rate] == pytest.approx(planned[nodes, rate], rel=1e-9) for nodes in (2, 4)
               for rate in (10**9, 10**10))  # fmt: skip


def test_what_the_host_adds_counts_as_dilated_as_any_case_is() -> None:
    host = Host({2: 0.01, 4: 0.02, 8: 0.04}, 0.0, 0.0, 2, "", "", "")
    cases = shipped("bandwidth")
    slow, most = prospects.curves(cases, {}, host)[1], max(case.dilation for case in cases)
    case = next(case for case in cases if (case.size, case.dilation) == (4, most))
    assert slow["points"][16][1] == predict(case, host=host)["speedup"].value
    assert slow["points"][16][1] <= prospects.curves(cases, {})[1]["points"][16][1]


def test_curves_are_plain_data_and_take_a_fifth_of_a_second() -> None:
    """In CPU time, the least of three."""
    cases = shipped("bandwidth")

    def once() -> float:
        began = time.process_time()
        json.dumps(prospects.curves(cases, {}), allow_nan=False)
        return time.process_time() - began

    assert min(once() for _ in range(3)) < 0.2
