"""What a step's collectives send over NCCL's sockets. Bytes, one rank a node, NCCL_PROTO=Simple.

Its transport puts a size of 4 B before each piece of up to 512 KiB (src/transport/net_socket.cc), which is left out:
0.001 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rig.formulas import collectives
from rig.model import Case
from rig.results import Predicted
from rig.work import Algorithm


def nccl_broadcast_payload(size: float, ranks: int) -> tuple[float, ...]:
    """What each rank sends in NCCL's broadcast from rank 0, by rank: S from all but the last.

    A chain along the ring, whatever the all-reduce's algorithm is (src/graph/tuning.cc), here in rank order.
    """
    return tuple(0.0 if rank == ranks - 1 else float(size) for rank in range(ranks))


def nccl_step_payload(
    reduced: Sequence[int], broadcasts: Sequence[int], ranks: int, algorithm: Algorithm
) -> tuple[float, ...]:
    """What each rank sends in a step with all-reduces and broadcasts of so many bytes, by rank; for `auto`, the mean
    over ranks alone, which is known all the same: ring and tree send 2(N−1)·S in all.
    """
    sent = _SENT[algorithm](sum(reduced), ranks)
    chains = [nccl_broadcast_payload(size, ranks) for size in broadcasts]
    each = [own + sum(chain[rank] for chain in chains) for rank, own in enumerate(sent)]
    return (fmean(each),) if algorithm == "auto" else tuple(each)


def _ring(size: float, ranks: int) -> tuple[float, ...]:
    return (collectives.nccl_ring_payload(size, ranks),) * ranks


_SENT: Mapping[Algorithm, Callable[[float, int], tuple[float, ...]]] = {
    "ring": _ring,
    "tree": collectives.nccl_tree_payload,
    "auto": _ring,
}


def payload(case: Case, reduced: Sequence[int], broadcasts: Sequence[int], inputs: Mapping[str, Any]) -> Predicted:
    """The payload of a case's step; by node unknown where NCCL chooses the algorithm. `inputs` are told with it."""
    algorithm = case.devices.algorithm
    each = nccl_step_payload(reduced, broadcasts, case.size, algorithm)
    told = {**inputs, "algorithm": algorithm, "protocol": "Simple"}
    return Predicted(fmean(each), "B", "nccl_step_payload", told, each if algorithm != "auto" else ())
