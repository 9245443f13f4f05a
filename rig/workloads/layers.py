"""A model's layers: the tensors that are trained, and what each takes of a pass, in time or in operations.

What a forward pass does from the moment a module begins to the moment the next one begins is that module's, shared
among its own tensors by their elements; what a backward pass does from one tensor's gradient to the next one's is the
latter's. So work without a trained tensor of its own (an attention's products, a frozen weight's) is a neighbour's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

EXCHANGED = ("float32", "float16", "bfloat16")  # what a rig's parameter may be
KEPT = (*EXCHANGED, "int64")  # and its buffer
PLACES = 12  # decimal places of a share, or of seconds

Shares = list[float]
Own = list[tuple[int, float]]  # tensors by their places, each with its weight among them


class Clock(Protocol):
    """What passes while a model works: time, or operations."""

    def mark(self) -> Any:
        """This moment."""

    def between(self, start: Any, end: Any) -> float:
        """What passed from one moment to another (s, or FLOPs)."""


class WallClock:
    """The CPU's: torch computes there before it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def between(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """Events in the stream of kernels; reading one waits for it."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class FlopClock:
    """Operations so far: a multiply and an add are two; what only a bias, a norm or an embedding does is one for each
    of its tensors and each element that leaves it.
    """

    def __init__(self, counter: FlopCounterMode) -> None:
        self._counter, self.small = counter, 0

    def mark(self) -> int:
        return self._counter.get_total_flops() + self.small

    def between(self, start: int, end: int) -> float:
        return float(end - start)


@dataclass
class Spans:
    """What each tensor took in one pass, by its place among those that are trained."""

    clock: Clock
    count: int
    marks: list[tuple[Own, Any]] = field(default_factory=list)  # whose, and the moment

    def note(self, own: Own) -> None:
        """These tensors' turn begins, or ends, now."""
        self.marks.append((own, self.clock.mark()))

    def forward(self, start: Any, end: Any) -> list[float]:
        """From each mark to the next; what was before the first is the first's."""
        return self._shared([start, *(moment for _, moment in self.marks[1:]), end])

    def backward(self, start: Any, end: Any) -> list[float]:
        """From each mark back to the one before; what came after the last is the last's."""
        return self._shared([start, *(moment for _, moment in self.marks[:-1]), end])

    def _shared(self, moments: Sequence[Any]) -> list[float]:
        taken = [0.0] * self.count
        for (own, _), (start, end) in zip(self.marks, pairwise(moments), strict=bool(self.marks)):
            divide(self.clock.between(start, end), own, taken)
        return taken


def divide(span: float, own: Own, taken: list[float]) -> None:
    """Add a span to what these tensors took, by their weights."""
    whole = sum(weight for _, weight in own)
    for place, weight in own:
        taken[place] += span * weight / whole


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """The tensors whose gradients are exchanged, in registration order; one that is used twice is one."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def owners(net: nn.Module) -> Iterator[tuple[nn.Module, Own]]:
    """Modules with trained tensors of their own: their places and elements. A tied tensor is its first owner's."""
    places = {id(parameter): place for place, parameter in enumerate(trained(net).values())}
    for module in net.modules():
        own = [
            (places.pop(id(one)), float(one.numel())) for one in module.parameters(recurse=False) if id(one) in places
        ]
        if own:
            yield module, own


@contextmanager
def noted(net: nn.Module, spans: Spans) -> Iterator[None]:
    """While this lasts, `spans` learns when each module begins."""

    def begins(own: Own) -> Callable[..., None]:
        return lambda *_: spans.note(own)

    hooks = [module.register_forward_pre_hook(begins(own)) for module, own in owners(net)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# ── operations ───────────────────────────────────────────────────────────────────────────────────────
def flop_shares(net: nn.Module, inputs: Sequence[torch.Tensor]) -> Shares:
    """Each trained tensor's share of the forward pass's FLOPs, 0 to 1; on the meta device nothing is computed."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        clock = FlopClock(counter)
        spans = Spans(clock, len(trained(net)))
        hooks = [module.register_forward_hook(_small(clock, module)) for module, _ in owners(net)]
        with noted(net, spans):
            net(*inputs)
        for hook in hooks:
            hook.remove()
        return shares(spans.forward(0, clock.mark()))


def _small(clock: FlopClock, module: nn.Module) -> Callable[..., None]:
    own = sum(one.dim() < 2 or isinstance(module, nn.Embedding) for one in module.parameters(recurse=False))

    def done(_: nn.Module, __: Any, output: Any) -> None:
        clock.small += own * next((one.numel() for one in tensors(output)), 0)

    return done


def shares(taken: Sequence[float]) -> Shares:
    """Parts of one; all alike where nothing was taken."""
    whole = sum(taken)
    return [round(one / whole if whole else 1 / len(taken), PLACES) for one in taken]


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returned, however deep in lists and mappings."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for one in output.values():
            yield from tensors(one)
    elif isinstance(output, list | tuple):
        for one in output:
            yield from tensors(one)


def entries(net: nn.Module, flops: Shares) -> dict[str, list[dict[str, Any]]]:
    """The tensors as a layer table lists them; buffers of a dtype that is not exchanged are left out."""
    parameters = [
        {"name": name, "shape": list(one.shape), "dtype": dtype(one), "flops": share}
        for (name, one), share in zip(trained(net).items(), flops, strict=True)
    ]
    buffers = [
        {"name": name, "shape": list(one.shape), "dtype": dtype(one)}
        for name, one in net.named_buffers()
        if dtype(one) in KEPT
    ]
    return {"parameters": parameters, "buffers": buffers}


def dtype(tensor: torch.Tensor) -> str:
    """Its element type's name, as a layer table has it."""
    return str(tensor.dtype).removeprefix("torch.")
