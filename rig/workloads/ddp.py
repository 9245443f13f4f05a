"""Data-parallel training, one rank: `python -m rig.workloads.ddp < job.json`.

A training is anything with `module`, `step() -> Marks`, and `finish()`, which checks what was
computed and returns `loss` and `accuracy`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rig.node.counters import Meter
from rig.node.stream import Stream
from rig.workloads.devices import clock, seated, seen
from rig.workloads.job import Seat, joined, read_job, run
from rig.workloads.paced import PacedTraining
from rig.workloads.real import RealTraining
from rig.workloads.steps import Buckets, StepLog
from rig.workloads.tasks import due

TRAININGS: dict[str, type[PacedTraining] | type[RealTraining]] = {"paced": PacedTraining, "real": RealTraining}


def main() -> None:
    """Train, and report every step. Raises WorkloadError when a reduction or the data is wrong."""
    stream = Stream()
    job = read_job("ddp")
    seat = seated(Seat.from_environment(), job.get("devices", {}))
    stream.emit("hello", torch=torch.__version__, rank=seat.rank, size=seat.size, threads=torch.get_num_threads())
    with joined(seat) as port:
        train(job, seat, stream, Meter(port, seat.interface))


def train(job: dict[str, Any], seat: Seat, stream: Stream, meter: Meter) -> None:
    """Run warm-up and steps; emits "step" for each, "layout" once DDP has settled its buckets, and "done"."""
    buckets = Buckets(clock(seat))
    training = TRAININGS[job["compute"]](job, seat, buckets)
    log = StepLog(stream, meter, job["warmup"])
    steps = job["warmup"] + job["steps"]
    for step in range(steps):
        buckets.clear()
        log.write(step, training.step(), buckets.spans)
        if step == min(1, steps - 1):  # DDP rebuilds its buckets after the first backward
            stream.emit("layout", **layout(training, buckets))
            buckets.notes_members = False
        if isinstance(training, RealTraining) and due(job, step):
            evaluate(training, step, stream)
            log.skip()
    stream.emit("done", **training.finish(), **seen(seat.device))


def evaluate(training: RealTraining, step: int, stream: Stream) -> None:
    """Rank 0 looks at samples that are held out, and emits "evaluated"; the others wait. No step is charged for it."""
    if found := training.evaluate():
        stream.emit("evaluated", step=step, **found)
    dist.barrier()


def layout(training: PacedTraining | RealTraining, buckets: Buckets) -> dict[str, list[Any]]:
    """Bytes of each bucket, the parameters in it as indices in registration order, and their shapes, in hook order."""
    index = {id(parameter): place for place, parameter in enumerate(training.module.parameters())}
    return {
        "buckets": [int(span[2]) for span in buckets.spans],
        "tensors": [[index[id(parameter)] for parameter in members] for members in buckets.members],
        "shapes": [[list(parameter.shape) for parameter in members] for members in buckets.members],
        "broadcasts": broadcasts(training.module),
    }


def broadcasts(module: nn.Module) -> list[int]:
    """Bytes of what DDP sends from rank 0 before a forward pass: a model's buffers, joined by dtype."""
    sizes: dict[torch.dtype, int] = {}
    for buffer in module.buffers():
        sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.nbytes
    return list(sizes.values())


if __name__ == "__main__":
    run(main)
