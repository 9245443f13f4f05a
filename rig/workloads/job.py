"""How a rank learns what to do and who it is: a JSON job on standard input, its seat in the environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # dist.TCPStore, under a name type checkers know

from rig.errors import WorkloadError


@dataclass(frozen=True)
class Seat:
    """One rank's place among all, as torchrun's variables tell it; alone when they are absent."""

    rank: int
    size: int
    store: tuple[str, int]  # address and port of the rendezvous store; port 0: any free one
    interface: str | None  # what gloo binds, and what the wire bytes are counted on
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: str = "gloo"  # or nccl

    @classmethod
    def from_environment(cls) -> Seat:
        """Read RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME."""
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            size=int(os.environ.get("WORLD_SIZE", "1")),
            store=(os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))),
            interface=os.environ.get("GLOO_SOCKET_IFNAME"),
        )


def read_job(kind: str) -> dict[str, Any]:
    """The job on standard input; raises WorkloadError unless it is one JSON object of that kind."""
    try:
        job = json.loads(sys.stdin.read())
    except ValueError as error:
        raise WorkloadError(f"{kind}: read a job on standard input: {error}; give one JSON document") from error
    if not isinstance(job, dict) or job.get("kind") != kind:
        raise WorkloadError(f"{kind}: read a job on standard input: it is not of kind {kind!r}; start its own module")
    return job


@contextmanager
def joined(seat: Seat) -> Iterator[int]:
    """Membership of the group of all ranks; yields the store's port, whose traffic is not training's.

    All ranks leave together: closing a socket while a peer still reads from it would reset the connection.
    """
    address, port = seat.store
    try:
        store = TCPStore(address, port, seat.size, seat.rank == 0)
    except RuntimeError as error:  # torch.distributed.DistNetworkError among them
        raise WorkloadError(
            f"rendezvous: {'open' if seat.rank == 0 else 'reach'} the store at {address}:{port}: {_first_line(error)}; "
            "end what else has that port, or look at rank 0"
        ) from error
    bound = seat.device if seat.backend == "nccl" else None
    dist.init_process_group(seat.backend, store=store, rank=seat.rank, world_size=seat.size, device_id=bound)
    try:
        yield store.port
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def run(main: Callable[[], None]) -> NoReturn:
    """Run a rank to its end; what it refuses is said in one sentence, exit status 1.

    Leaves at once: dismantling torch's modules takes each rank up to a second for nothing.
    """
    status = 0
    try:
        main()
    except WorkloadError as error:
        sys.stderr.write(f"{error}\n")
        status = 1
    sys.stderr.flush()
    os._exit(status)
