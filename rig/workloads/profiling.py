"""Time a model's layers on this machine: `python -m rig.workloads.profiling < job.json`, which tells in JSON lines.

Steps of one machine alone, without DDP: forward, backward, optimizer. See `layers` for what of them is whose.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any

import torch
from torch import nn

from rig.errors import UsageError
from rig.node.stream import Stream
from rig.workloads.factories import built, default_input, factory, forbid_network, samples
from rig.workloads.layers import (
    PLACES,
    Clock,
    CudaClock,
    Shares,
    Spans,
    WallClock,
    divide,
    entries,
    flop_shares,
    noted,
    owners,
    shares,
    tensors,
    trained,
)  # fmt: skip

WARMUP = 3  # steps that are not counted: allocators, cuDNN's choice of kernels


@dataclass(frozen=True)
class Step:
    """One step's times (s): of each trained tensor forward and backward, and of the optimizer."""

    forward: list[float]
    backward: list[float]
    optimizer: float
    silent: int  # tensors that got no gradient

    @property
    def seconds(self) -> float:
        return sum(self.forward) + sum(self.backward) + self.optimizer


class Timing:
    """Steps of one model alone on this machine, without DDP."""

    def __init__(self, net: nn.Module, inputs: Sequence[torch.Tensor], optimizer: str) -> None:
        self._net, self._inputs, self._parameters = net, inputs, list(trained(net).values())
        self._owners = [own for _, own in owners(net)]
        self._clock: Clock = CudaClock() if inputs[0].is_cuda else WallClock()
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(self._parameters, lr=1e-6, momentum=0.9)
        if optimizer == "adamw":
            self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-6)

    def step(self, stage: Callable[[str], None]) -> Step:
        """Forward, backward, optimizer. Raises UsageError when nothing can be differentiated."""
        self._optimizer.zero_grad(set_to_none=True)
        stage("run it forward")
        forward, backward = (Spans(self._clock, len(self._parameters)) for _ in range(2))
        start = self._clock.mark()
        with noted(self._net, forward):
            loss = self._loss(self._net(*self._inputs))
        middle = self._clock.mark()
        stage("run it backward")
        with _ready(self._parameters, backward):
            loss.backward()  # type: ignore[no-untyped-call]
        end = self._clock.mark()
        stage("run the optimizer")
        self._optimizer.step()
        last = self._clock.mark()
        silent = sum(parameter.grad is None for parameter in self._parameters)
        return Step(
            forward.forward(start, middle), self._levelled(backward.backward(middle, end)),
            self._clock.between(end, last), silent,
        )  # fmt: skip

    def _levelled(self, taken: list[float]) -> list[float]:
        """One module's gradients come at once, and the first to be told is not the one that took the time."""
        level = [0.0] * len(taken)
        for own in self._owners:
            divide(sum(taken[place] for place, _ in own), own, level)
        return level

    @staticmethod
    def _loss(output: Any) -> torch.Tensor:
        """The mean of whatever can be differentiated: a real loss takes next to nothing beside the layers."""
        found = [one.float().mean() for one in tensors(output) if one.requires_grad]
        if not found:
            raise UsageError(
                "run it forward: nothing it returned depends on a parameter; give a model that returns tensors"
            )
        return torch.stack(found).sum()


@contextmanager
def _ready(parameters: Sequence[nn.Parameter], spans: Spans) -> Iterator[None]:
    """While this lasts, `spans` learns when each gradient is complete, which is when DDP would take it."""

    def ends(place: int) -> Callable[[torch.Tensor], None]:
        return lambda _: spans.note([(place, 1.0)])

    hooks = [
        one.register_post_accumulate_grad_hook(ends(place))  # type: ignore[no-untyped-call]
        for place, one in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def measured(net: nn.Module, inputs: Sequence[torch.Tensor], job: dict[str, Any], stage: Callable[[str], None]) -> Any:
    """What a table says of this machine: medians over the repeats, in seconds for the whole batch, and shares."""
    timing = Timing(net, inputs, job["optimizer"])
    for _ in range(WARMUP):
        timing.step(stage)
    steps = [timing.step(stage) for _ in range(job["repeats"])]
    forward, backward = (
        [median(column) for column in zip(*rows, strict=True)]
        for rows in ([step.forward for step in steps], [step.backward for step in steps])
    )
    return {
        "batch": job["batch"],
        "forward": round(median(sum(step.forward) for step in steps), PLACES),
        "backward": round(median(sum(step.backward) for step in steps), PLACES),
        "optimizer": round(median(step.optimizer for step in steps), PLACES),
        "optimizer_kind": job["optimizer"],
        "forward_shares": shares(forward),
        "backward_shares": shares(backward),
        "silent": steps[-1].silent,
        "spread": spread([step.seconds for step in steps]),
    }


def spread(seconds: Sequence[float]) -> float:
    """How far the slower half of the repeats lies off the median, as a part of it."""
    middle = median(seconds)
    return round(median(one for one in seconds if one >= middle) / middle - 1, 3)


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────
def counted(job: dict[str, Any], net: nn.Module, wanted: Sequence[dict[str, Any]]) -> Shares:
    """FLOP shares by a second model on the meta device, where it can live there; else by the real one."""
    try:
        with torch.device("meta"):
            shadow = built(factory(job["model"])())
            return flop_shares(shadow, samples(wanted, shadow, job["batch"], "meta"))
    except (RuntimeError, TypeError, ValueError, AttributeError):  # what needs a value finds none there
        device = next(net.parameters()).device.type
        return flop_shares(net, samples(wanted, net, job["batch"], device))


def device_of(job: dict[str, Any]) -> str:
    """cpu or cuda. Raises UsageError for cuda where there is none."""
    if job["device"] == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"find a GPU for --device cuda: torch {torch.__version__} sees none here; use --device cpu")
    return "cuda" if job["device"] != "cpu" and torch.cuda.is_available() else "cpu"


def profile(job: dict[str, Any], stage: Callable[[str], None]) -> dict[str, Any]:
    """Build, count and time one model; raises UsageError, or whatever the model itself raises."""
    device, model = device_of(job), job["model"]
    stage("find the model")
    make = factory(model)
    stage("call the factory")
    net = built(make()).to(device).train()
    stage("make its input")
    wanted = job["inputs"] or [default_input(model, net)]
    stage("run it forward")
    table = entries(net, counted(job, net, wanted))
    found = measured(net, samples(wanted, net, job["batch"], device), job, stage)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    own = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {**table, "inputs": wanted, "measured": {**found, **own}}


def main() -> None:
    """Read the job on standard input; the last line is "profile", or "ended" with what stood in the way and where."""
    stream, reached = Stream(), [""]

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        first = (str(error).splitlines() or [""])[0]
        stream.emit("ended", kind=kind.__name__, text=first, stage=reached[0])
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = end
    sys.path.append(os.getcwd())  # where a factory of one's own may lie
    forbid_network()
    found = profile(json.loads(sys.stdin.read()), lambda stage: reached.__setitem__(0, stage))
    stream.emit("profile", **found)


if __name__ == "__main__":
    main()
