"""What paced compute sends in place of gradients made smaller, or of parameters: tensors of as many bytes.

Their making is left out, as all arithmetic of paced compute is: a GPU does it within its pace, this host would take
longer than the step. What the collectives make of them is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, under a name type checkers know
from torch.futures import Future

from rig.errors import WorkloadError
from rig.workloads.hooks import SCALE, in_order
from rig.workloads.steps import Hook

WORTH = 2  # powerSGD_hook's min_compression_rate


@dataclass(frozen=True)
class Part:
    """One collective: so many elements of each rank, summed on their way or gathered."""

    numel: int
    dtype: torch.dtype = torch.float32
    gathered: bool = False


def parts(exchange: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> list[Part]:
    """The collectives of a bucket whose tensors have these shapes, by the methods of `hooks.HOOKS`."""
    numel = sum(prod(shape) for shape in shapes)
    match exchange["method"]:
        case "fp16":
            return [Part(numel, torch.float16)]
        case "bf16":
            return [Part(numel, torch.bfloat16)]
        case "topk":
            return [Part(2 * ceil(exchange["share"] / 1e9 * numel), torch.int32, gathered=True)]
        case "quantized":
            return [Part(SCALE + numel, torch.uint8, gathered=True)]
    return [Part(count) for count in _factors(shapes, exchange["rank"]) if count]


def _factors(shapes: Sequence[Sequence[int]], rank: int) -> tuple[int, int, int]:
    """Elements that powerSGD_hook sums: those of tensors that stay whole, then those of all P and of all Q."""
    whole = left = right = 0
    for shape in shapes:
        n, m = shape[0] if shape else 1, prod(shape[1:])
        if (n + m) * rank * WORTH < n * m:
            left, right = left + n * rank, right + m * rank
        else:
            whole += n * m
    return whole, left, right


class StandIn:
    """One tensor that is summed or gathered; `rank` says what it is filled with."""

    def __init__(self, part: Part, rank: int, size: int) -> None:
        self.part, self._rank = part, rank
        self.tensor = torch.full((part.numel,), rank + 1, dtype=part.dtype)
        self.gathered = [torch.empty_like(self.tensor) for _ in range(size)] if part.gathered else []

    def renew(self) -> None:
        """As it was before it was summed; between steps, which nobody times."""
        if not self.gathered:
            self.tensor.fill_(self._rank + 1)

    def exchange(self, group: dist.ProcessGroup | None = None) -> None:
        """Among a group of ranks, or all, to the end."""
        if self.gathered:
            dist.all_gather(self.gathered, self.tensor, group)
        else:
            dist.all_reduce(self.tensor, group=group)

    def taken(self) -> torch.Tensor:
        """What a server sums in place of gradients."""
        return self.tensor

    def given(self, total: torch.Tensor) -> None:
        """The sum came back; it is the same tensor."""

    def check(self) -> None:
        """Raise WorkloadError unless every element is the sum over ranks, or the rank's that it came from."""
        size = dist.get_world_size()
        if self.gathered:
            for rank, tensor in enumerate(self.gathered):
                _compare(tensor, rank + 1)
        else:
            _compare(self.tensor, size * (size + 1) / 2)


def _compare(tensor: torch.Tensor, expected: float) -> None:
    low, high = (bound.item() for bound in tensor.aminmax())
    off = max(1e-3, torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0.0  # what the type can tell
    if not expected * (1 - off) <= low <= high <= expected * (1 + off):
        raise WorkloadError(
            f"ddp: check what was exchanged: found {low:g} to {high:g}, expected {expected:g} throughout; "
            "the collective is broken, do not trust this run"
        )


class StandIns:
    """The stand-ins of every bucket, exchanged by DDP's communication hook."""

    def __init__(self, exchange: Mapping[str, Any], rank: int, size: int) -> None:
        self._exchange, self._rank, self._size = exchange, rank, size
        self._kept: dict[int, list[StandIn]] = {}  # by bucket
        self.hook: Hook = self._summed if exchange["method"] in ("fp16", "bf16") else in_order(self._in_turn)

    def renew(self) -> None:
        """Before a step."""
        for each in self._kept.values():
            for one in each:
                one.renew()

    def check(self) -> None:
        """After the last step. Raises WorkloadError where a collective gave something else than it must."""
        for each in self._kept.values():
            for one in each:
                one.check()

    def _of(self, bucket: GradBucket) -> list[StandIn]:
        """Made anew where DDP has rebuilt its buckets."""
        wanted = parts(self._exchange, [tensor.shape for tensor in bucket.gradients()])
        kept = self._kept.get(bucket.index(), [])
        if [one.part for one in kept] != wanted:
            self._kept[bucket.index()] = kept = [StandIn(part, self._rank, self._size) for part in wanted]
        return kept

    def _summed(self, _: object, bucket: GradBucket) -> Future[torch.Tensor]:
        [one] = self._of(bucket)
        work = dist.all_reduce(one.tensor, async_op=True)
        assert work is not None  # None only for ranks outside the group
        done: Future[torch.Tensor] = work.get_future().then(lambda _: bucket.buffer())
        return done

    def _in_turn(self, bucket: GradBucket) -> torch.Tensor:
        for one in self._of(bucket):
            one.exchange()
        return bucket.buffer()
