"""What limits a predicted step, and so what is worth changing first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Literal

from rig.formulas.rings import Edge, ring_time, ring_wait
from rig.model import Case
from rig.results import Predicted

Limit = Literal["link", "compute", "latency", "host", ""]
HIDDEN = 0.05  # of the step: less communication than that beside computing does not matter


def limit(case: Case, predictions: Mapping[str, Predicted], load: float = 0.0) -> Limit:
    """Compute where under 5 % of the step is communication that nothing hides; host where nodes send more than it
    carries (`load` above 1, see provision.load), or all-reduces are mostly shorter than its own work; latency where
    they mostly wait for round trips; else the link. Nothing ("") where no step time is predicted.
    """
    step = predictions.get("step_time")
    if step is None:
        return ""
    exposed = predictions.get("exposed_comm", step)  # an all-reduce by itself is nothing else
    if case.size == 1 or exposed.value < HIDDEN * step.value:
        return "compute"
    if load > 1:
        return "host"
    return _of_collectives(case, predictions)


def _of_collectives(case: Case, predictions: Mapping[str, Predicted]) -> Limit:
    step, n = predictions["step_time"], case.size
    least = float(step.inputs["host"]["least"]) if "host" in step.inputs else 0.0
    across = edges(step)
    waiting = hosting = whole = 0.0
    for size in sizes(predictions):
        slowest = max(across, key=lambda edge: ring_time(size, n, edge))
        span = ring_time(size, n, slowest)
        whole += max(span, least)
        hosting += least if span < least else 0.0
        waiting += ring_wait(size, n, slowest) if span >= least else 0.0
    if hosting > whole / 2:
        return "host"
    return "latency" if waiting > whole / 2 else "link"


def edges(step: Predicted) -> tuple[Edge, ...]:
    """The ring's edges that a predicted step time was computed with."""
    names = [field.name for field in fields(Edge)]
    return tuple(Edge(**{name: edge[name] for name in names}) for edge in step.inputs.get("edges", ()))


def sizes(predictions: Mapping[str, Predicted]) -> Sequence[int]:
    """Bytes of every all-reduce of a step."""
    inputs = predictions["payload_tx"].inputs
    return list(inputs["buckets"]) if "buckets" in inputs else [int(inputs["bytes"])]
