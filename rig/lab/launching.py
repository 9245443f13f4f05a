"""What the launchers of a case's nodes are told: each rank's seat, its variables, its command and its CPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rig.fabric import NODE_END
from rig.lab import Lab, gpus, siblings
from rig.model import Case, Node
from rig.work import Script
from rig.workloads import WORKLOADS

PORT = 29500  # of the rendezvous store; inside a lab nothing else can have it

Order = dict[str, Any]  # {"ranks", "cpus", "script"}: see rig.node.launch


def order(lab: Lab, case: Case, place: int) -> Order:
    """What the launcher of the case's node number `place` is told."""
    node = case.nodes[place]
    return _order(lab, case, case.nodes, place, job(case, node)) | {"cpus": cpus(case, place)}


def beside(lab: Lab, case: Case) -> dict[str, Order]:
    """What the launchers of its silent siblings are told, by node: each is a world of its own, and does not end before
    the one that is measured if that is in the rig's hands.
    """
    endless = {"steps": siblings.ENDLESS}
    return {
        node.name: _order(lab, case, (node,), 0, {**job(case, node), **endless})
        | {"cpus": cpus(case, case.size + number)}
        for number, node in enumerate(siblings.siblings(case))
    }


def processes(case: Case) -> int:
    """How many processes the launchers start: one a rank, or one torchrun a node."""
    return case.size if _by_torchrun(case) else len(case.seats)


def job(case: Case, node: Node) -> dict[str, Any]:
    """The document a rank gets on its stdin: its workload, with its own batch and pace."""
    document = asdict(case.workload)
    pace = asdict(node.pace) if node.pace else None
    return {"kind": case.workload.kind, **document, "batch": node.batch, "pace": pace, "dilation": case.dilation}


def cpus(case: Case, place: int) -> list[int] | None:
    """A node's own CPUs where there are enough for all, silent siblings included, which come last; None where they must
    share, each with an equal weight.
    """
    mine = sorted(os.sched_getaffinity(0))
    wanted = [node.threads * node.ranks for node in siblings.crowded(case).nodes]
    first = sum(wanted[:place])
    return None if sum(wanted) > len(mine) else mine[first : first + wanted[place]]


def _order(lab: Lab, case: Case, world: Sequence[Node], place: int, work: Mapping[str, Any]) -> Order:
    """`world`: all nodes that train together, of which this is number `place`."""
    node, shared = world[place], _shared(lab, case, world, place)
    first = sum(one.ranks for one in world[:place])
    if not isinstance(case.workload, Script):
        argv = [*lab.python, "-m", WORKLOADS[case.workload.kind]]
        seats = _seats(world, place)
        return {"ranks": [_rank(seat, argv, shared | seat, work) for seat in seats]}
    files = {"folder": case.workload.folder, "copied": case.workload.files == "copied", "scratch": lab.scratch}
    shared |= {"RIG_WARMUP": str(case.workload.warmup), "RIG_STEPS": str(case.workload.steps)}
    if _by_torchrun(case):
        ranks = [{"rank": first, "argv": _torchrun(case.workload, world, place), "env": shared, "job": None}]
    else:
        ranks = [_rank(seat, case.workload.command, shared | seat, None) for seat in _seats(world, place)]
    return {"ranks": ranks, "script": {**files, "first": first, "count": node.ranks}}


def _rank(seat: Mapping[str, str], argv: Sequence[str], env: Mapping[str, str], work: Any) -> dict[str, Any]:
    return {"rank": int(seat["RANK"]), "argv": list(argv), "env": dict(env), "job": work}


def _seats(world: Sequence[Node], place: int) -> list[dict[str, str]]:
    """What torchrun would tell each rank of a node of its place among all (its "Environment Variables")."""
    first = sum(node.ranks for node in world[:place])
    size, local = sum(node.ranks for node in world), world[place].ranks
    return [
        {
            "RANK": str(first + number), "WORLD_SIZE": str(size), "NODE_RANK": str(place),
            "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(local),
        }
        for number in range(local)
    ]  # fmt: skip


def _shared(lab: Lab, case: Case, world: Sequence[Node], place: int) -> dict[str, str]:
    """Variables that all ranks of a node have alike."""
    return {
        # A first optimizer makes torch create a folder for compiled code, and that would stay: this one is there.
        "TORCHINDUCTOR_CACHE_DIR": "/tmp",
        "MASTER_ADDR": world[0].address,
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": NODE_END,
        "NCCL_SOCKET_IFNAME": f"={NODE_END}",
        "OMP_NUM_THREADS": str(world[place].threads),
        **gpus.environment(case, world[place], gpus.offered(lab.facts)),
        **case.env,
    }


# ── torchrun ─────────────────────────────────────────────────────────────────────────────────────────
def _by_torchrun(case: Case) -> bool:
    return isinstance(case.workload, Script) and case.workload.torchrun


def _torchrun(script: Script, world: Sequence[Node], place: int) -> list[str]:
    """torchrun under the name that needs no program of its own; it starts Python by itself."""
    words = script.command[1:] if script.command[0].startswith("python") else script.command
    return [
        "python", "-m", "torch.distributed.run", f"--nnodes={len(world)}", f"--node-rank={place}",
        f"--nproc-per-node={world[place].ranks}", f"--master-addr={world[0].address}", f"--master-port={PORT}", *words,
    ]  # fmt: skip
