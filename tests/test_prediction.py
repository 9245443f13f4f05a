"""`scenarios/accuracy/prediction.yaml`: a design that is balanced, has names a person can read, and ends in time."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from rig import scenario
from rig.formulas.predict import predict
from rig.model import Case
from rig.plan import expand
from rig.work import Ddp

FILE = Path(__file__).parent.parent / "scenarios" / "accuracy" / "prediction.yaml"
FACTORS: dict[str, tuple[Any, ...]] = {
    "workload.model": ("resnet18", "resnet50", "vgg16", "bert-base", "gpt2"),
    "nodes": (2, 4, 8),
    "link.rate": ("100mbit", "1gbit", "2.5gbit", "10gbit"),
    "link.rtt": ("0ms", "5ms"),
    "workload.accumulate": (1, 4),
}
MOST_MINUTES, APART = 45, 8.0  # s that a case takes besides its steps: its lab, its probe, its ranks' start


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return expand(scenario.load(FILE), cores=2)


@pytest.fixture(scope="module")
def cells(cases: tuple[Case, ...]) -> list[Case]:
    return [case for case in cases if case.role == "case"]


@pytest.mark.parametrize("factor", FACTORS)
def test_every_level_has_its_share(cells: list[Case], factor: str) -> None:
    found = Counter(case.params[factor] for case in cells)
    assert set(found) == set(FACTORS[factor])
    share = len(cells) / len(found)
    assert all(abs(count - share) < 2 for count in found.values())


@pytest.mark.parametrize("pair", list(combinations(FACTORS, 2)), ids=" × ".join)
def test_any_two_levels_meet(cells: list[Case], pair: tuple[str, str]) -> None:
    met = {(case.params[pair[0]], case.params[pair[1]]) for case in cells}
    assert met == set(product(FACTORS[pair[0]], FACTORS[pair[1]]))


def test_what_is_asked_follows_from_the_round_trip(cells: list[Case]) -> None:
    assert len(cells) == 36
    asked = {(case.params["link.rtt"], int(case.expect["step_time"]), int(case.expect["speedup"])) for case in cells}
    assert asked == {("0ms", 15_000_000, 15_000_000), ("5ms", 80_000_000, 80_000_000)}
    assert {int(case.expect["payload_tx"]) for case in cells} == {100_000}


def test_it_is_what_is_to_be_shown(cases: tuple[Case, ...]) -> None:
    for case in cases:
        assert isinstance(case.workload, Ddp)
        assert (case.workload.compute, case.workload.steps, case.workload.warmup) == ("paced", 3, 2)
        assert case.workload.accumulate == case.params["workload.accumulate"]
        assert case.workload.table.name == case.params["workload.model"]
    baselines = [case for case in cases if case.role == "baseline"]
    assert len(baselines) == 10  # a model with as many micro-batches each


def test_names_tell_the_factors_and_nothing_else(cells: list[Case]) -> None:
    names = {case.id for case in cells}
    assert len(names) == len(cells)
    assert all(name.count(",") == len(FACTORS) - 1 and "profile" not in name and "%" not in name for name in names)


def test_it_ends_in_time(cases: tuple[Case, ...]) -> None:
    """On two cores: each step slowed down, warm-up included, and what a case takes besides."""
    seconds = 0.0
    for case in cases:
        steps = (case.workload.steps + case.workload.warmup) * case.repeats
        seconds += case.dilation * predict(case)["step_time"].value * steps + APART
        assert case.dilation * predict(case)["step_time"].value * steps < case.timeout.seconds / 2
    assert seconds / 60 < MOST_MINUTES
