"""Labelled samples: how ranks share them, in what order, and how batches are taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from rig.errors import WorkloadError

CHUNK = 256  # samples that are read at once
Pick = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # indices → inputs and labels


@dataclass(frozen=True)
class Samples:
    """Labelled samples: `order` says which and in what order, `pick` gives some of them as inputs and labels, all below
    `classes`.
    """

    order: torch.Tensor
    pick: Pick
    classes: int

    def __len__(self) -> int:
        return len(self.order)

    def shard(self, rank: int, size: int, seed: int) -> Samples:
        """Every size-th sample of one shuffle that all ranks share; raises WorkloadError when none is left."""
        mixed = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        order = self.order[mixed[rank::size]]
        if len(order) == 0:
            raise WorkloadError(f"data: share {len(self)} samples among {size} ranks: rank {rank} gets none; use fewer")
        return replace(self, order=order)

    def thinned(self, most: int) -> Samples:
        """At most so many of them, evenly spread over all, so that each class keeps its share where they are sorted."""
        return replace(self, order=self.order[:: max(1, -(-len(self) // most))])

    def batch(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` samples from place `first`, around the end: inputs and labels."""
        return self.pick(self.order[torch.arange(first, first + count) % len(self)])

    def on(self, device: torch.device) -> Samples:
        """The same, given on a device."""

        def moved(order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inputs, labels = self.pick(order)
            return inputs.to(device), labels.to(device)

        return replace(self, pick=moved)

    def touch(self, count: int) -> None:
        """Read the first `count` once, so that no step waits for a disk or a decoder."""
        for chunk in torch.split(self.order[:count], CHUNK):
            self.pick(chunk)
