"""What ranks are told of GPUs and of NCCL, so that every node has its share of the cards and its traffic its cable.

A node is a host of its own to NCCL (src/misc/utils.cc, getHostHash: NCCL_HOSTID, else hostname and boot id), so two
nodes never meet in shared memory or by a peer's memory, also where they share a card.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.model import Case, Node
from rig.work import Algorithm

# NCCL 2.24 and later take an algorithm for one collective; a broadcast knows the ring only.
ALGORITHMS: Mapping[Algorithm, Mapping[str, str]] = {
    "ring": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
    "tree": {"NCCL_ALGO": "Ring;allreduce:Tree", "NCCL_PROTO": "Simple"},
    "auto": {"NCCL_PROTO": "Simple"},
}
ALWAYS: Mapping[str, str] = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",  # NVLink between hosts, of one rack
    "NCCL_RAS_ENABLE": "0",  # its keep-alives would be counted
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # from 2.30 on; what is older takes no notice
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING",
    "NCCL_DEBUG_FILE": "/proc/self/fd/2",  # opened with line buffering; stdout's lines are lost as a rank leaves
}
ALONE: Mapping[str, str] = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}  # one rank has no neighbour in its node


def cards() -> tuple[str, ...] | None:
    """The GPUs that nodes may have, as CUDA_VISIBLE_DEVICES names them: those this process may use, or all that have a
    device file. None where there is no such file: an engine may hand on those of another machine.
    """
    mine = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mine is not None:
        return tuple(filter(None, (name.strip() for name in mine.split(","))))
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(sorted(numbers, key=int)) or None


def environment(case: Case, node: Node, given: Sequence[str] | None) -> dict[str, str]:
    """The variables of a node's ranks. `given`: the cards that nodes share, round robin; none hides all, None leaves it
    to CUDA, as where nobody knows how many there are.
    """
    place = int(node.name.removeprefix("n"))  # silent siblings follow the nodes
    seen = {} if given is None else {"CUDA_VISIBLE_DEVICES": ",".join(share(given, place, node.ranks))}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the device files, and NVML, count
        **seen,
        "NCCL_HOSTID": node.name,
        **ALWAYS,
        **(ALONE if node.ranks == 1 else {}),
        **ALGORITHMS[case.devices.algorithm],
    }


def share(given: Sequence[str], place: int, ranks: int) -> tuple[str, ...]:
    """A node's cards: one a rank, counted on from the nodes before it, and from the first again where they run out."""
    picked = (given[(place * ranks + rank) % len(given)] for rank in range(ranks) if given)
    return tuple(dict.fromkeys(picked))


def offered(facts: Mapping[str, Any]) -> Sequence[str] | None:
    """The cards of a lab with these facts: none where it hands on no GPU."""
    return cards() if facts.get("gpu") else ()
