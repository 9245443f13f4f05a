"""What a step is made of: the moments that matter, every bucket's all-reduce, and one line per step.

No `from __future__ import annotations` here: DDP looks at the hook's annotations and refuses strings.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, under a name type checkers know
from torch.futures import Future

from rig.node.counters import Meter
from rig.node.stream import Stream

Hook = Callable[[object, GradBucket], Future[torch.Tensor]]


@dataclass(frozen=True)
class Marks:
    """The moments of one step (time.monotonic(), s) and what it was about."""

    start: float
    forward_start: float  # the first layer's, after DDP broadcast the buffers
    forward_end: float  # the loss of the last micro-batch is known
    backward_end: float  # the last gradient is ready: its bucket's hook was called
    end: float  # the optimizer is done
    samples: int = 0
    earlier: float = 0.0  # s from forward_start to the forward pass of the last micro-batch: all others
    late: float = 0.0  # the worst lateness of a paced wait that something waits for (s)
    late_any: float = 0.0  # the worst of all paced waits
    loss: float | None = None


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

    def __init__(self) -> None:
        self.spans: list[list[float]] = []  # [start, end, bytes], in the order the hook was called
        self.members: list[list[torch.Tensor]] = []  # the parameters in each, while `notes_members`
        self.notes_members = True  # costs a millisecond a step, which delays what follows

    def clear(self) -> None:
        """Forget the step before."""
        self.spans = []
        self.members = []

    def hook(self, inner: Hook) -> Hook:
        """The DDP communication hook that notes what `inner` does; DDP permits only one."""

        def noted(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
            span = [time.monotonic(), 0.0, bucket.buffer().nbytes]
            self.spans.append(span)
            if self.notes_members:
                self.members.append(bucket.parameters())

            def ended(done: Future[torch.Tensor]) -> torch.Tensor:  # in the thread that completes the bucket
                span[1] = time.monotonic()
                return done.value()

            return inner(state, bucket).then(ended)

        return noted

    @property
    def last_end(self) -> float:
        """When the last bucket was reduced. Raises ValueError before the first hook call."""
        return max(span[1] for span in self.spans)

    @property
    def last_start(self) -> float:
        """When the last gradient was ready. Raises IndexError before the first hook call."""
        return max(span[0] for span in self.spans)


class StepLog:
    """Streams one line per step with the counters' growth since the line before, outside the timed part."""

    def __init__(self, stream: Stream, meter: Meter, warmup: int) -> None:
        self._stream = stream
        self._meter = meter
        self._warmup = warmup
        self._last = meter.read()

    def write(self, step: int, marks: Marks, buckets: list[list[float]]) -> None:
        """Emit a step: times in s, bytes sent by this rank (payload) and on its cable (wire)."""
        reading = self._meter.read()
        grown, self._last = reading - self._last, reading
        self._stream.emit(
            "step",
            step=step,
            warmup=step < self._warmup,
            buckets=buckets,
            payload=grown.payload,
            wire=grown.wire,
            run_delay=grown.run_delay,
            **vars(marks),
        )
