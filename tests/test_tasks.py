"""What real compute learns: a user's own model, the learning rate, evaluations; what each mistake ends in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rig.errors import WorkloadError
from rig.work import Data
from rig.workloads.data import load
from rig.workloads.nets import TEXT_NETS
from rig.workloads.rates import factor, learning_rate
from rig.workloads.samples import Samples
from rig.workloads.tasks import due, made, mean_loss, try_out
from tests.test_workloads import Event, ddp_job, run, steps

MODELS = """\
import torch
from torch import nn


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def frozen():
    net = small()
    for one in net[1].parameters():
        one.requires_grad_(False)
    return net


def needs(width):
    return small()


def number():
    return 3


def broken():
    raise KeyError("weights")


def lacking():
    import no_such_package


def few():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))


def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(200, 10))


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(192, 10), nn.Linear(5, 5)

    def forward(self, images):
        return self.used(images.flatten(1))


class Cut(Idle):
    def forward(self, images):
        return super().forward(images).detach()


class Words(Idle):
    def forward(self, images):
        return "cat"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder with a module of a user's own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    (tmp_path / "minemodels.py").write_text(MODELS, encoding="utf-8")
    yield str(tmp_path)
    sys.modules.pop("minemodels", None)


def real_job(model: str, folder: str = "", **changes: Any) -> Event:
    """A job of four steps after two, `changes` replace its fields."""
    return {**ddp_job("cnn"), "compute": "real", "pace": None, "model": model, "folder": folder, **changes}


@pytest.fixture(scope="module")
def digits() -> Samples:
    return load(vars(Data()))[0]


