"""How ranks keep one model, as a step of training meets it, paced and real alike; one rank by itself exchanges nothing.

In a step's order: `renew` before it, `apart` around each micro-batch but the last, `after_backward` when all gradients
are there, `after_step` when the optimizer is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, under a name type checkers know
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rig.workloads.hooks import HOOKS, hook
from rig.workloads.job import Seat
from rig.workloads.periodic import Average, Outer, Rounds
from rig.workloads.standins import Part, StandIn, StandIns
from rig.workloads.steps import Buckets, Hook, averaged, summed

Act = Callable[[dist.ProcessGroup | None], None]


class Exchange:
    """Nothing is exchanged: what a rank by itself does, and what each way to exchange changes some part of."""

    def __init__(self, module: nn.Module, standin: StandIn | StandIns | None = None) -> None:
        self.module = module  # what a forward pass goes through
        self._standin = standin  # of paced compute

    def renew(self) -> None:
        """Before a step; nobody times it."""
        if self._standin:
            self._standin.renew()

    def apart(self) -> AbstractContextManager[None]:
        """While this lasts, a backward pass exchanges nothing."""
        return nullcontext()

    def after_backward(self) -> None:
        """All gradients of a step are there."""

    def after_step(self, step: int) -> None:
        """The optimizer has done with a step, counted from 0."""

    def check(self) -> None:
        """After the last step; raises WorkloadError where stand-ins were not exchanged as they must be."""
        if self._standin:
            self._standin.check()


class Hooked(Exchange):
    """DDP's way: gradients during the backward pass, bucket by bucket, as its communication hook makes them."""

    def __init__(self, module: DistributedDataParallel, standin: StandIns | None = None) -> None:
        super().__init__(module, standin)
        self._ddp = module

    def apart(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()


class Periodic(Exchange):
    """Parameters, after every so many steps; `act` exchanges them among a group, or all (None)."""

    def __init__(self, module: nn.Module, rounds: Rounds, act: Act, buckets: Buckets, standin: StandIn | None) -> None:
        super().__init__(module, standin)
        self._rounds, self._act, self._buckets = rounds, act, buckets
        self._size = sum(one.numel() * one.element_size() for one in trained(module))

    def after_step(self, step: int) -> None:
        if self._rounds.due(step):
            with self._buckets.noting(self._size):
                self._act(self._rounds.group(step))


class Served(Exchange):
    """Rank 0 serves beside its own training: it takes all ranks' gradients, sums them, and sends everyone the sum."""

    def __init__(self, module: nn.Module, gradients: Gradients | StandIn, buckets: Buckets, seat: Seat) -> None:
        super().__init__(module, gradients if isinstance(gradients, StandIn) else None)
        self._gradients, self._buckets, self._seat = gradients, buckets, seat
        self._others: list[torch.Tensor] = []  # what rank 0 takes the others' in

    def after_backward(self) -> None:
        own = self._gradients.taken()
        if self._seat.rank == 0 and not self._others:
            self._others = [torch.empty_like(own) for _ in range(1, self._seat.size)]
        with self._buckets.noting(own.nbytes):
            if self._seat.rank == 0:
                self._serve(own)
            else:
                dist.send(own, 0)
                dist.recv(own, 0)
        self._gradients.given(own)

    def _serve(self, own: torch.Tensor) -> None:
        """All at once each way, so that everybody has the sum at the same time."""
        for take in [dist.irecv(other, rank) for rank, other in enumerate(self._others, 1)]:
            _done(take)
        for other in self._others:
            own += other
        for send in [dist.isend(own, rank) for rank in range(1, self._seat.size)]:
            _done(send)


def _done(work: dist.Work | None) -> None:
    assert work is not None  # None only for ranks outside the group
    work.wait()


class Gradients:
    """Real gradients as one flat tensor, there and back."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def taken(self) -> torch.Tensor:
        """A copy of them all, on the CPU: gloo's messages from one rank to another start there."""
        return parameters_to_vector(self._tensors()).cpu()

    def given(self, total: torch.Tensor) -> None:
        """Put the mean in their places, from the sum over ranks."""
        gradients = self._tensors()
        vector_to_parameters(total.div_(dist.get_world_size()).to(gradients[0].device), gradients)

    def _tensors(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]


# ── which one ────────────────────────────────────────────────────────────────────────────────────────
def real(job: Mapping[str, Any], seat: Seat, net: nn.Module, buckets: Buckets) -> Exchange:
    """Of a network that computes. One rank by itself has DDP too, whose hook tells when gradients are ready."""
    exchange = job["exchange"]
    if seat.size == 1 or exchange["method"] in HOOKS:
        inner = hook(exchange) if seat.size > 1 else averaged
        return Hooked(wrapped(net, job["bucket_cap"], buckets.hook(inner)))
    for tensor in (*net.parameters(), *net.buffers()):
        dist.broadcast(tensor.detach(), 0)  # as DDP does when it is made
    if exchange["method"] == "parameter_server":
        return Served(net, Gradients(trained(net)), buckets, seat)
    parameters = Outer(trained(net), exchange) if exchange["method"] == "diloco" else Average(trained(net))
    return Periodic(net, Rounds(exchange, job["warmup"], seat.size), parameters.exchange, buckets, None)


def paced(job: Mapping[str, Any], seat: Seat, net: nn.Module, buckets: Buckets, ready: Callable[[], None]) -> Exchange:
    """Of a network that waits; `ready` is told that a bucket is. One rank by itself is the published speed's: without
    DDP.
    """
    exchange = job["exchange"]
    if seat.size == 1:
        return Exchange(net)
    if exchange["method"] in HOOKS:
        whole = exchange["method"] == "allreduce"
        standins = None if whole else StandIns(exchange, seat.rank, seat.size)
        inner = standins.hook if standins else summed

        def counted(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
            ready()
            return inner(state, bucket)

        # Every rank's parameters are zeros, so the broadcast that makes them equal (a model's size on slow links, twice
        # from rank 0 at N = 4) is left out.
        return Hooked(wrapped(net, job["bucket_cap"], buckets.hook(counted), init_sync=False), standins)
    parameters = trained(net)
    part = Part(sum(one.numel() for one in parameters), parameters[0].dtype)
    standin = StandIn(part, seat.rank, seat.size)
    if exchange["method"] == "parameter_server":
        return Served(net, standin, buckets, seat)
    return Periodic(net, Rounds(exchange, job["warmup"], seat.size), standin.exchange, buckets, standin)


def trained(net: nn.Module) -> list[nn.Parameter]:
    """What gradients are made for."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def wrapped(net: nn.Module, bucket_cap: int, hook: Hook, init_sync: bool = True) -> DistributedDataParallel:
    """The network in DDP with a communication hook; `bucket_cap` in bytes.

    DDP closes its first bucket at 1 MiB only where it is left at its default cap, 25 MiB.
    """
    cap = None if bucket_cap == 25 * 2**20 else bucket_cap / 2**20
    ddp = DistributedDataParallel(net, bucket_cap_mb=cap, gradient_as_bucket_view=True, init_sync=init_sync)
    ddp.register_comm_hook(None, hook)
    return ddp
