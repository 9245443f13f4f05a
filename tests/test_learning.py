"""Loss against time: what the record makes of evaluations, and what the report draws of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rig.report
from rig import advice, whatif
from rig.errors import ScenarioError, UsageError
from rig.formulas.predict import predict
from rig.measure import elapsed, learnt
from rig.model import Case, Phases
from rig.report import learning, reading
from rig.scenario import loads
from rig.units import Size
from rig.work import Data, Ddp, LayerTable
from tests.cases import case
from tests.report import sample

WORK = Ddp(5, 2, "own:net", "real", LayerTable("own:net", (), (), {}), Size(2**20), 0, 0.1, Data(), evaluate=2)
SPANS = (0.5, 0.3, 0.1, 0.1, 0.2, 0.1)  # of each step (s), of rank 0; rank 1 takes 0.1 s longer


def trained(target: float | None, repeats: int = 1) -> Case:
    return replace(case(2), workload=replace(WORK, target_loss=target), repeats=repeats)


def rows(repeat: int = 0) -> list[dict[str, Any]]:
    """Steps that start a second after one another, as when evaluations take their time."""
    return [
        {"repeat": repeat, "rank": rank, "step": step, "start": float(step), "end": step + span + 0.1 * rank}
        for step, span in enumerate(SPANS)
        for rank in range(2)
    ]


def notes(losses: Sequence[float], repeat: int = 0) -> list[dict[str, Any]]:
    """An evaluation after every second step."""
    return [
        {"event": "evaluated", "repeat": repeat, "step": 2 * place + 1, "held_out_loss": loss, "accuracy": 0.1 * place}
        for place, loss in enumerate(losses)
    ]


def test_time_counts_steps_and_not_evaluations() -> None:
    assert elapsed(trained(None), rows(), 0) == pytest.approx({0: 0.55, 1: 0.9, 2: 1.05, 3: 1.2, 4: 1.45, 5: 1.6})


def test_the_first_evaluation_at_the_target_tells_the_time() -> None:
    found = learnt(trained(0.5), rows(), notes([0.9, 0.5, 0.2]))
    assert {name: metric.value for name, metric in found.items()} == pytest.approx(
        {"held_out_loss": 0.2, "accuracy": 0.2, "time_to_loss": 1.2, "steps_to_loss": 4}
    )
    assert (found["time_to_loss"].unit, found["steps_to_loss"].unit) == ("s", "steps")


@pytest.mark.parametrize("losses", [[0.9, 0.8, 0.6], [float("nan")] * 3])
def test_a_target_that_is_not_reached_has_no_time(losses: list[float]) -> None:
    assert "time_to_loss" not in learnt(trained(0.5), rows(), notes(losses))
    assert "time_to_loss" not in learnt(trained(None), rows(), notes([0.1, 0.1, 0.1]))


def test_every_repeat_has_to_reach_it() -> None:
    steps, late = [*rows(0), *rows(1)], notes([0.9, 0.8, 0.4], repeat=1)
    found = learnt(trained(0.5, repeats=2), steps, [*notes([0.9, 0.5, 0.6]), *late])
    assert found["time_to_loss"].samples == pytest.approx((1.2, 1.6))
    assert found["held_out_loss"].value == pytest.approx(0.5)
    assert "time_to_loss" not in learnt(trained(0.5, repeats=2), steps, [*notes([0.9, 0.5]), *late[:1]])


# ── as written ───────────────────────────────────────────────────────────────────────────────────────
TEXT = """\
name: x
nodes: 2
link: {{rate: 1gbit}}
workload: {{kind: ddp, batch: 8, model: {model}, compute: {compute}{more}}}
"""


def written(more: str, model: str = "cnn", compute: str = "real", folder: str = "") -> Ddp:
    text = TEXT.format(model=model, compute=compute, more=f", {more}" if more else "")
    (cell,) = loads(text, f"{folder}/x.yaml" if folder else "x.yaml").cells
    found = cell.written.workload.resolve(Path(folder))
    assert isinstance(found, Ddp)
    return found


@pytest.mark.parametrize(
    ("keys", "model", "data"),
    [
        ("", "cnn", Data()),
        ("", "gpt", Data("topics", "", 128)),
        ("", "mine:net", Data()),
        ("data: topics", "gpt", Data("topics", "", 128)),
        ("data: {text: topics, tokens: 64}", "mine:net", Data("topics", "", 64)),
        ("data: pictures", "cnn", Data("cifar10", "/pictures", 0)),
        ("data: {cifar10: pictures}", "cnn", Data("cifar10", "/pictures", 0)),
        ("data: {cifar100: pictures}", "mine:net", Data("cifar100", "/pictures", 0)),
        ("data: {images: pictures}", "cnn", Data("images", "/pictures", 32)),
        ("data: {images: pictures, image: 64}", "cnn", Data("images", "/pictures", 64)),
        ("data: {text: a.txt}", "gpt", Data("text", "/a.txt", 128)),
    ],
)
def test_data_in_every_form(tmp_path: Path, keys: str, model: str, data: Data) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "a.txt").write_text("some text")
    found = written(keys, model, folder=str(tmp_path))
    assert replace(found.data, path=found.data.path.removeprefix(str(tmp_path))) == data
    assert found.reads == (*([str(tmp_path)] if ":" in model else []), *([found.data.path] if found.data.path else []))


@pytest.mark.parametrize(
    ("keys", "model", "said"),
    [
        ("data: nowhere", "cnn", "data: nowhere is no folder, seen from the scenario file's own folder"),
        ("data: {text: nowhere}", "gpt", "data: nowhere is no file, seen from"),
        ("data: {}", "cnn", "data: needs one source, found 0; write {images: FOLDER}"),
        ("data: {images: a, cifar10: b}", "cnn", "data: needs one source, found 2"),
        ("data: 3", "cnn", "data: found 3; write {images: FOLDER}"),
        ("data: {cifar10: a, image: 64}", "cnn", "it goes with images alone"),
        ("data: {images: a, tokens: 64}", "cnn", "it goes with text alone"),
        ("data: {text: topics, tokens: 1}", "gpt", "data.tokens: must be at least 2, found 1"),
        ("data: topics", "cnn", "data: is text, and cnn learns images; write model: gpt"),
        ("data: {images: .}", "gpt", "data: are images, and gpt learns text"),
        ("data: {cifar100: .}", "transformer", "write model: rig.workloads.nets:cnn100"),
        ("lr_warmup: 5", "cnn", "lr_warmup: leads up to what lr_scaling makes of lr"),
        ("lr_scaling: cubic", "cnn", "lr_scaling: found cubic; allowed: none, linear, sqrt"),
        ("target_loss: 0.5", "cnn", "target_loss: is looked for at each evaluation; write evaluate: 10"),
        ("evaluate: 0", "cnn", "evaluate: must be at least 1, found 0"),
        ("", "':net'", "model: :net names no factory; write it like package.module:factory"),
        ("", "resnet50", "real compute knows cnn, transformer, gpt and package.module:factory"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: str, model: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        written(keys, model)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "keys", ["data: topics", "evaluate: 3", "target_loss: 1", "lr_scaling: linear", "lr_warmup: 3"]
)
def test_paced_compute_learns_nothing(keys: str) -> None:
    name = keys.partition(":")[0]
    with pytest.raises(
        ScenarioError, match=rf"workload.{name}: is for compute: real only; paced compute learns nothing"
    ):
        written(keys, compute="{forward: 10ms, backward: 20ms}")


def test_the_rates_keys_reach_the_case() -> None:
    found = written("lr: 0.1, lr_scaling: sqrt, lr_warmup: 7, evaluate: 5, target_loss: 0.5")
    assert (found.lr, found.lr_scaling, found.lr_warmup, found.evaluate, found.target_loss) == (0.1, "sqrt", 7, 5, 0.5)


# ── a model without a layer table ────────────────────────────────────────────────────────────────────
SEEN = Phases(0.06, (0.05, 0.12), 0.12, 0.01, buckets=(2**20, 3 * 2**20), broadcasts=(512, 8))


def test_its_one_node_run_tells_what_it_sends_and_takes() -> None:
    two = trained_on(2)
    assert predict(two) == {}, "nothing is known before it has run"
    assert predict(trained_on(1))["payload_tx"].value == 0
    found = predict(two, SEEN)
    sent = [2**20 + 144 * 4 + 3 * 2**20 + 144 * 4 + 520 * first + 2 * 48 * (1 + first) for first in (1, 0)]
    assert found["payload_tx"].per_node == pytest.approx(sent)
    assert found["step_time"].value > SEEN.step


def test_it_can_be_studied_as_if_it_had_a_table_of_its_buckets() -> None:
    """One tensor a bucket, the last registered in the first bucket; so `rig advise` can change it."""
    found, paced = predict(trained_on(2), SEEN), predict(whatif.paced(trained_on(2), SEEN))
    assert paced["payload_tx"].per_node == found["payload_tx"].per_node
    assert paced["step_time"].value == pytest.approx(found["step_time"].value)
    with pytest.raises(UsageError, match=r"own:net has no layer table, and no one-node run of it is known"):
        advice.studied([trained_on(2)], "*", {})


def trained_on(nodes: int) -> Case:
    plain = replace(case(nodes), workload=WORK)
    return replace(plain, nodes=tuple(replace(node, batch=8) for node in plain.nodes))


# ── the report ───────────────────────────────────────────────────────────────────────────────────────
def record(**changes: Any) -> dict[str, Any]:
    return sample.document([{**sample.newer(sample.passed(2, "1gbit")), **changes}])


def test_a_curve_is_the_mean_of_repeats() -> None:
    (curve,) = learning.loss_curves(reading.read(record()))
    assert curve.held_out
    assert [loss for _, loss in curve.points] == [1.0, 0.5]
    step = curve.case.steps[0]
    assert step.start is not None and step.end is not None
    assert [at for at, _ in curve.points] == pytest.approx([2 * (step.end - step.start), 4 * (step.end - step.start)])


def test_without_evaluations_the_losses_of_the_batches_are_drawn() -> None:
    plain = sample.passed(2, "1gbit")
    steps = [{**row, "loss": 3.0 - row["step"]} for row in plain["raw"]["steps"]]
    (curve,) = learning.loss_curves(reading.read(sample.document([{**plain, "raw": {"steps": steps}}])))
    assert not curve.held_out
    assert [loss for _, loss in curve.points] == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert learning.loss_curves(reading.read(sample.document([plain]))) == []


def test_the_page_shows_who_reached_the_target(tmp_path: Any) -> None:
    measured = sample.passed(2, "1gbit")["measured"]
    measured |= {"time_to_loss": {"value": 12.5, "unit": "s"}, "steps_to_loss": {"value": 40.0, "unit": "steps"}}
    document = record(measured=measured)
    document["scenario"]["resolved"] = {"cases": [{"workload": {"target_loss": 0.75}}]}
    rig.report.write(document, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "nodes=2,rate=1gbit, at the target after 12.50 s, 40 steps" in page
    assert "target 0.75" in page
    rig.report.write(sample.record(), tmp_path)
    assert "Loss against time" not in (tmp_path / "report.html").read_text(encoding="utf-8")
