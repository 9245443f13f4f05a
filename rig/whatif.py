"""A case with one thing changed, and all that follows from it derived anew: what `rig advise` predicts. Pure.

Each function takes a case that trains (kind ddp) and gives another; none looks at what a change costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rig import models
from rig.formulas import traffic
from rig.model import Case, Impairment, Link, Node, Phases
from rig.plan import FIRST_ADDRESS
from rig.provision import needs, provided
from rig.units import Rate, Size
from rig.work import WIDTHS, Ddp, Exchange, LayerTable, Pace, Tensor

APART = Size(1)  # a bucket_cap that every tensor passes, so that each is a bucket of its own


def training(case: Case) -> Ddp:
    """What the case trains."""
    assert isinstance(case.workload, Ddp)
    return case.workload


def samples(case: Case) -> int:
    """Samples a step of all nodes: the global batch."""
    return sum(node.batch for node in case.nodes)


def slowest(case: Case, between: bool = False) -> Rate:
    """The slowest direction of any node's cable, or of any cable between switches (bit/s)."""
    links = [cable.link for cable in case.wans] if between else [node.link for node in case.nodes]
    return min(way.rate for link in links for way in (link.up, link.down))


# ── the network ──────────────────────────────────────────────────────────────────────────────────────
def at_rate(case: Case, rate: Rate) -> Case:
    """Every node's cable at that rate (bit/s), both ways."""
    return _rated(case, lambda way: replace(way, rate=rate), between=False)


def at_least(case: Case, rate: Rate, between: bool = False) -> Case:
    """Every node's cable, or every cable between switches, at that rate (bit/s) where it is slower."""
    return _rated(case, lambda way: replace(way, rate=max(way.rate, rate)), between)


def _rated(case: Case, change: Callable[[Impairment], Impairment], between: bool) -> Case:
    """Buckets and queues follow a rate that changed, also where they were written; delays and all else stay."""
    old = {cable.link for cable in case.wans} if between else {node.link for node in case.nodes}
    new = {link: replace(link, up=change(link.up), down=change(link.down)) for link in old}
    bare = {was: _bare(link) for was, link in new.items() if link != was}
    cables = [replace(cable, link=bare.get(cable.link, cable.link)) for cable in case.cables]
    whole = provided(bare.values(), case.dilation, needs(cables)) if bare else {}

    def now(link: Link) -> Link:
        return whole[bare[link]] if link in bare else link

    if between:
        return replace(case, wans=tuple(replace(cable, link=now(cable.link)) for cable in case.wans))
    return replace(case, nodes=tuple(replace(node, link=now(node.link)) for node in case.nodes))


def _bare(link: Link) -> Link:
    return replace(link, up=_underived(link.up), down=_underived(link.down))


def _underived(way: Impairment) -> Impairment:
    return replace(way, burst=Size(0), queue=Size(0))


# ── the machines ─────────────────────────────────────────────────────────────────────────────────────
def nodes(case: Case, count: int) -> Case:
    """That many nodes: the first ones, or further ones like n0 on its switch. What happens to cables that are gone
    happens no more; each node's batch stays, so the global batch follows.
    """
    first = case.nodes[0]
    more = [
        replace(first, name=f"n{number}", address=str(FIRST_ADDRESS + number)) for number in range(case.size, count)
    ]
    kept = (*case.nodes, *more)[:count]
    cables = {node.name for node in kept} | {cable.name for cable in case.wans}
    return replace(
        case,
        nodes=kept,
        params={**case.params, "nodes": count},
        changes=tuple(change for change in case.changes if change.cable in cables),
        background=tuple(stream for stream in case.background if stream.cable in cables),
    )


def spread(case: Case, count: int) -> Case:
    """That many nodes that share the same global batch: each takes as much less or more of it. Samples a step are
    whole numbers; where the batch does not divide they are rounded, while times are not.
    """
    more = nodes(case, count)
    return batch(more, samples(case) / samples(more))


# ── the training ─────────────────────────────────────────────────────────────────────────────────────
def batch(case: Case, factor: float) -> Case:
    """That many times the samples a micro-batch: forward and backward take as much longer, the optimizer does not."""

    def larger(pace: Pace) -> Pace:
        return replace(pace, forward=pace.forward * factor, backward=pace.backward * factor)

    return _paces(replace(case, nodes=_batches(case.nodes, factor)), larger)


