"""One all-reduce of float32 a step, one rank: `python -m rig.workloads.allreduce < job.json`."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rig.errors import WorkloadError
from rig.node.counters import Meter
from rig.node.stream import Stream
from rig.workloads.devices import Clock, clock, seated, seen
from rig.workloads.job import Seat, joined, read_job, run
from rig.workloads.steps import Marks, StepLog


def main() -> None:
    """Sum `size` bytes over all ranks `warmup` + `steps` times, checked each time; raises WorkloadError."""
    stream = Stream()
    job = read_job("allreduce")
    seat = seated(Seat.from_environment(), job.get("devices", {}))
    if job["size"] < 4 or job["size"] % 4:
        raise WorkloadError(
            f"allreduce: fill {job['size']} bytes with float32: its elements have 4 bytes; use a multiple"
        )
    stream.emit("hello", torch=torch.__version__, rank=seat.rank, size=seat.size, threads=torch.get_num_threads())
    with joined(seat) as port:
        tensor = torch.empty(job["size"] // 4, device=seat.device)
        moments = clock(seat)
        log = StepLog(stream, Meter(port, seat.interface), job["warmup"])
        for step in range(job["warmup"] + job["steps"]):
            tensor.fill_(seat.rank + 1)
            marks = timed(tensor, moments)
            log.write(step, marks, [[marks.start, marks.end, tensor.nbytes]])
            check(tensor, seat.size)
    stream.emit("done", loss=None, accuracy=None, **seen(seat.device))


def timed(tensor: torch.Tensor, moments: Clock) -> Marks:
    """One all-reduce, as a step that computes nothing."""
    start = moments.begin()
    dist.all_reduce(tensor)
    return Marks(start, start, start, start, moments.end())


def check(tensor: torch.Tensor, size: int) -> None:
    """Raise WorkloadError unless every element is 1 + 2 + … + size, which float32 holds exactly."""
    expected = size * (size + 1) / 2
    low, high = (bound.item() for bound in tensor.aminmax())
    if (low, high) != (expected, expected):
        raise WorkloadError(
            f"allreduce: check the sum over {size} ranks: found {low} to {high}, expected {expected}; "
            "the collective is broken, do not trust this run"
        )


if __name__ == "__main__":
    run(main)
