"""What a step of data-parallel training should send, and take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

from rig.formulas import nccl, overlap, rings, speedup, timing, traffic
from rig.formulas.edges import Leg, document, ring
from rig.formulas.predict_parts import Predictions, added, told, unknown
from rig.model import Case, Host, Phases
from rig.results import Predicted
from rig.work import Ddp, Pace, Tensor

Before = Callable[[float], float]  # a step's length (s) → how long its forward pass waits for buffers (s)


@dataclass(frozen=True)
class Layout:
    """What DDP makes of a model: tensors (indices) by bucket, and bytes, of buckets and of broadcasts."""

    members: tuple[tuple[int, ...], ...]
    buckets: tuple[int, ...]
    broadcasts: tuple[int, ...]


@lru_cache(maxsize=64)
def _layout(parameters: tuple[Tensor, ...], buffers: tuple[Tensor, ...], cap: int) -> Layout:
    sizes = [tensor.nbytes for tensor in parameters]
    members = traffic.ddp_buckets(sizes, cap)
    by_dtype = {tensor.dtype: 0 for tensor in buffers}
    for tensor in buffers:
        by_dtype[tensor.dtype] += tensor.nbytes
    return Layout(members, tuple(sum(sizes[at] for at in one) for one in members), tuple(by_dtype.values()))


def layout_of(case: Case, one_node: Phases | None) -> Layout | None:
    """From the model's layer table; of a model that has none, from what its one-node run would have sent to others."""
    work = case.workload
    assert isinstance(work, Ddp)
    if work.table.parameters:
        return _layout(work.table.parameters, work.table.buffers, int(work.bucket_cap))
    if case.size == 1:
        return Layout((), (), ())
    return Layout((), one_node.buckets, one_node.broadcasts) if one_node else None


def ddp(case: Case, one_node: Phases | None, host: Host | None) -> Predictions:
    """Bytes from the model's layer table; times where each node's computing is known."""
    workload, n = case.workload, case.size
    assert isinstance(workload, Ddp)
    layout = layout_of(case, one_node)
    if layout is None:
        return {}
    payload = traffic.ddp_step_payload(layout.buckets, layout.broadcasts, n)
    inputs = {"buckets": list(layout.buckets), "broadcasts": list(layout.broadcasts), "nodes": n}
    found = {"payload_tx": Predicted(sum(payload) / n, "B", "ddp_step_payload", inputs, tuple(payload))}
    if workload.devices.backend == "nccl":
        found = {"payload_tx": nccl.payload(case, layout.buckets, layout.broadcasts, inputs)}
    inputs |= {"accumulate": workload.accumulate}
    return found | timed(case, layout, each_alone(case, layout, one_node), inputs, host)


def timed(
    case: Case, layout: Layout, alone: Sequence[Phases], inputs: dict[str, Any], host: Host | None
) -> Predictions:
    """Times of a step that exchanges buckets while its backward pass goes on, from what each node does by itself; none
    where that is not known, or `unknown` says why. `inputs` is told with them, and gets what is used here.
    """
    if not alone or unknown(case):
        return {}
    legs, adds = ring(case), added(case, host)
    ready = overlap.slowest(list(dict.fromkeys(alone))).ready
    ends = _ends(layout.buckets, ready, len(case.seats), legs, adds["least"])
    inputs |= {"edges": [document(leg) for leg in legs]} | told(adds)
    return overlapped(case, alone, ends, before(layout.broadcasts, case, legs), inputs)


def overlapped(
    case: Case, alone: Sequence[Phases], ends: Sequence[float], before: Before, inputs: dict[str, Any]
) -> Predictions:
    """The same, from when each bucket is reduced (s from the start of the backward pass)."""
    kinds = list(dict.fromkeys(alone))
    together = overlap.slowest(kinds)
    line = overlap.overlap(together, ends, before(overlap.overlap(together, ends).step))
    views = {kind: overlap.own(kind, together, line) for kind in kinds}
    inputs |= {"timeline": drawn(together, line)}
    return times(case, [views[phases] for phases in alone], inputs)


def _ends(
    sizes: tuple[int, ...], ready: tuple[float, ...], nodes: int, legs: Sequence[Leg], least: float
) -> tuple[float, ...]:
    """When each bucket is reduced (s from the start of the backward pass). The slowest edge sets the pace, the one with
    least goodput how many bytes pass at once; no bucket takes less than `least` (s).
    """
    if not legs:
        return ready
    slowest = max((leg.edge for leg in legs), key=lambda edge: rings.ring_time(max(sizes), nodes, edge))
    edge = replace(slowest, goodput=min(leg.edge.goodput for leg in legs))
    if edge.rtt and rings.followed(sizes, nodes):
        ends = rings.ring_ends(ready, sizes, nodes, edge)
        return tuple(max(end, at + least) for end, at in zip(ends, ready, strict=True))
    spans = [(rings.ring_time(size, nodes, edge), rings.ring_busy(size, nodes, edge)) for size in sizes]
    return overlap.shared(ready, [overlap.Transfer(max(least, alone), busy) for alone, busy in spans])


