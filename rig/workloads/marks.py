"""What a step is made of: the moments that matter, and one line per step. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from rig.node.counters import Meter
from rig.node.stream import Stream


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
    loading: float = 0.0  # s from start until a script called its forward pass: it waits for data, not for others


class StepLog:
    """Streams one line per step with the counters' growth since the line before, outside the timed part."""

    def __init__(self, stream: Stream, meter: Meter, warmup: int) -> None:
        self._stream = stream
        self._meter = meter
        self._warmup = warmup
        self._last = meter.read()

    def skip(self) -> None:
        """What was sent since the last line belongs to no step."""
        self._last = self._meter.read()

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
