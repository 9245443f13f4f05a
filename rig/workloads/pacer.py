"""When the parts of a paced step are due: absolute deadlines, and how late a rank was for them. No torch."""

from __future__ import annotations

import ctypes
import os
import time
from itertools import accumulate
from typing import Any

_PR_SET_TIMERSLACK = 29  # include/uapi/linux/prctl.h


def sharpen_timer() -> None:
    """Let sleeps end on time: Linux otherwise adds up to 50 µs of slack to each (prctl(2)). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"paced: set the timer slack to 1 ns: {os.strerror(number)}")


class Pacer:
    """The deadlines of one step, all absolute, and how late waits ended (s).

    `late` is the worst of those that something waits for: a layer that completes a bucket, the end of backward, the
    optimizer. `late_any` is the worst of all: a layer between may be late and be made up for by the next.
    """

    def __init__(self, flops: list[float], pace: dict[str, Any], dilation: float) -> None:
        """`flops` are shares in registration order, for whichever direction `pace` gives none; it is undilated (s)."""
        forward, backward, self._optimizer = (pace[key] * dilation for key in ("forward", "backward", "optimizer"))
        self._span = forward + backward
        self._forward = [forward * share for share in _through(pace.get("forward_shares") or flops)]
        # backward runs from the last layer to the first: layer i is done when layers i… have had their share
        back = _through((pace.get("backward_shares") or flops)[::-1])
        self._backward = [forward + backward * share for share in reversed(back)]
        self.began = self.start = self.late = self.late_any = self._last = 0.0

    def begin(self) -> None:
        """The step's first forward starts now."""
        self.began = self.start = time.monotonic()
        self.late = self.late_any = 0.0

    def micro_batch(self) -> None:
        """Wait until a whole micro-batch is done; the next one's forward starts when that was due."""
        self.start += self._span
        self._until(self.start)

    def count(self) -> None:
        """Something waited for the wait that ended last."""
        self.late = max(self.late, self._last)

    def forward(self, layer: int) -> None:
        """Wait until this layer's forward is done."""
        self._until(self.start + self._forward[layer])

    def backward(self, layer: int) -> None:
        """Wait until this layer's backward is done, had it begun at the planned end of forward."""
        self._until(self.start + self._backward[layer])

    def optimizer(self, reduced: float) -> None:
        """Wait until the optimizer is done, had it begun when backward was and the last gradient was `reduced`."""
        self.count()  # the end of backward
        self._until(max(reduced, self.start + self._backward[0]) + self._optimizer)
        self.count()

    def _until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)
        self._last = time.monotonic() - deadline
        self.late_any = max(self.late_any, self._last)


def _through(shares: list[float]) -> list[float]:
    """What is done when each layer is, as a share of the whole."""
    whole = sum(shares)
    return [share / whole for share in accumulate(shares)]