# ── a model of one's own ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("minemodels:smal", r"model minemodels:smal: find the factory: minemodels has no 'smal'; did you mean small\?"),
        ("othermodels:small", r"import othermodels: there is no module 'othermodels'"),
        ("minemodels:needs", r"call the factory: it needs width; write a function without arguments"),
        ("minemodels:number", r"call the factory: it returned a int; it must return a torch.nn.Module"),
        (
            "minemodels:broken",
            r"call the factory: KeyError: 'weights' \(at minemodels.py:25\); it must work without arg",
        ),
        (
            "minemodels:lacking",
            r"call the factory: ModuleNotFoundError: No module named 'no_such_package' \(at minemod",
        ),
    ],
)
def test_a_factory_that_cannot_be_used_is_one_sentence(folder: str, name: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        made(name, folder)
    assert not (Path(folder) / "__pycache__").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("few", r"it has the shape 2x4, and the data have 10 classes; return logits of 2x10, or a scalar"),
        ("wide", r"call it with 2x3x8x8: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("Idle", r"run it backward: idle.weight and 1 more got no gradient, so DDP would wait for it in vain"),
        ("Cut", r"run it backward: RuntimeError: element 0 of tensors does not require grad"),
        ("Words", r"it returned a str; it must return logits"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_one_sentence(folder: str, digits: Samples, name: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=f"model {name}: .*{said}"):
        try_out(name, made(f"minemodels:{name}", folder), digits)


def test_trying_a_model_leaves_no_trace(folder: str, digits: Samples) -> None:
    net = made("minemodels:small", folder)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.random.get_rng_state()
    try_out("small", net, digits)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(one.grad is None for one in net.parameters())


@pytest.mark.parametrize(("name", "trained"), [("small", 52_520), ("frozen", 3_112)])
def test_two_ranks_train_a_model_of_ones_own(folder: str, name: str, trained: int) -> None:
    """What is exchanged are the gradients of what is trained; rank 0 alone evaluates, in between and at the end."""
    first, second = run(real_job(f"minemodels:{name}", folder, steps=20, evaluate=3), size=2)
    [layout] = [event for event in first if event["event"] == "layout"]
    assert (layout["buckets"], layout["broadcasts"]) == ([trained], [512, 8])
    assert {span[2] for step in steps(first) + steps(second) for span in step["buckets"]} == {trained}
    seen = [event for event in first if event["event"] == "evaluated"]
    assert [event["step"] for event in seen] == [2, 5, 8, 11, 14, 17, 20, 21]
    assert not [event for event in second if event["event"] == "evaluated"]
    assert seen[-1]["held_out_loss"] < seen[0]["held_out_loss"] < 2.5
    assert first[-1]["accuracy"] == seen[-1]["accuracy"] > 0.6


def test_a_broken_factory_ends_a_rank_in_one_line(folder: str) -> None:
    with pytest.raises(AssertionError) as caught:
        run(real_job("minemodels:broken", folder))
    assert "Traceback" not in str(caught.value)
    assert "model minemodels:broken: call the factory: KeyError: 'weights' (at minemodels.py:25)" in str(caught.value)


def test_the_small_language_model_learns_text() -> None:
    data = vars(Data("topics", size=32))
    first, _ = run(real_job("gpt", data=data, batch=8, lr=0.2, steps=30), size=2)
    losses = [step["loss"] for step in steps(first, warmup=True) + steps(first)]
    assert losses[0] == pytest.approx(5.7, abs=0.4)  # ln 256 = 5.5: it knows nothing
    assert losses[-1] < 3.6


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────
class Wrapped:
    """As transformers' models return it."""

    logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])


@pytest.mark.parametrize(
    ("output", "labels", "loss"),
    [
        (torch.tensor([[0.0, 0.0]]), [1], 0.6931),
        (torch.zeros(2, 3, 4), [[0, 1, 2], [3, 3, 3]], 1.3863),
        (Wrapped(), [0, 1], 0.0181),
        (torch.tensor(1.25), [0, 1], 1.25),
    ],
)
def test_logits_are_compared_and_a_scalar_is_the_loss(output: Any, labels: list[Any], loss: float) -> None:
    assert mean_loss(output, torch.tensor(labels)).item() == pytest.approx(loss, abs=1e-4)


def test_a_causal_model_does_not_see_what_comes() -> None:
    torch.manual_seed(0)
    net: Callable[[torch.Tensor], torch.Tensor] = TEXT_NETS["gpt"]()
    assert isinstance(net, nn.Module)
    for layer in net.get_submodule("layers").children():  # they start as the identity
        nn.init.normal_(layer.get_parameter("out.weight"))
    tokens = torch.randint(0, 256, (1, 16))
    other = tokens.clone()
    other[0, 10:] = 7
    same = (net(tokens) - net(other)).abs().amax(dim=2)[0] < 1e-5
    assert same[:10].all() and not same[10:].any()


# ── learning rate and evaluations ────────────────────────────────────────────────────────────────────
def test_the_rate_follows_the_global_batch() -> None:
    assert [factor(scaling, 4) for scaling in ("none", "linear", "sqrt")] == [1, 4, 2]
    assert factor("sqrt", 2) == pytest.approx(sqrt(2))


def test_the_rate_warms_up_in_equal_increments() -> None:
    rates = [learning_rate(step, 0.1, 4.0, 3) for step in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate(0, 0.1, 4.0, 0) == pytest.approx(0.4)
    assert learning_rate(7, 0.1, 1.0, 100) == pytest.approx(0.1)


def test_ranks_learn_at_the_rate_of_their_number() -> None:
    first, _ = run(real_job("cnn", batch=4, evaluate=2, lr=0.01, lr_scaling="linear", lr_warmup=4), size=2)
    rates = [event["learning_rate"] for event in first if event["event"] == "evaluated"]
    assert rates == pytest.approx([0.0125, 0.0175, 0.02])


@pytest.mark.parametrize(("every", "after"), [(0, [6]), (3, [2, 5, 6]), (7, [6]), (100, [6])])
def test_evaluations_are_due(every: int, after: list[int]) -> None:
    assert [step for step in range(7) if due({"warmup": 2, "steps": 5, "evaluate": every}, step)] == after
