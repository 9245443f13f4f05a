"""DDP's communication hooks of real compute: what is sent in place of a bucket of gradients, and how it is averaged.

Over gloo a bucket's second collective must not be issued from the callback of its first, as powerSGD_hook does: two
threads complete buckets, so that ranks issue them in different orders, and both may wait for one another (torch 2.13
aborts). Here one thread of our own does one bucket after another, each to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, under a name type checkers know
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from rig.workloads.steps import Hook, averaged

SETTLED = 2  # steps whose gradients go whole: DDP rebuilds its buckets after the first
LARGEST = 127  # of 8 bits with a sign
SCALE = 4  # bytes of a float32


def hook(exchange: Mapping[str, Any]) -> Hook:
    """The hook of a job's `exchange`, whose method is one of HOOKS."""
    return HOOKS[exchange["method"]](exchange)


def in_order(inner: Callable[[GradBucket], torch.Tensor]) -> Hook:
    """A hook of what makes a bucket's mean gradients, done by one thread: all of a bucket's collectives end before the
    next one's begin, on every rank.
    """
    worker = ThreadPoolExecutor(1)

    def act(bucket: GradBucket, promise: Future[torch.Tensor]) -> None:
        try:
            promise.set_result(inner(bucket))
        except RuntimeError as error:  # a peer is gone: DDP, which waits for this, is told
            promise.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is of another function

    def queued(_: object, bucket: GradBucket) -> Future[torch.Tensor]:
        device = bucket.buffer().device
        promise: Future[torch.Tensor] = Future(devices=[device] if device.type == "cuda" else None)
        worker.submit(act, bucket, promise)
        return promise

    return queued


def bf16(_: object, bucket: GradBucket) -> Future[torch.Tensor]:
    """What torch's bf16_compress_hook does, which refuses to do so over gloo though gloo sums bfloat16."""
    buffer = bucket.buffer()
    work = dist.all_reduce(buffer.to(torch.bfloat16).div_(dist.get_world_size()), async_op=True)
    assert work is not None  # None only for ranks outside the group
    whole: Future[torch.Tensor] = work.get_future().then(lambda done: buffer.copy_(done.value()[0]))
    return whole


def powersgd(exchange: Mapping[str, Any]) -> Hook:
    """Torch's own, in an order that gloo can follow."""
    state = PowerSGDState(None, matrix_approximation_rank=exchange["rank"], start_powerSGD_iter=SETTLED)
    return in_order(lambda bucket: powerSGD_hook(state, bucket).wait())


# ── gathered: what cannot be summed on its way ───────────────────────────────────────────────────────
class Codec(Protocol):
    """Makes a message of a bucket's gradients (float32, flat), and adds such a message to others."""

    def packed(self, gradients: torch.Tensor) -> torch.Tensor:
        """The message: as many bytes on every rank."""

    def add(self, message: torch.Tensor, total: torch.Tensor, times: float) -> None:
        """Add what a message stands for, so many times, to a tensor like the gradients."""


class Largest:
    """The share of the gradients that is largest in size, float32, each with its place, int32: 8 bytes."""

    def __init__(self, share: float) -> None:
        self._share = share

    def packed(self, gradients: torch.Tensor) -> torch.Tensor:
        places = gradients.abs().topk(ceil(self._share * gradients.numel()), sorted=False).indices
        return torch.cat([gradients[places].view(torch.int32), places.to(torch.int32)])

    def add(self, message: torch.Tensor, total: torch.Tensor, times: float) -> None:
        values, places = message.chunk(2)
        total.index_add_(0, places, values.view(torch.float32), alpha=times)


class EightBits:
    """Each gradient as a whole number from −127 to 127, after their common scale, float32."""

    def packed(self, gradients: torch.Tensor) -> torch.Tensor:
        scale = (gradients.abs().max() / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
        levels = (gradients / scale).round_().to(torch.int8)
        return torch.cat([scale.view(1).view(torch.uint8), levels.view(torch.uint8)])

    def add(self, message: torch.Tensor, total: torch.Tensor, times: float) -> None:
        total.add_(message[SCALE:].view(torch.int8), alpha=times * message[:SCALE].view(torch.float32).item())


class Gathered:
    """Every rank gathers all ranks' messages and averages them in the order of ranks, so that all have the same sum.

    What a message leaves out is added to the gradients of the next step (error feedback; Stich, Cordonnier and Jaggi,
    arXiv 1809.07599).
    """

    def __init__(self, codec: Codec) -> None:
        self._codec, self._steps = codec, 0
        self._lost: dict[int, torch.Tensor] = {}  # by bucket

    def __call__(self, bucket: GradBucket) -> torch.Tensor:
        settled = self._steps >= SETTLED
        self._steps += bucket.is_last()
        if not settled:
            return averaged(None, bucket).wait()
        gradients, ranks = bucket.buffer(), dist.get_world_size()
        if bucket.index() in self._lost:
            gradients += self._lost[bucket.index()]
        own = self._codec.packed(gradients)
        messages = [torch.empty_like(own) for _ in range(ranks)]
        dist.all_gather(messages, own)
        lost = self._lost[bucket.index()] = gradients.clone()
        self._codec.add(own, lost, -1.0)
        gradients.zero_()
        for message in messages:
            self._codec.add(message, gradients, 1 / ranks)
        return gradients


HOOKS: dict[str, Callable[[Mapping[str, Any]], Hook]] = {
    "allreduce": lambda _: averaged,
    "fp16": lambda _: partial(fp16_compress_hook),
    "bf16": lambda _: bf16,
    "powersgd": powersgd,
    "topk": lambda exchange: in_order(Gathered(Largest(exchange["share"] / 1e9))),
    "quantized": lambda _: in_order(Gathered(EightBits())),
}
