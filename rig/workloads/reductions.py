"""Times all-reduces for `rig calibrate`, one rank: `python -m rig.workloads.reductions`, its job as one line on stdin.

The job: {"rank", "size", "store": [address, port], "interface", "cpus": [cpu, …] or null, "bytes": [{"size",
"warmup", "count"}, …]}. For each size it says {"event": "reduced", "size", "spans": [[start, end], …]}, s on
CLOCK_MONOTONIC, which all nodes of a lab on one machine share. Nothing is logged meanwhile: that would be timed too.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from rig.node.stream import Stream
from rig.workloads.job import Seat, joined, run

PAUSE = 0.005  # s before each: in training, too, a bucket comes when the threads that send it have gone to sleep


def main() -> None:
    """Do what the job says. Raises WorkloadError where the ranks cannot find one another."""
    job, stream = json.loads(sys.stdin.readline()), Stream()
    os.environ["GLOO_SOCKET_IFNAME"] = job["interface"]
    if job["cpus"]:
        os.sched_setaffinity(0, job["cpus"])
    torch.set_num_threads(1)
    address, port = job["store"]
    with joined(Seat(job["rank"], job["size"], (address, port), job["interface"])):
        for one in job["bytes"]:
            spans = timed(one["size"], one["warmup"] + one["count"])
            stream.emit("reduced", size=one["size"], spans=spans[one["warmup"] :])


def timed(size: int, count: int) -> list[tuple[float, float]]:
    """Start and end of so many all-reduces of `size` bytes of float32, each begun by all ranks together."""
    tensor, spans = torch.zeros(size // 4), []
    for _ in range(count):
        time.sleep(PAUSE)
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(tensor)
        spans.append((start, time.monotonic()))
    return spans


if __name__ == "__main__":
    run(main)
