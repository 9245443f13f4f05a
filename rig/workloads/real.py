"""Real compute: a model of the rig's own or of a user's, trained by DDP on real data. What it learns is in `tasks`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rig.errors import WorkloadError
from rig.workloads import exchanges
from rig.workloads.devices import clock
from rig.workloads.job import Seat
from rig.workloads.steps import Buckets, Marks
from rig.workloads.tasks import Task

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


class RealTraining:
    """Steps of real DDP training; see `ddp` for what a training offers."""

    def __init__(self, job: dict[str, Any], seat: Seat, buckets: Buckets) -> None:
        self._batch, self._micro_batches = job["batch"], job["accumulate"]
        self._seat, self._buckets, self._clock = seat, buckets, clock(seat)
        self._task = Task(job, seat)
        in_precision(self._task.net, getattr(torch, job["precision"]))
        self._exchange = exchanges.real(job, seat, self._task.net, buckets)
        self.module = self._exchange.module
        self._task.net.register_forward_pre_hook(self._note_forward)
        self._optimizer = OPTIMIZERS[job["optimizer"]](self._task.trained, lr=job["lr"])
        self._steps = 0  # done so far
        self._forwards: list[Any] = []  # when each micro-batch's forward pass began, as the clock has it
        self._loss = 0.0
        self._accuracy: float | None = None

    def _note_forward(self, *_: object) -> None:
        self._forwards.append(self._clock.now())

    def step(self) -> Marks:
        """One step: buffers broadcast, micro-batches, the exchange in or after the last one's backward, optimizer."""
        self._forwards.clear()
        for group in self._optimizer.param_groups:
            group["lr"] = self._task.learning_rate(self._steps)
        self._steps += 1
        start = self._clock.begin()
        self._optimizer.zero_grad(set_to_none=True)
        losses = []
        for _ in range(self._micro_batches - 1):
            with self._exchange.apart():
                losses.append(self._micro_batch())
                losses[-1].backward()  # type: ignore[no-untyped-call]
        losses.append(self._micro_batch())
        forward_end = self._clock.now()
        losses[-1].backward()  # type: ignore[no-untyped-call]
        in_buckets, backward_end = bool(self._buckets.spans), self._clock.now()
        self._exchange.after_backward()
        self._optimizer.step()
        self._exchange.after_step(self._steps - 1)
        end = self._clock.end()
        self._buckets.settle()
        self._loss = sum(loss.item() for loss in losses)
        moments = (self._forwards[0], self._forwards[-1], forward_end, backward_end)
        first, last, forward_end, backward_end = map(self._clock.told, moments)
        if in_buckets:  # with DDP, backward goes on until everything is reduced
            backward_end = self._buckets.last_start
        return Marks(start, first, forward_end, backward_end, end, self._batch, last - first, loss=self._loss)

    def _micro_batch(self) -> torch.Tensor:
        """The loss of the next samples, divided so that those of all micro-batches add up to the whole batch's mean."""
        loss: torch.Tensor = self._task.loss(self.module, self._batch // self._micro_batches) / self._micro_batches
        return loss

    def evaluate(self) -> dict[str, float | None]:
        """Rank 0's loss and accuracy on held-out samples; nothing on other ranks."""
        if self._seat.rank:
            return {}
        found = self._task.evaluate()
        self._accuracy = found["accuracy"]
        return found | {"learning_rate": self._task.learning_rate(self._steps - 1)}

    def finish(self) -> dict[str, float | None]:
        """The last loss, and on rank 0 the accuracy (0 to 1) of the last evaluation.

        Raises WorkloadError when the ranks' networks have drifted apart.
        """
        self._check()
        return {"loss": self._loss, "accuracy": self._accuracy}

    def _check(self) -> None:
        """Every rank added the same mean gradients to the same start, so the sums agree to the last bit."""
        own = torch.stack([parameter.detach().double().sum() for parameter in self.module.parameters()])
        first = own.clone()
        dist.broadcast(first, src=0)
        if not torch.equal(own, first):
            raise WorkloadError(
                f"ddp: compare the trained network of rank {self._seat.rank} with rank 0's: they differ; "
                "the collective is broken, do not trust this run"
            )


def in_precision(net: nn.Module, dtype: torch.dtype) -> None:
    """Let a network compute in that type, parameters, gradients and buffers, whatever type its input has."""

    def cast(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)

    if dtype != torch.float32:
        net.to(dtype)
        net.register_forward_pre_hook(cast)
