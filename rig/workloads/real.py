"""Real compute: a small network of the rig's own, trained by DDP on real images."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from rig.errors import WorkloadError
from rig.workloads.data import Images, load
from rig.workloads.job import Seat
from rig.workloads.nets import NETS
from rig.workloads.paced import wrapped
from rig.workloads.steps import Buckets, Marks, averaged


class RealTraining:
    """Steps of real DDP training; see `ddp` for what a training offers."""

    def __init__(self, job: dict[str, Any], seat: Seat, buckets: Buckets) -> None:
        torch.manual_seed(job["seed"])
        self._batch, self._micro_batches = job["batch"], job["accumulate"]
        self._seat, self._buckets = seat, buckets
        images, self._held_out = load(job["data"])
        self._shard = images.shard(seat.rank, seat.size, job["seed"])
        self.module = wrapped(NETS[job["model"]](), job["bucket_cap"], buckets.hook(averaged))
        self.module.module.register_forward_pre_hook(self._note_forward)
        self._optimizer = torch.optim.SGD(self.module.parameters(), lr=job["lr"], momentum=0.9)
        self._taken = 0  # samples of this rank's share
        self._forwards: list[float] = []  # when each micro-batch's forward pass began
        self._loss = 0.0

    def _note_forward(self, *_: object) -> None:
        self._forwards.append(time.monotonic())

    def step(self) -> Marks:
        """One step: buffers broadcast, micro-batches, all-reduces in the last one's backward, SGD with momentum."""
        self._forwards.clear()
        start = time.monotonic()
        self._optimizer.zero_grad(set_to_none=True)
        losses = []
        for _ in range(self._micro_batches - 1):
            with self.module.no_sync():
                losses.append(self._micro_batch())
                losses[-1].backward()  # type: ignore[no-untyped-call]
        losses.append(self._micro_batch())
        forward_end = time.monotonic()
        losses[-1].backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        end = time.monotonic()
        self._loss = sum(loss.item() for loss in losses)
        return Marks(
            start, self._forwards[0], forward_end, self._buckets.last_start, end, self._batch,
            self._forwards[-1] - self._forwards[0], loss=self._loss,
        )  # fmt: skip

    def _micro_batch(self) -> torch.Tensor:
        """The loss of the next samples, divided so that those of all micro-batches add up to the whole batch's mean."""
        count = self._batch // self._micro_batches
        images, labels = self._shard.batch(self._taken, count)
        self._taken += count
        loss: torch.Tensor = functional.cross_entropy(self.module(images), labels) / self._micro_batches
        return loss

    def finish(self) -> dict[str, float | None]:
        """The last loss, and on rank 0 the accuracy on held-out images (0 to 1).

        Raises WorkloadError when the ranks' networks have drifted apart.
        """
        self._check()
        accuracy = self._accuracy(self._held_out) if self._seat.rank == 0 else None
        return {"loss": self._loss, "accuracy": accuracy}

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

    @torch.no_grad()
    def _accuracy(self, held_out: Images) -> float:
        net, right, size = self.module.module.eval(), 0, 500
        for first in range(0, len(held_out), size):
            images, labels = held_out.batch(first, min(size, len(held_out) - first))
            right += int((net(images).argmax(dim=1) == labels).sum())
        return right / len(held_out)
