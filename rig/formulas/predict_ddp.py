"""What a step of data-parallel training should send, and take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

from rig.formulas import overlap, rings, speedup, timing, traffic
from rig.formulas.edges import Leg, document, ring
from rig.formulas.predict_parts import Predictions, added, told, unknown
from rig.model import Case, Ddp, Host, Pace, Phases, Tensor
from rig.results import Predicted


@dataclass(frozen=True)
class _Layout:
    """What DDP makes of a table: tensors (indices) by bucket, and bytes, of buckets and of broadcasts."""

    members: tuple[tuple[int, ...], ...]
    buckets: tuple[int, ...]
    broadcasts: tuple[int, ...]


@lru_cache(maxsize=64)
def _layout(parameters: tuple[Tensor, ...], buffers: tuple[Tensor, ...], cap: int) -> _Layout:
    sizes = [tensor.nbytes for tensor in parameters]
    members = traffic.ddp_buckets(sizes, cap)
    by_dtype = (sum(tensor.nbytes for tensor in buffers if tensor.dtype == dtype) for dtype in ("float32", "int64"))
    return _Layout(members, tuple(sum(sizes[at] for at in one) for one in members), tuple(filter(None, by_dtype)))


def ddp(case: Case, one_node: Phases | None, host: Host | None) -> Predictions:
    """Bytes from the model's layer table; times where each node's computing is known."""
    workload, n = case.workload, case.size
    assert isinstance(workload, Ddp)
    layout = _layout(workload.table.parameters, workload.table.buffers, int(workload.bucket_cap))
    payload = traffic.ddp_step_payload(layout.buckets, layout.broadcasts, n)
    inputs = {"buckets": list(layout.buckets), "broadcasts": list(layout.broadcasts), "nodes": n}
    found = {"payload_tx": Predicted(sum(payload) / n, "B", "ddp_step_payload", inputs, tuple(payload))}
    alone = _alone(case, layout, one_node)
    if not alone or unknown(case):
        return found
    legs, adds = ring(case), added(case, host)
    kinds = list(dict.fromkeys(alone))
    together = overlap.slowest(kinds)
    ends = _ends(layout.buckets, together.ready, n, legs, adds["least"])
    step = overlap.overlap(together, ends).step
    line = overlap.overlap(together, ends, _before(layout.broadcasts, case, legs, step))
    views = {kind: overlap.own(kind, together, line) for kind in kinds}
    inputs |= {"accumulate": workload.accumulate, "edges": [document(leg) for leg in legs]} | told(adds)
    inputs |= {"timeline": _drawn(together, line)}
    return found | _times(case, [views[phases] for phases in alone], inputs)


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


def _before(broadcasts: Sequence[int], case: Case, legs: Sequence[Leg], step: float) -> float:
    """Buffers, before the forward pass: bytes one after another, and the tree's way once, for they go together. From
    four nodes on most edges of the tree are none of the ring's, and so silent for a step of `step` s.
    """
    if not legs or not broadcasts:
        return 0.0
    slowest = min((leg.edge for leg in legs), key=lambda edge: edge.goodput)
    sent = sum(timing.broadcast_time(size, case.size, slowest) for size in broadcasts)
    edge = replace(slowest, rtt=max(leg.edge.rtt for leg in legs))
    restart = timing.slow_start_wait(sum(broadcasts), edge, step, case.tcp.rto_min / 1e9)
    below = (case.size - 1).bit_length() - 1 if case.size > 3 else 0  # the root's first child is its neighbour
    return sent + timing.broadcast_wait(case.size, edge.rtt) + below * restart


def _drawn(together: Phases, line: overlap.Timeline) -> dict[str, Any]:
    """The step as a picture shows it (s, emulated); `ready` and `ends` count from the start of the backward pass."""
    return {
        "before": line.before, "earlier": together.earlier, "forward": together.forward,
        "ready": list(together.ready), "ends": list(line.ends), "backward": together.backward,
        "optimizer": together.optimizer,
    }  # fmt: skip


def _times(case: Case, views: Sequence[overlap.Timeline], inputs: Mapping[str, Any]) -> Predictions:
    """`views`: the step as each node has it. Strong scaling has divided batches and paces already; speed-up is over the
    first node by itself.
    """
    step, alone = views[0].step, views[0].compute
    batches = [node.batch for node in case.nodes]
    samples = speedup.throughput(batches, step)
    gain = speedup.speedup(samples, speedup.throughput(batches[:1], alone))
    rates = {"batches": batches, "step_time": step, "one_node_step_time": alone}
    return {
        "step_time": Predicted(step, "s", "overlap", inputs),
        "comm_time": _of_nodes([view.comm for view in views], inputs),
        "exposed_comm": _of_nodes([view.exposed for view in views], inputs),
        "throughput": Predicted(samples, "samples/s", "throughput", rates),
        "speedup": Predicted(gain, "×", "speedup", rates),
        "efficiency": Predicted(speedup.efficiency(gain, case.size), "", "efficiency", rates),
    } | _job(case, step)


def _of_nodes(seconds: Sequence[float], inputs: Mapping[str, Any]) -> Predicted:
    return Predicted(fmean(seconds), "s", "overlap", inputs, tuple(seconds))


def _job(case: Case, step: float) -> Predictions:
    job = getattr(case.workload, "job", None)
    if job is None:
        return {}
    batches = [node.batch for node in case.nodes]
    inputs = {"samples": job.samples, "steps": job.steps, "step_time": step, "batches": batches}
    return {"time_to_train": Predicted(speedup.time_to_train(job, batches, step), "s", "time_to_train", inputs)}


# ── one machine by itself ────────────────────────────────────────────────────────────────────────────
def _alone(case: Case, layout: _Layout, one_node: Phases | None) -> tuple[Phases, ...]:
    """Every node's step by itself: paced from its own pace, real from the one-node run; none where that is lacking."""
    assert isinstance(case.workload, Ddp)
    table, accumulate = case.workload.table, case.workload.accumulate
    paces = dict.fromkeys(node.pace for node in case.nodes if node.pace)
    if not paces:
        return (one_node,) * case.size if one_node else ()
    known = {pace: _paced(pace, table.parameters, layout, accumulate) for pace in paces}
    return tuple(known[node.pace] for node in case.nodes if node.pace)


def _paced(pace: Pace, parameters: Sequence[Tensor], layout: _Layout, accumulate: int) -> Phases:
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
