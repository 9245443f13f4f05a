"""One rank that exchanges in the ways formulas speak of, over gloo, and prints what each took of TCP payload: JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from rig.node.counters import Meter

OWN = 300_000  # elements each rank brings to a collective
ROWS, WIDTH = 1000, 32  # of a sparse gradient
LAYER = (400, 300)
RANK = 2  # of the matrices PowerSGD approximates with


def sent(act: Callable[[], object]) -> int:
    """Payload that doing it once takes, all ranks having come there."""
    meter = Meter(int(os.environ["MASTER_PORT"]), None)
    dist.barrier()
    before = meter.read()
    act()
    return (meter.read() - before).payload


def gather() -> None:
    own = torch.ones(OWN)
    dist.all_gather([torch.empty(OWN) for _ in range(dist.get_world_size())], own)


def sparse() -> None:
    dist.all_reduce(torch.sparse_coo_tensor(torch.arange(ROWS)[None], torch.ones(ROWS, WIDTH), (10 * ROWS, WIDTH)))


def layer(unused: bool = False) -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(*LAYER), find_unused_parameters=unused)


def step(net: nn.Module) -> None:
    net.zero_grad()
    net(torch.ones(2, LAYER[0])).sum().backward()


def fp16() -> DistributedDataParallel:
    net = layer()
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return net


def powersgd() -> DistributedDataParallel:
    net = layer()
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return net


def accumulated() -> list[int]:
    """Three micro-batches of a net with buffers, the last of which synchronises."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(*LAYER), nn.BatchNorm1d(LAYER[1])))
    for _ in range(3):
        step(net)

    def quietly() -> None:
        with net.no_sync():
            step(net)

    return [sent(quietly), sent(quietly), sent(lambda: step(net))]


def trained(net: DistributedDataParallel) -> int:
    """A step's payload once DDP and its hooks have settled."""
    for _ in range(4):
        step(net)
    return sent(lambda: step(net))


if __name__ == "__main__":
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    for _ in range(2):  # connections are made the first time
        found = {"gather": sent(gather), "sparse": sent(sparse)}
    found |= {
        "plain": trained(layer()),
        "fp16": trained(fp16()),
        "powersgd": trained(powersgd()),
        "unused": trained(layer(unused=True)),
    }
    print(json.dumps(found | {"accumulated": accumulated()}))
    dist.barrier()
    dist.destroy_process_group()
