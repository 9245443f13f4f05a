"""Parameters that are exchanged after every so many steps: averaged, among groups too, or by DiLoCo's outer optimizer.

Torch's averagers (torch.distributed.algorithms.model_averaging) count from a first step that exchanges; here the
periods begin with the first step that counts, so that each of them ends in an exchange. The averaging is torch's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters


class Rounds:
    """Which ranks exchange after which step."""

    def __init__(self, exchange: Mapping[str, Any], warmup: int, size: int) -> None:
        """Makes the groups, which all ranks must do together."""
        self._warmup, self._every = warmup, int(exchange["every"])
        self._whole, self._group = self._every, None
        if exchange["method"] == "hierarchical":
            self._whole = exchange["every_all"]
            if exchange["group"] < size:
                self._group, _ = dist.new_subgroups(group_size=exchange["group"])  # type: ignore[no-untyped-call]

    def due(self, step: int) -> bool:
        """Whether a step, counted from 0, is followed by an exchange; the last one of the warm-up always is."""
        return (step + 1 - self._warmup) % self._every == 0

    def group(self, step: int) -> dist.ProcessGroup | None:
        """Who takes part in it; None is all ranks."""
        return None if (step + 1 - self._warmup) % self._whole == 0 else self._group


class Average:
    """Averages parameters in place (local SGD, arXiv 1805.09767; hierarchical SGD, arXiv 2010.12998)."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def exchange(self, group: dist.ProcessGroup | None) -> None:
        """One all-reduce of all of them among a group."""
        average_parameters(iter(self._parameters), _ranks(group))


class Outer:
    """DiLoCo's outer step (arXiv 2311.08105): SGD with Nesterov momentum on how far ranks went since the last one, on
    average.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], exchange: Mapping[str, Any]) -> None:
        """Keeps a copy of the parameters: where all ranks set out from."""
        self._parameters = parameters
        self._origin = [parameter.detach().clone() for parameter in parameters]
        momentum = exchange["outer_momentum"]
        self._optimizer = torch.optim.SGD(
            self._origin, lr=exchange["outer_lr"], momentum=momentum, nesterov=momentum > 0
        )

    @torch.no_grad()
    def exchange(self, group: dist.ProcessGroup | None) -> None:
        """One all-reduce of all differences; every rank then goes on from the same parameters."""
        ways = [origin - own for origin, own in zip(self._origin, self._parameters, strict=True)]
        average_parameters(iter(ways), _ranks(group))  # type: ignore[arg-type]  # it asks for no more than tensors
        for origin, way in zip(self._origin, ways, strict=True):
            origin.grad = way
        self._optimizer.step()
        for origin, own in zip(self._origin, self._parameters, strict=True):
            own.copy_(origin)


def _ranks(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    whole = dist.group.WORLD
    assert whole is not None  # there is one: ranks have joined
    return group or whole
