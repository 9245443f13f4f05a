"""What several machines gain over one."""

from __future__ import annotations

from collections.abc import Sequence

from rig.work import Job


def throughput(batches: Sequence[int], step_time: float) -> float:
    """Samples per second of all machines together, from samples per step and machine, and seconds per step."""
    return sum(batches) / step_time


def speedup(throughput_all: float, throughput_one: float) -> float:
    """How many times the samples per second of one machine; N at best."""
    return throughput_all / throughput_one


def bus_bandwidth(size: int, nodes: int, seconds: float) -> float:
    """What an all-reduce of `size` bytes makes of each link, in bit/s: 2(N−1)/N · S · 8 ÷ t (nccl-tests' busbw)."""
    return 2 * (nodes - 1) / nodes * size * 8 / seconds


def efficiency(speedup_all: float, nodes: int) -> float:
    """Speed-up per machine, 1 at best."""
    return speedup_all / nodes


def time_to_train(job: Job, batches: Sequence[int], step_time: float) -> float:
    """Seconds a whole job takes at one step every `step_time` s: its steps, or its samples ÷ samples of all machines a
    step. Start-up, evaluation and checkpoints come on top.
    """
    return (job.steps or job.samples / sum(batches)) * step_time
