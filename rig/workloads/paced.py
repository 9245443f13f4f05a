"""Paced compute: DDP over real tensors, where waits inside autograd stand in for the arithmetic.

Each parameter tensor is a layer. Its forward, and its backward, wait until a deadline that is counted from the
start of the step's forward, so a late layer does not delay those after it. Its gradient is a real tensor.
Of several micro-batches only the last has layers: the others exchange nothing, so each is one wait.
"""

from __future__ import annotations

import time
from math import prod
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from rig.errors import WorkloadError
from rig.workloads import exchanges
from rig.workloads.job import Seat
from rig.workloads.pacer import Pacer, sharpen_timer
from rig.workloads.steps import Buckets, Marks


class _Layer(torch.autograd.Function):
    """One parameter tensor's work, chained to its neighbours by a tiny activation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: torch.Tensor, net: PacedNet, layer: int) -> torch.Tensor:
        ctx.net, ctx.layer = net, layer
        net.pacer.forward(layer)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        net: PacedNet = ctx.net
        net.pacer.backward(ctx.layer)
        return grad, net.gradient(ctx.layer), None, None


class PacedNet(nn.Module):
    """A layer table's parameters and buffers, computed by waiting."""

    def __init__(self, table: dict[str, Any], pacer: Pacer, fill: float, micro_batches: int = 1) -> None:
        """Every gradient of a step is `fill` throughout. `table` is a layer table as in its JSON file."""
        super().__init__()
        self.pacer, self._fill, self._last = pacer, fill, micro_batches - 1
        self._layers: list[nn.Parameter] = []
        for entry in table["parameters"]:
            # One number, seen as often as the shape asks: nobody reads its value, and each rank saves a model's size.
            parameter = nn.Parameter(torch.zeros((), dtype=_dtype(entry)).expand(entry["shape"]))
            self.register_parameter(entry["name"].replace(".", "/"), parameter)  # torch forbids dots
            self._layers.append(parameter)
        self._grads: list[torch.Tensor | None] = [None] * len(self._layers)  # where DDP kept those of the last step
        self._fresh = {
            dtype: torch.full((numel,), fill, dtype=dtype) for dtype, numel in _largest(self._layers).items()
        }
        for dtype, numel in _sizes(table["buffers"]).items():
            # One of each dtype: DDP sends them joined anyway, and joining hundreds costs this host milliseconds.
            self.register_buffer(f"all_{dtype}", torch.zeros(numel, dtype=getattr(torch, dtype)))

    def renew_gradients(self, settled: bool) -> None:
        """What `zero_grad` does, but remember which part of a bucket each gradient was a view of, once the buckets are
        settled (those of the first step are freed as they are rebuilt, unless somebody holds on to them), and write
        the next step's there.

        A GPU writes gradients within the time that a pace gives it. This host does so between steps, which nobody
        times: half a gigabyte a rank takes longer than a fast pace's forward pass, and during backward it would make
        layers up to 9 ms late and slow gloo down.
        """
        self._grads = [parameter.grad if settled else None for parameter in self._layers]
        if settled:
            self._fresh = {}
        for parameter, grad in zip(self._layers, self._grads, strict=True):
            parameter.grad = None
            if grad is not None:
                grad.fill_(self._fill)

    def forward(self, x: torch.Tensor, micro_batch: int = 0, awaited: bool = False) -> torch.Tensor:
        """A tiny activation in, the same out, after the time a forward pass takes; a whole micro-batch takes, if it is
        not the step's last. `awaited`: the step's buffers had to arrive first, so that its forward begins only now.
        """
        if awaited:
            self.pacer.begin()
        if micro_batch < self._last:
            self.pacer.micro_batch()
            return x
        for layer, parameter in enumerate(self._layers):
            x = _Layer.apply(x, parameter, self, layer)  # type: ignore[no-untyped-call]
        return x

    def gradient(self, layer: int) -> torch.Tensor:
        """The layer's gradient: a new alias of its place in the bucket, so that no one copies it.

        Autograd takes over a tensor that nobody else refers to (accumulate_grad.h), and DDP copies only what is not
        in the bucket yet (reducer.cpp, mark_variable_ready_dense), as in the first step and after its rebuild: then
        from memory that all layers share, for to write a large model's anew takes this host seconds.
        """
        grad, parameter = self._grads[layer], self._layers[layer]
        if grad is None:
            return self._fresh[parameter.dtype][: parameter.numel()].view(parameter.shape)
        return grad.detach()

    def check(self, expected: float) -> None:
        """Raise WorkloadError unless every element of every gradient is the mean over ranks."""
        for name, parameter in self.named_parameters():
            grad = parameter.grad
            low, high = (float("nan"),) * 2 if grad is None else (bound.item() for bound in grad.aminmax())
            off = max(1e-3, torch.finfo(parameter.dtype).eps)  # what the type can tell
            if not expected * (1 - off) <= low <= high <= expected * (1 + off):
                found = f"{low:g} to {high:g}"
                raise WorkloadError(
                    f"ddp: check the reduced gradient of {name.replace('/', '.')}: found {found}, "
                    f"expected {expected:g} throughout; the collective is broken, do not trust this run"
                )


