"""What a step exchanges: every bucket's all-reduce, seen from DDP's communication hook. See `marks` for its moments.

No `from __future__ import annotations` here: DDP looks at the hook's annotations and refuses strings.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, under a name type checkers know
from torch.futures import Future

from rig.workloads.devices import Clock, HostClock
from rig.workloads.marks import Marks, StepLog

__all__ = ["Buckets", "Hook", "Marks", "StepLog", "averaged", "summed"]

Hook = Callable[[object, GradBucket], Future[torch.Tensor]]


def summed(_: object, bucket: GradBucket) -> Future[torch.Tensor]:
    """Sum a bucket over the ranks: right where each rank's gradients are divided by their number already."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None  # None only for ranks outside the group
    first: Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return first


def averaged(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
    """What DDP does without a hook: divide by the number of ranks, then sum over them."""
    bucket.buffer().div_(dist.get_world_size())
    return summed(state, bucket)


class Buckets:
    """Start, end and bytes of each bucket's all-reduce in one step, as `hook` sees them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or HostClock()
        self.spans: list[list[Any]] = []  # [start, end, bytes], in the order the hook was called; numbers once settled
        self.members: list[list[torch.Tensor]] = []  # the parameters in each, while `notes_members`
        self.notes_members = True  # costs a millisecond a step, which delays what follows

    def clear(self) -> None:
        """Forget the step before."""
        self.spans = []
        self.members = []

    def hook(self, inner: Hook) -> Hook:
        """The DDP communication hook that notes what `inner` does; DDP permits only one."""

        def noted(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
            span = [self._clock.now(), 0.0, bucket.buffer().nbytes]
            self.spans.append(span)
            if self.notes_members:
                self.members.append(bucket.parameters())

            def ended(done: Future[torch.Tensor]) -> torch.Tensor:  # in the thread that completes the bucket
                span[1] = self._clock.reduced()
                return done.value()

            return inner(state, bucket).then(ended)

        return noted

    @contextmanager
    def noting(self, size: int) -> Iterator[None]:
        """While this lasts, `size` bytes are exchanged that no hook sees."""
        span = [self._clock.now(), 0.0, size]
        self.spans.append(span)
        yield
        span[1] = self._clock.reduced()

    def settle(self) -> None:
        """Tell the moments as numbers, once the clock's step has ended; a CPU's are."""
        for span in self.spans:
            span[:2] = map(self._clock.told, span[:2])

    @property
    def last_end(self) -> float:
        """When the last bucket was reduced. Raises ValueError before the first hook call."""
        last: float = max(span[1] for span in self.spans)
        return last

    @property
    def last_start(self) -> float:
        """When the last gradient was ready. Raises IndexError before the first hook call."""
        last: float = max(span[0] for span in self.spans)
        return last
