"""Data-parallel training, one rank: `python -m rig.workloads.ddp < job.json`.

A training is anything with `module`, `step() -> Marks`, and `finish()`, which checks what was
computed and returns `loss` and `accuracy`.
"""

from __future__ import annotations

from typing import Any

import torch

from rig.node.counters import Meter
from rig.node.stream import Stream
from rig.workloads.job import Seat, joined, read_job, run
from rig.workloads.paced import PacedTraining
from rig.workloads.real import RealTraining
from rig.workloads.steps import Buckets, StepLog

TRAININGS: dict[str, type[PacedTraining] | type[RealTraining]] = {"paced": PacedTraining, "real": RealTraining}


def main() -> None:
    """Train, and report every step. Raises WorkloadError when a reduction or the data is wrong."""
    stream = Stream()
    job, seat = read_job("ddp"), Seat.from_environment()
    stream.emit("hello", torch=torch.__version__, rank=seat.rank, size=seat.size, threads=torch.get_num_threads())
    with joined(seat) as port:
        train(job, seat, stream, Meter(port, seat.interface))


def train(job: dict[str, Any], seat: Seat, stream: Stream, meter: Meter) -> None:
    """Run warm-up and steps; emits "step" for each, "layout" once DDP has settled its buckets, and "done"."""
    buckets = Buckets()
    training = TRAININGS[job["compute"]](job, seat, buckets)
    log = StepLog(stream, meter, job["warmup"])
    steps = job["warmup"] + job["steps"]
    for step in range(steps):
        buckets.clear()
        log.write(step, training.step(), buckets.spans)
        if step == min(1, steps - 1):  # DDP rebuilds its buckets after the first backward
            stream.emit("layout", **layout(training, buckets))
            buckets.notes_members = False
    stream.emit("done", **training.finish())


def layout(training: PacedTraining | RealTraining, buckets: Buckets) -> dict[str, list[Any]]:
    """Bytes of each bucket, and the parameters in it as indices in registration order, in hook order."""
    index = {id(parameter): place for place, parameter in enumerate(training.module.parameters())}
    return {
        "buckets": [int(span[2]) for span in buckets.spans],
        "tensors": [[index[id(parameter)] for parameter in members] for members in buckets.members],
    }


if __name__ == "__main__":
    run(main)