def _dtype(entry: dict[str, Any]) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, entry.get("dtype", "float32"))
    return dtype


def _largest(layers: list[nn.Parameter]) -> dict[torch.dtype, int]:
    """Elements of the largest layer of each dtype."""
    largest: dict[torch.dtype, int] = {}
    for layer in layers:
        largest[layer.dtype] = max(layer.numel(), largest.get(layer.dtype, 0))
    return largest


def _sizes(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Elements of each dtype, in the order dtypes first appear."""
    sizes: dict[str, int] = {}
    for entry in entries:
        dtype = entry.get("dtype", "float32")
        sizes[dtype] = sizes.get(dtype, 0) + prod(entry["shape"])
    return sizes


class PacedTraining:
    """Steps of paced DDP training; see `ddp` for what a training offers."""

    def __init__(self, job: dict[str, Any], seat: Seat, buckets: Buckets) -> None:
        sharpen_timer()
        flops = [entry["flops"] for entry in job["table"]["parameters"]]
        self._pacer = Pacer(flops, job["pace"], job["dilation"])
        self._buckets, self._job, self._size, self._steps = buckets, job, seat.size, 0
        fill = job["accumulate"] * (seat.rank + 1) / seat.size  # the sum of all micro-batches', divided by the ranks
        self._net = PacedNet(job["table"], self._pacer, fill, job["accumulate"])
        self._exchange = exchanges.paced(job, seat, self._net, buckets, self._pacer.count)
        self.module = self._exchange.module
        self._in_buckets = isinstance(self._exchange, exchanges.Hooked)

    def step(self) -> Marks:
        """One step: buffers broadcast, micro-batches, the last one's backward with its all-reduces, optimizer."""
        # Alone, nothing ever changes a gradient: writing half a gigabyte of them anew would be this host's own time.
        self._net.renew_gradients(settled=self._in_buckets and self._steps > 1)
        self._exchange.renew()
        self._steps += 1
        start = time.monotonic()
        self._pacer.begin()
        for micro_batch in range(self._job["accumulate"] - 1):
            with self._exchange.apart():
                self._forward(micro_batch)
        out = self._forward(self._job["accumulate"] - 1)
        forward_end = time.monotonic()
        out.backward()  # type: ignore[no-untyped-call]
        backward_end = self._buckets.last_start if self._buckets.spans else time.monotonic()
        self._exchange.after_backward()
        self._pacer.optimizer(self._buckets.last_end if self._buckets.spans else 0.0)
        self._exchange.after_step(self._steps - 1)
        end = time.monotonic()
        return Marks(
            start, self._pacer.began, forward_end, backward_end, end, self._job["batch"],
            self._pacer.start - self._pacer.began, self._pacer.late, self._pacer.late_any,
        )  # fmt: skip

    def _forward(self, micro_batch: int) -> torch.Tensor:
        """DDP broadcasts buffers before the first forward pass of a step only, whichever it is that exchanges gradients
        (require_forward_param_sync in torch/nn/parallel/distributed.py); without any, forward begins with the step.
        """
        awaited = micro_batch == 0 and self._in_buckets and bool(self._job["table"]["buffers"])
        out: torch.Tensor = self.module(torch.zeros(1), micro_batch, awaited)
        return out

    def finish(self) -> dict[str, float | None]:
        """Check the last step's exchange; raises WorkloadError when it is wrong. The mean of 1, 2, … N is known."""
        self._exchange.check()
        if self._size == 1 or self._job["exchange"]["method"] == "allreduce":
            self._net.check(expected=self._job["accumulate"] * (self._size + 1) / 2)
        return {"loss": None, "accuracy": None}
