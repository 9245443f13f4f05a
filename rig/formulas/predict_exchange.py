"""What a step of training should send, and take, however nodes keep one model; DDP's own way is in predict_ddp.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rig.formulas import overlap, rings
from rig.formulas.collectives import gloo_allgather_time, serving_node_payload
from rig.formulas.compression import Collective, bucket_collectives, hooked_step_payload
from rig.formulas.edges import Leg, document, ring
from rig.formulas.exchange import local_sgd_step, overlapped_step, periodic_payload
from rig.formulas.predict_ddp import Layout, before, ddp, drawn, each_alone, layout_of, overlapped, timed, times
from rig.formulas.predict_parts import Predictions, added, told, unknown
from rig.formulas.star import serving_node_time
from rig.model import Case, Host, Phases
from rig.results import Predicted
from rig.work import WIDTHS, Ddp, Exchange

IN_TURN = ("powersgd", "topk", "quantized")  # one bucket after another, each to its end (rig/workloads/hooks.py)
AFTER_STEPS = ("local_sgd", "hierarchical", "diloco")


def training(case: Case, one_node: Phases | None, host: Host | None) -> Predictions:
    """Bytes, and times where each node's computing is known. What a method computes by itself (PowerSGD's products,
    choosing the largest, DiLoCo's outer step) is taken to cost nothing. Over NCCL only plain gradients are predicted.
    """
    work = case.workload
    assert isinstance(work, Ddp)
    over_nccl, plain = work.devices.backend == "nccl", work.exchange.method == "allreduce"
    if case.size == 1 or (plain and (over_nccl or work.precision == "float32")):
        return ddp(case, one_node, host)
    layout = layout_of(case, one_node)
    if layout is None or over_nccl:
        return {}
    alone = each_alone(case, layout, one_node)
    if work.exchange.method == "parameter_server":
        return _served(case, layout, alone)
    if work.exchange.method in AFTER_STEPS:
        return _after_steps(case, layout, alone, host)
    shapes = _shapes(work, layout, one_node)
    return _hooked(case, layout, shapes, alone, host)


def _shapes(work: Ddp, layout: Layout, one_node: Phases | None) -> Sequence[Sequence[Sequence[int]]]:
    """Of the tensors in each bucket."""
    if layout.members:
        return [[work.table.parameters[at].shape for at in bucket] for bucket in layout.members]
    return one_node.shapes if one_node and one_node.shapes else [[] for _ in layout.buckets]


# ── gradients, during the backward pass ──────────────────────────────────────────────────────────────
def _hooked(
    case: Case, layout: Layout, shapes: Sequence[Sequence[Sequence[int]]], alone: Sequence[Phases], host: Host | None
) -> Predictions:
    work = case.workload
    assert isinstance(work, Ddp)
    element = WIDTHS[work.precision]
    each = [
        bucket_collectives(work.exchange, size, element, tensors)
        for size, tensors in zip(layout.buckets, shapes, strict=True)
    ]
    flat = [one for bucket in each for one in bucket]
    payload = hooked_step_payload(flat, layout.broadcasts, case.size)
    inputs: dict[str, Any] = {
        "buckets": [one.size for one in flat], "broadcasts": list(layout.broadcasts), "nodes": case.size,
        "exchange": work.exchange.method, "gathered": flat[0].gathered, "gradients": list(layout.buckets),
    }  # fmt: skip
    found = {"payload_tx": Predicted(fmean(payload), "B", "hooked_step_payload", inputs, payload)}
    inputs |= {"accumulate": work.accumulate}
    if work.exchange.method not in IN_TURN:
        smaller = replace(layout, buckets=tuple(one.size for one in flat))
        return found | timed(case, smaller, alone, inputs, host)
    if not alone or unknown(case):
        return found
    legs, adds = ring(case), added(case, host)
    ready = overlap.slowest(list(dict.fromkeys(alone))).ready
    ends = tuple(_in_turn(ready, each, case.size, legs, adds["least"]))
    inputs |= {"edges": [document(leg) for leg in legs]} | told(adds)
    return found | overlapped(case, alone, ends, before(layout.broadcasts, case, legs), inputs)


def _in_turn(
    ready: Sequence[float], each: Sequence[Sequence[Collective]], nodes: int, legs: Sequence[Leg], least: float
) -> Iterator[float]:
    """When each bucket is done (s from the start of the backward pass): it begins when it is ready and the one before
    is done.
    """
    now = 0.0
    for at, collectives in zip(ready, each, strict=True):
        now = max(now, at) + sum(max(least, _seconds(one, nodes, legs)) for one in collectives)
        yield now


def _seconds(one: Collective, nodes: int, legs: Sequence[Leg]) -> float:
    """Over the slowest edge."""
    time = gloo_allgather_time if one.gathered else rings.ring_time
    return max(time(one.size, nodes, leg.edge) for leg in legs)


# ── after the backward pass, or the step ─────────────────────────────────────────────────────────────
def _served(case: Case, layout: Layout, alone: Sequence[Phases]) -> Predictions:
    size = sum(layout.buckets)
    payload = serving_node_payload(size, case.size)
    inputs = {"bytes": size, "nodes": case.size, "exchange": "parameter_server"}
    found = {"payload_tx": Predicted(fmean(payload), "B", "serving_node_payload", inputs, payload)}
    if not alone or unknown(case):
        return found
    took, slowest = serving_node_time(case, size), max(alone, key=lambda one: one.step)
    step = overlapped_step(slowest.step, 0.0, took)
    one_go = replace(slowest, ready=(slowest.backward,))
    line = overlap.overlap(one_go, (slowest.backward + took,))
    told_of = inputs | {"compute": slowest.step, "exchange_time": took, "timeline": drawn(one_go, line)}
    told_of |= {"edges": [document(leg) for leg in ring(case)]}
    return found | times(case, _waiting(alone, step), told_of, "overlapped_step")


def _after_steps(case: Case, layout: Layout, alone: Sequence[Phases], host: Host | None) -> Predictions:
    work = case.workload
    assert isinstance(work, Ddp)
    size, rounds = sum(layout.buckets), _rounds(work.exchange, case.size)
    sent = periodic_payload(size, rounds, work.exchange.period)
    inputs = {
        "bytes": size, "nodes": case.size, "exchange": work.exchange.method, "rounds": rounds,
        "period": work.exchange.period,
    }  # fmt: skip
    found = {"payload_tx": Predicted(sent, "B", "periodic_payload", inputs, (sent,) * case.size)}
    if not alone or unknown(case):
        return found
    adds, slowest = added(case, host), max(alone, key=lambda one: one.step)
    spans = {ranks: max(adds["least"], _averaging(case, size, ranks)) for ranks in set(rounds)}
    took = sum(spans[ranks] for ranks in rounds)
    step = local_sgd_step(slowest.step, took, work.exchange.period)
    quiet = replace(slowest, ready=())
    told_of = inputs | {"compute": slowest.step, "exchange_time": took} | told(adds)
    told_of |= {"edges": [document(leg) for leg in ring(case)], "timeline": drawn(quiet, overlap.overlap(quiet, ()))}
    return found | times(case, _waiting(alone, step), told_of, "local_sgd_step")


def _rounds(exchange: Exchange, nodes: int) -> list[int]:
    """How many ranks take part in each exchange of a period."""
    among_groups = exchange.period // exchange.every - 1
    return [exchange.group] * among_groups + [nodes]


def _averaging(case: Case, size: int, ranks: int) -> float:
    """One all-reduce among so many neighbours (s), the slowest group's."""
    firsts = range(0, case.size, ranks)
    legs = [leg for first in firsts for leg in ring(replace(case, nodes=case.nodes[first : first + ranks]))]
    return max(rings.ring_time(size, ranks, leg.edge) for leg in legs)


def _waiting(alone: Sequence[Phases], step: float) -> list[overlap.Timeline]:
    """A step as each node has it, where all wait for the slowest and nothing hides what is exchanged."""
    return [overlap.Timeline(step, one.step, step - one.step, step - one.step, ()) for one in alone]
