"""How much of a step's communication its backward pass hides."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rig.formulas.rings import WORKERS
from rig.model import Phases


@dataclass(frozen=True)
class Transfer:
    """One bucket's all-reduce: how long it takes by itself, and how much of that it keeps the link busy (s)."""

    alone: float
    busy: float

    @property
    def share(self) -> float:
        """Of the link, 0 to 1, while nothing else is on it."""
        return self.busy / self.alone if self.alone else 0.0


@dataclass(frozen=True)
class Timeline:
    """One predicted step, in seconds; bucket ends count from the start of the backward pass."""

    step: float
    compute: float
    comm: float  # at least one bucket is on its way that long, waiting buckets included
    exposed: float  # communication that computing does not hide
    ends: tuple[float, ...]
    before: float = 0.0  # of that, before the first forward pass


def overlap(phases: Phases, ends: Sequence[float], before: float = 0.0) -> Timeline:
    """A step whose buckets are reduced while the backward pass of its last micro-batch goes on, at these ends (s from
    its start): those of rings.ring_ends with delay on a link, of `shared` else.

    step = before + earlier + forward + max(backward, last end) + optimizer. Without delay the last end is that of one
    bucket after another, start_i = max(ready_i, end_{i−1}) (MG-WFBP, arXiv 1811.11141). `before` is what must arrive
    before the first forward pass (DDP's buffers, once a step however many its micro-batches:
    torch/nn/parallel/distributed.py, require_forward_param_sync). max(compute, comm) ≤ step ≤ compute + comm, comm
    counting each bucket by itself.
    """
    exposed = before + max(0.0, max(ends, default=0.0) - phases.backward)
    comm = before + _covered(phases.ready, ends)
    return Timeline(phases.step + exposed, phases.step, comm, exposed, tuple(ends), before)


def slowest(nodes: Sequence[Phases]) -> Phases:
    """What a ring waits for where its nodes compute at speeds of their own: a bucket is ready when the last of them
    has its gradients.

    Counted from the moment that all have the sum of the last bucket, which ends the step before for every one of them:
    a node's backward pass begins after its own optimizer, earlier micro-batches and forward pass. Those parts are
    given of the node whose backward pass begins last; `ready` and `backward` count from there. Buffers that all wait
    for before (see `overlap`) are taken to cost everyone the same.
    """
    leads = [_lead(node) for node in nodes]
    last = max(leads)
    ready = [[lead - last + at for at in node.ready] for lead, node in zip(leads, nodes, strict=True)]
    return replace(
        nodes[leads.index(last)],
        ready=tuple(max(column) for column in zip(*ready, strict=True)),
        backward=max(lead - last + node.backward for lead, node in zip(leads, nodes, strict=True)),
    )


def own(node: Phases, ring: Phases, line: Timeline) -> Timeline:
    """One node's view of the step that `line` is of all: its own computing, and how long it communicates and waits.

    `ring` is what `slowest` made of all nodes. A fast node's buckets wait for the slow ones', and count as on the way.
    """
    delta = _lead(node) - _lead(ring)
    busy = _covered([delta + at for at in node.ready], line.ends)
    return replace(line, compute=node.step, comm=line.before + busy, exposed=line.step - node.step)


def _lead(node: Phases) -> float:
    """From the end of one step's last all-reduce to the start of the next backward pass that has any (s)."""
    return node.optimizer + node.earlier + node.forward


def shared(ready: Sequence[float], buckets: Sequence[Transfer]) -> tuple[float, ...]:
    """When each bucket is reduced, from when each is ready (s): bytes as a fluid on one link.

    Buckets start in order, at most two at a time, for gloo has two workers; each goes no faster than by itself, both
    together no faster than the link, by halves where it is short. So one's waiting is filled with another's bytes.
    """
    waiting = deque(range(len(buckets)))
    left: dict[int, float] = {}  # of those under way: what each would still take by itself
    ends = [0.0] * len(buckets)
    now = 0.0
    while waiting or left:
        if waiting and len(left) < WORKERS and (not left or ready[waiting[0]] <= now):
            first = waiting.popleft()
            now = max(now, ready[first])
            left[first] = buckets[first].alone
            continue
        speeds = _speeds({index: buckets[index].share for index in left})
        soonest = min(left, key=lambda index: left[index] / speeds[index])
        span = left[soonest] / speeds[soonest]
        if waiting and len(left) < WORKERS and ready[waiting[0]] < now + span:
            span = ready[waiting[0]] - now
        else:
            del left[soonest]
            ends[soonest] = now + span
        now += span
        left = {index: max(0.0, rest - span * speeds[index]) for index, rest in left.items()}
    return tuple(ends)


def _speeds(shares: Mapping[int, float]) -> dict[int, float]:
    """How fast each of those under way goes, 1 being as fast as by itself: the smaller wish first, then the rest."""
    speeds, free = {}, 1.0
    for place, (index, share) in enumerate(sorted(shares.items(), key=lambda item: item[1])):
        given = min(share, free / (len(shares) - place))
        free -= given
        speeds[index] = given / share if share else 1.0
    return speeds


def _covered(ready: Sequence[float], ends: Sequence[float]) -> float:
    """Seconds in which at least one bucket was ready and not yet reduced."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(zip(ready, ends, strict=True)):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
