"""Models without a layer table in a lab: a diffusion model in full and with LoRA, and one of the user's own.

Their one-node runs tell what they send; that holds to the byte however busy this machine is, so no verdict is asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rig.formulas.predict import predict
from rig.measure import phases
from rig.plan import expand
from rig.scenario import load
from tests.lab.runs import rig

SCENARIO = """\
name: learning
link: {rate: 500mbit}
workload:
  {kind: ddp, compute: real, batch: 8, steps: 6, lr_scaling: linear, lr_warmup: 4, evaluate: 4, target_loss: 2.5}
sweep:
  workload.model: ["rig.workloads.foundation:small_unet", "rig.workloads.foundation:small_unet_lora", "mine:net"]
  nodes: [1, 2]
"""
MINE = """\
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
"""
TRAINED = {"small_unet": 802_627, "small_unet_lora": 11_008, "net": 13_130}  # parameters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning")
    (folder / "x.yaml").write_text(SCENARIO, encoding="utf-8")
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def cases(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Finished cases by factory and number of nodes."""
    answer = rig("run", "x.yaml", "--lab", "netns", "--json", "--no-lock", "--out", "out", cwd=folder, within=170)
    assert answer.returncode in (0, 1, 4), answer.stderr
    found = json.loads(answer.stdout)["cases"]
    return {(case["params"]["workload.model"].partition(":")[2], case["params"]["nodes"]): case for case in found}


@pytest.mark.slow
@pytest.mark.parametrize("model", TRAINED)
def test_bytes_are_those_of_what_is_trained(
    folder: Path, cases: dict[tuple[str, int], dict[str, Any]], model: str
) -> None:
    one, two = (cases[model, nodes]["raw"] for nodes in (1, 2))
    known = phases(one["steps"], one["notes"])
    assert sum(known.buckets) == 4 * TRAINED[model]
    assert known.broadcasts == ((512, 8) if model == "net" else ())
    (case,) = (case for case in expand(load(folder / "x.yaml"), 2) if case.id == cases[model, 2]["id"])
    due = predict(case, known)["payload_tx"].per_node
    for rank in (0, 1):
        sent = {step["payload"] for step in two["steps"] if step["rank"] == rank and not step["warmup"]}
        assert sent == {due[rank]}, "the same in steps that an evaluation follows"


@pytest.mark.slow
def test_lora_sends_as_much_less_as_it_trains(cases: dict[tuple[str, int], dict[str, Any]]) -> None:
    whole, few = (cases[model, 2]["measured"]["payload_tx"]["value"] for model in ("small_unet", "small_unet_lora"))
    assert whole / few == pytest.approx(TRAINED["small_unet"] / TRAINED["small_unet_lora"], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_evaluations_tell_loss_rate_and_when_the_target_was_reached(
    cases: dict[tuple[str, int], dict[str, Any]], nodes: int
) -> None:
    for model in TRAINED:
        measured, raw = cases[model, nodes]["measured"], cases[model, nodes]["raw"]
        seen = [note for note in raw["notes"] if note["event"] == "evaluated"]
        assert [note["step"] for note in seen] == [3, 7]
        assert {note["node"] for note in seen} == {"n0"}
        assert measured["held_out_loss"]["value"] == seen[-1]["held_out_loss"] < 2.5
        assert measured["learning_rate"]["value"] == pytest.approx(0.05 * nodes)
        assert measured["steps_to_loss"]["value"] in (4, 8)
        assert ("accuracy" in measured) == (model == "net"), "the others give a loss and no logits"
        spans = [step["end"] - step["start"] for step in raw["steps"] if step["rank"] == 0]
        assert min(spans) < measured["time_to_loss"]["value"] < 1.05 * sum(spans)


@pytest.mark.slow
def test_the_report_shows_it_and_the_folder_stays_as_it_was(
    folder: Path, cases: dict[tuple[str, int], dict[str, Any]]
) -> None:
    assert cases
    (page,) = folder.glob("out/*/report.html")
    assert "Loss against time" in page.read_text(encoding="utf-8")
    assert sorted(one.name for one in folder.iterdir()) == ["mine.py", "out", "x.yaml"]
