"""How much of a step's communication its backward pass hides."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rig.model import Phases

WORKERS = 2  # threads of a gloo process group, so collectives under way at once (torch, ProcessGroupGloo)


@dataclass(frozen=True)
class Transfer:
    """One bucket's all-reduce: how long it takes by itself, and how much of that it keeps the link busy (s)."""

    alone: float
    busy: float
    queued: bool = False  # see timing.Edge

    @property
    def share(self) -> float:
        """Of the link, 0 to 1, while nothing else is on it."""
        return self.busy / self.alone if self.alone else 0.0

    @property
    def most(self) -> float:
        """Of the link, 0 to 1, that two such together get. Queued, their words wait behind both's data: what one has
        alone is 2s in RTT + 2s (two segments of s seconds each under way), two have 4s in RTT + 4s.
        """
        return 2 * self.busy / (self.alone + self.busy) if self.queued and self.busy else 1.0


@dataclass(frozen=True)
class Timeline:
    """One predicted step, in seconds; bucket ends count from the start of the backward pass."""

    step: float
    compute: float
    comm: float  # at least one bucket is on its way that long, waiting buckets included
    exposed: float  # communication that computing does not hide
    ends: tuple[float, ...]
    before: float = 0.0  # of that, before the first forward pass


def overlap(phases: Phases, buckets: Sequence[Transfer], before: float = 0.0) -> Timeline:
    """A step whose buckets are reduced while the backward pass of its last micro-batch goes on.

    step = before + earlier + forward + max(backward, last end) + optimizer, with the ends of `shared`. Without delay
    on any link the last end is that of one bucket after another, start_i = max(ready_i, end_{i−1}) (MG-WFBP, arXiv
    1811.11141). `before` is what must arrive before the first forward pass (DDP's buffers, once a step however many
    its micro-batches: torch/nn/parallel/distributed.py, require_forward_param_sync).
    max(compute, comm) ≤ step ≤ compute + comm, comm counting each bucket by itself.
    """
    ends = shared(phases.ready, buckets)
    exposed = before + max(0.0, max(ends, default=0.0) - phases.backward)
    return Timeline(phases.step + exposed, phases.step, before + _covered(phases.ready, ends), exposed, ends, before)


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
    together no faster than the link, by halves where it is short. So one's waiting is filled with another's bytes,
    as far as their words get through.
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
        free = min(buckets[index].most for index in left) if len(left) > 1 else 1.0
        speeds = _speeds({index: buckets[index].share for index in left}, free)
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


def _speeds(shares: Mapping[int, float], free: float) -> dict[int, float]:
    """How fast each of those under way goes, 1 being as fast as by itself: the smaller wish first, then the rest.
    `free`: what of the link they have together.
    """
    speeds = {}
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
