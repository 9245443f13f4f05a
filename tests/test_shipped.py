"""The scenarios that ship as experiments: complete, honest about their time, and predicted in all that they expect."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from rig import scenario
from rig.formulas import FORMULAS
from rig.formulas.predict import predict
from rig.model import Case
from rig.plan import expand
from rig.results import QUANTITIES
from rig.scenario import Scenario

FOLDER = Path(__file__).parent.parent / "scenarios"
EXPERIMENTS = (
    "allreduce", "amortise", "bandwidth", "batch", "dreambooth", "exchange-cost", "frequency", "lora", "nodes",
    "parameter-server", "send-less", "shrink", "small-packets", "wan",
)  # fmt: skip
MINUTES = re.compile(r"about (a|\d+) minutes? on two cores", re.IGNORECASE)
MOST = 45 * 60  # s, of all of them together
REAL = 0.03  # s that a step of real compute takes there, without its bytes


@cache
def loaded(name: str) -> Scenario:
    return scenario.load(FOLDER / f"{name}.yaml")


@cache
def cases(name: str) -> tuple[Case, ...]:
    return expand(loaded(name), cores=2)


@cache
def seconds(name: str) -> float:
    """What its steps take by prediction, and 7 s and a second for each node to set a case up and probe it."""
    total = 0.0
    for case in cases(name):
        found = predict(case)
        by_bytes = REAL + found["payload_tx"].value * 8 / case.nodes[0].link.up.rate
        step = found["step_time"].value if "step_time" in found else by_bytes
        total += (case.workload.steps + case.workload.warmup) * case.repeats * step * case.dilation + 7 + case.size
    return total


def test_the_folder_holds_the_experiments_and_nothing_else() -> None:
    assert tuple(path.stem for path in sorted(FOLDER.glob("*.yaml"))) == EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_file_opens_with_what_it_shows_and_how_long_it_takes(name: str) -> None:
    head = loaded(name).text.partition("\nname:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    told = " ".join(line.removeprefix("#").strip() for line in head.splitlines())
    assert "?" in told
    found = MINUTES.search(told)
    assert found is not None
    minutes = 1 if found[1] == "a" else int(found[1])
    assert minutes - 1.5 <= seconds(name) / 60 <= minutes + 0.2


def test_together_they_end_in_time() -> None:
    assert sum(map(seconds, EXPERIMENTS)) <= MOST


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_expected_is_predicted(name: str) -> None:
    """Of real compute only bytes are known before its one-node run."""
    for case in cases(name):
        predicted = predict(case)
        expected = set(case.expect) - ({"step_time", "speedup"} if case.computes_real else set())
        assert expected and expected <= set(predicted)
        assert {figure.formula for figure in predicted.values()} <= set(FORMULAS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_shown_is_a_figure_of_every_case(name: str) -> None:
    show = loaded(name).cells[0].written.show
    assert show.x and show.y
    metric = QUANTITIES[show.y].of or show.y
    for case in (case for case in cases(name) if case.role == "case"):
        assert show.x in case.params
        assert case.computes_real or metric in predict(case)
