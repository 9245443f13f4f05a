"""Speed-up over nodes, one curve for each other thing that was swept, and the answer read off the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rig.report import figures
from rig.report.views import CaseView, Figure, RunView


@dataclass(frozen=True)
class Curve:
    """Cases that differ in their node count only, by rising node count."""

    label: str  # "2.5gbit"; "link.rate 2.5gbit, batch 8" where more than one path was swept; empty where none was
    path: str  # the swept path, where there is exactly one
    points: tuple[tuple[int, Figure], ...]
    trusted: tuple[bool, ...]  # whether the point's measured figure may be used in a claim


def curves(run: RunView, metric: str = "speedup") -> tuple[Curve, ...]:
    """The run's curves of a metric, in the record's order; empty where no case has it."""
    groups: dict[tuple[tuple[str, str], ...], list[CaseView]] = {}
    for case in run.cases:
        # A baseline that the plan added belongs to every curve that refers to it, not to one of its own.
        if case.nodes is not None and case.role != "baseline":
            groups.setdefault(_others(case), []).append(case)
    known = {case.id: case for case in run.cases}
    return tuple(
        _curve(key, _with_baseline(cases, known), metric)
        for key, cases in groups.items()
        if any(metric in case.figures for case in cases)
    )


def answer(run: RunView) -> str:
    """One sentence that answers the scenario's question as far as the record's trusted figures go."""
    if not run.cases:
        return "The run holds no case."
    asked = [case for case in run.cases if case.role != "baseline"]
    if not any(case.trusted for case in asked):
        return "No case could be judged, so the question stays open."
    findings = _speedups(run) or _bandwidths(run) or "The cases were measured"
    return f"{findings}{_agreement(run)}."


def _others(case: CaseView) -> tuple[tuple[str, str], ...]:
    return tuple((path, str(value)) for path, value in case.params.items() if path != "nodes")


def _with_baseline(cases: list[CaseView], known: dict[str, CaseView]) -> list[CaseView]:
    if any(case.nodes == 1 for case in cases):
        return cases
    baseline = next((known[case.baseline] for case in cases if case.baseline in known), None)
    return cases if baseline is None or baseline.nodes != 1 else [baseline, *cases]


def _curve(key: tuple[tuple[str, str], ...], cases: list[CaseView], metric: str) -> Curve:
    found = [case for case in cases if metric in case.figures and case.nodes is not None]
    found.sort(key=lambda case: case.nodes or 0)
    label = key[0][1] if len(key) == 1 else ", ".join(f"{path} {value}" for path, value in key)
    return Curve(
        label=label,
        path=key[0][0] if len(key) == 1 else "",
        points=tuple((case.nodes or 0, case.figure(metric)) for case in found),
        trusted=tuple(case.trusted for case in found),
    )


def _speedups(run: RunView) -> str:
    """How fast the largest node count trains, curve by curve; the extremes where there are many curves."""
    found = [
        (nodes, figure.measured, curve)
        for curve in curves(run)
        for (nodes, figure), trusted in zip(curve.points, curve.trusted, strict=True)
        if trusted and figure.measured is not None and nodes > 1
    ]
    if not found:
        return ""
    most = max(nodes for nodes, _, _ in found)
    at_most = [(value, curve) for nodes, value, curve in found if nodes == most]
    if len(at_most) > 4:
        at_most = [min(at_most, key=_first), max(at_most, key=_first)]
    parts = [f"{figures.ratio(value)}×{_at(curve)}" for value, curve in at_most]
    return f"Compared with one node, {most} nodes train at {listed(parts)} the speed"


def _first(pair: tuple[float, Curve]) -> float:
    return pair[0]


def _at(curve: Curve) -> str:
    return f" ({curve.label})" if curve.label else ""


def _bandwidths(run: RunView) -> str:
    values = [case.figure("busbw").measured for case in run.cases if case.trusted]
    rates = [value for value in values if value is not None]
    if not rates:
        return ""
    low, high = figures.rate(min(rates)), figures.rate(max(rates))
    return f"All-reduce reaches {low if low == high else f'{low} to {high}'} of bus bandwidth"


def _agreement(run: RunView) -> str:
    """How far predictions that were judged were off at worst, over the cases that may be trusted."""
    parts = []
    for metric, noun in (("step_time", "step time"), ("payload_tx", "traffic")):
        judged = [case.figure(metric) for case in run.cases if case.trusted and case.figure(metric).judged]
        known = [abs(figure.error) for figure in judged if figure.error is not None]
        if known:
            exact = max(known) < figures.EXACT
            extent = "equal to" if exact else f"within {figures.percent(max(known), signed=False)} of"
            parts.append(f"{noun} {extent} the prediction")
    return f"; {listed(parts)}" if parts else ""


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