def before(broadcasts: Sequence[int], case: Case, legs: Sequence[Leg]) -> Before:
    """Buffers, before the forward pass: bytes one after another, and the tree's way once, for they go together. From
    four nodes on most edges of the tree are none of the ring's, and so silent for the whole of a step.
    """
    return lambda step: _buffers(broadcasts, case, legs, step) if legs and broadcasts else 0.0


def _buffers(broadcasts: Sequence[int], case: Case, legs: Sequence[Leg], step: float) -> float:
    slowest = min((leg.edge for leg in legs), key=lambda edge: edge.goodput)
    sent = sum(timing.broadcast_time(size, case.size, slowest) for size in broadcasts)
    edge = replace(slowest, rtt=max(leg.edge.rtt for leg in legs))
    restart = timing.slow_start_wait(sum(broadcasts), edge, step, case.tcp.rto_min / 1e9)
    below = (case.size - 1).bit_length() - 1 if case.size > 3 else 0  # the root's first child is its neighbour
    return sent + timing.broadcast_wait(case.size, edge.rtt) + below * restart


def drawn(together: Phases, line: overlap.Timeline) -> dict[str, Any]:
    """The step as a picture shows it (s, emulated); `ready` and `ends` count from the start of the backward pass."""
    return {
        "before": line.before, "earlier": together.earlier, "forward": together.forward,
        "ready": list(together.ready), "ends": list(line.ends), "backward": together.backward,
        "optimizer": together.optimizer,
    }  # fmt: skip


def times(
    case: Case, views: Sequence[overlap.Timeline], inputs: Mapping[str, Any], formula: str = "overlap"
) -> Predictions:
    """`views`: the step as each node has it; `formula`: what it was computed by. Strong scaling has divided batches and
    paces already; speed-up is over the first node by itself.
    """
    step, alone = views[0].step, views[0].compute
    batches = [node.batch for node in case.nodes]
    samples = speedup.throughput(batches, step)
    gain = speedup.speedup(samples, speedup.throughput(batches[:1], alone))
    rates = {"batches": batches, "step_time": step, "one_node_step_time": alone}
    return {
        "step_time": Predicted(step, "s", formula, inputs),
        "comm_time": _of_nodes([view.comm for view in views], inputs, formula),
        "exposed_comm": _of_nodes([view.exposed for view in views], inputs, formula),
        "throughput": Predicted(samples, "samples/s", "throughput", rates),
        "speedup": Predicted(gain, "×", "speedup", rates),
        "efficiency": Predicted(speedup.efficiency(gain, case.size), "", "efficiency", rates),
    } | _job(case, step)


def _of_nodes(seconds: Sequence[float], inputs: Mapping[str, Any], formula: str) -> Predicted:
    return Predicted(fmean(seconds), "s", formula, inputs, tuple(seconds))


def _job(case: Case, step: float) -> Predictions:
    job = getattr(case.workload, "job", None)
    if job is None:
        return {}
    batches = [node.batch for node in case.nodes]
    inputs = {"samples": job.samples, "steps": job.steps, "step_time": step, "batches": batches}
    return {"time_to_train": Predicted(speedup.time_to_train(job, batches, step), "s", "time_to_train", inputs)}


# ── one machine by itself ────────────────────────────────────────────────────────────────────────────
def each_alone(case: Case, layout: Layout, one_node: Phases | None) -> tuple[Phases, ...]:
    """Every node's step by itself: paced from its own pace, real from the one-node run; none where that is lacking."""
    assert isinstance(case.workload, Ddp)
    table, accumulate = case.workload.table, case.workload.accumulate
    paces = dict.fromkeys(node.pace for node in case.nodes if node.pace)
    if not paces:
        return (one_node,) * case.size if one_node else ()
    known = {pace: _paced(pace, table.parameters, layout, accumulate) for pace in paces}
    return tuple(known[node.pace] for node in case.nodes if node.pace)


def _paced(pace: Pace, parameters: Sequence[Tensor], layout: Layout, accumulate: int) -> Phases:
    """Gradients become ready in reverse order, each after its share of the last micro-batch's backward pass: its own
    where the pace gives one, its FLOPs' elsewhere.
    """
    shares = pace.backward_shares or tuple(tensor.flops for tensor in parameters)
    done, ready_at = 0.0, [0.0] * len(shares)
    for index in reversed(range(len(shares))):
        done += shares[index]
        ready_at[index] = min(done, 1.0) * pace.backward  # shares add up to one but for rounding
    ready = tuple(max(ready_at[index] for index in bucket) for bucket in layout.members)
    earlier = (accumulate - 1) * (pace.forward + pace.backward)
    return Phases(pace.forward, ready, pace.backward, pace.optimizer, earlier)