def accumulate(case: Case, count: int) -> Case:
    """That many micro-batches a step, each as it is: the samples a step follow."""
    factor = count / training(case).accumulate
    return _training(replace(case, nodes=_batches(case.nodes, factor)), accumulate=count)


def buckets(case: Case, cap: Size) -> Case:
    """DDP's buckets closed at that size."""
    return _training(case, bucket_cap=cap)


def half(case: Case) -> Case:
    """Gradients exchanged as float16, as DDP's fp16_compress_hook does: its buckets are those of the whole gradients,
    and each is sent in half the bytes; buffers stay as they are. Converting is taken to cost nothing.
    """
    return _training(case, exchange=Exchange("fp16"))


def averaged(case: Case, every: int) -> Case:
    """Nodes train by themselves, and every so many steps average their weights (local SGD; Stich, arXiv 1805.09767)."""
    return _training(case, exchange=Exchange("local_sgd", every=every))


def has_adapters(case: Case) -> bool:
    """Whether a layer table of the model's LoRA ships: MODEL-lora."""
    return _adapters(case) in models.names()


def adapters(case: Case) -> Case:
    """The model's LoRA in its place: only the adapters are trained and exchanged.

    Forward and backward are taken to last as long as before, though a frozen weight needs no gradient of its own
    (which saves up to half of a backward pass); the optimizer's time follows the number of weights. Raises UsageError
    where no table ships.
    """
    work = training(case)
    table = models.load(_adapters(case))
    fewer = _numel(table) / _numel(work.table)

    def lighter(pace: Pace) -> Pace:
        return Pace(pace.forward, pace.backward, pace.optimizer * fewer)

    return _paces(_training(case, table=table, model=table.name), lighter)


def _adapters(case: Case) -> str:
    return f"{training(case).model}-lora"


def _numel(table: LayerTable) -> int:
    return sum(tensor.numel for tensor in table.parameters)


# ── what was measured ────────────────────────────────────────────────────────────────────────────────
def paced(case: Case, one_node: Phases) -> Case:
    """A case of real compute as a paced one, by what its one-node run showed (s): only so can it be changed further.

    Each bucket's gradients are ready when they were there; within a bucket they come evenly.
    """
    if not training(case).table.parameters:
        case = _training(case, table=_told(training(case).model, one_node), bucket_cap=APART)
    work = training(case)
    members = traffic.ddp_buckets([tensor.nbytes for tensor in work.table.parameters], int(work.bucket_cap))
    shares = [0.0] * len(work.table.parameters)
    before = 0.0
    for bucket, ready in zip(members, one_node.ready, strict=True):
        for index in bucket:
            shares[index] = max(0.0, ready - before) / one_node.backward / len(bucket)
        before = max(before, ready)
    pace = Pace(one_node.forward, one_node.backward, one_node.optimizer, backward_shares=tuple(shares))
    known = tuple(replace(node, pace=pace) for node in case.nodes)
    return _training(replace(case, nodes=known), compute="paced")


def _told(model: str, one_node: Phases) -> LayerTable:
    """A layer table of a model that has none, as far as its one-node run tells: a tensor for each bucket, the first of
    which holds the last gradients; and one for the buffers of each dtype, whichever that is.
    """
    parameters = (Tensor(f"bucket {place}", (size // 4,)) for place, size in enumerate(one_node.buckets))
    joined = zip(one_node.broadcasts, WIDTHS.items(), strict=False)
    buffers = (Tensor(f"buffers in {dtype}", (size // width,), 0.0, dtype) for size, (dtype, width) in joined)
    return LayerTable(model, tuple(parameters)[::-1], tuple(buffers), {})


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────
def _training(case: Case, **changes: object) -> Case:
    return replace(case, workload=replace(training(case), **changes))  # type: ignore[arg-type]  # names are the callers'


def _batches(several: Sequence[Node], factor: float) -> tuple[Node, ...]:
    return tuple(replace(node, batch=max(1, round(node.batch * factor))) for node in several)


def _paces(case: Case, change: Callable[[Pace], Pace]) -> Case:
    return replace(
        case, nodes=tuple(replace(node, pace=change(node.pace) if node.pace else None) for node in case.nodes)
    )
