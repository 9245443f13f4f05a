"""Where a rank computes: its CPU, or a GPU of its node; and how the moments of a step are told on each.

A GPU works through what it was asked long after it was asked: a moment is an event in its stream there, and is read
once the step is done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from rig.errors import WorkloadError
from rig.workloads.job import Seat


def seated(seat: Seat, asked: Mapping[str, str]) -> Seat:
    """The seat with the device and the library that a job's `devices` name; an empty one names the CPU and gloo.

    Raises WorkloadError for a GPU, or for NCCL, where PyTorch has none.
    """
    device, backend = chosen(asked.get("device", "cpu")), asked.get("backend", "gloo")
    if backend == "nccl" and not torch.distributed.is_nccl_available():
        raise WorkloadError(f"ranks: join by NCCL: {_torch()} has none; install a CUDA build, or write backend: gloo")
    return replace(seat, device=device, backend=backend)


def chosen(asked: str) -> torch.device:
    """The CPU, or this rank's GPU of those that its node may use; `auto`: where there is one. Raises WorkloadError."""
    count = torch.cuda.device_count() if asked != "cpu" and torch.cuda.is_available() else 0
    if asked == "cuda" and not count:
        raise WorkloadError(
            f"ranks: find the GPU that device: cuda asks for: {_torch()} sees none here; "
            "install a CUDA build of PyTorch where the node's Python finds it, or leave device out"
        )
    if not count:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count)
    torch.cuda.set_device(device)
    return device


def _torch() -> str:
    return f"torch {torch.__version__}"


def seen(device: torch.device) -> dict[str, Any]:
    """What a rank's GPU is and the most memory that its tensors took there (B); nothing of a CPU."""
    if device.type == "cpu":
        return {}
    return {"device": torch.cuda.get_device_name(device), "peak": torch.cuda.max_memory_allocated(device)}


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────
class Clock(Protocol):
    """Tells the moments of a step (time.monotonic(), s); what `now` and `reduced` give is read by `told`, once `end`
    has been called.
    """

    def begin(self) -> float:
        """A step begins."""

    def now(self) -> Any:
        """All that was asked of the device so far is done."""

    def reduced(self) -> Any:
        """An exchange is done; called by what follows it."""

    def end(self) -> float:
        """The step is done."""

    def told(self, moment: Any) -> float:
        """A moment as a number."""


class HostClock:
    """A CPU computes before it returns."""

    def now(self) -> float:
        return time.monotonic()

    begin = end = reduced = now

    def told(self, moment: float) -> float:
        return moment


class GpuClock:
    """Events in the stream of kernels, related to this machine's clock at the start of each step."""

    def __init__(self, device: torch.device, backend: str) -> None:
        self._device, self._in_stream = device, backend == "nccl"
        self._began, self._origin = 0.0, None

    def begin(self) -> float:
        torch.cuda.synchronize(self._device)
        self._origin, self._began = self.now(), time.monotonic()
        return self._began

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def reduced(self) -> Any:
        """NCCL's work is the stream's. gloo's ends on the CPU, where its thread has the stream of everything else."""
        return self.now() if self._in_stream else time.monotonic()

    def end(self) -> float:
        torch.cuda.synchronize(self._device)
        return time.monotonic()

    def told(self, moment: Any) -> float:
        if isinstance(moment, float):
            return moment
        assert self._origin is not None
        return self._began + float(self._origin.elapsed_time(moment)) / 1e3


def clock(seat: Seat) -> Clock:
    """The clock of what a rank computes on."""
    return HostClock() if seat.device.type == "cpu" else GpuClock(seat.device, seat.backend)
