"""What a run found: the figure that its scenario's `show:` names, over a swept path, and that in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rig.report import figures
from rig.report.curves import listed
from rig.report.reading import text
from rig.report.views import CaseView, Figure, RunView, relative
from rig.results import QUANTITIES, Quantity

MOST_TRENDS = 4  # curves whose ends are told one by one
_USUAL = ("speedup", "busbw", "step_time", "payload_tx")  # what is shown where the scenario names nothing


@dataclass(frozen=True)
class Point:
    """One case of a series."""

    case: CaseView
    place: str  # the swept value it stands over, as written
    figure: Figure


@dataclass(frozen=True)
class Series:
    """Cases that differ in what they stand over only; no label where there is but one."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Finding:
    """A figure of every case, series by series."""

    x: str  # the swept path
    y: str  # the metric
    formulas: tuple[str, ...]  # by which it is predicted, whatever the case
    unit: str
    places: tuple[str, ...]  # along x, from the left
    series: tuple[Series, ...]
    without: tuple[str, ...]  # cases that ran as they should and still have no such figure

    @property
    def quantity(self) -> Quantity:
        return QUANTITIES.get(self.y, Quantity(self.y, "less"))

    @property
    def ordered(self) -> bool:
        """Whether what it stands over are quantities, so that a line from one to the next means something."""
        return all(place[:1].isdigit() for place in self.places)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for series in self.series for point in series.points)

    @property
    def trusted(self) -> tuple[Point, ...]:
        """What may be used in a claim."""
        return tuple(point for point in self.points if point.case.trusted and point.figure.measured is not None)


def finding(run: RunView) -> Finding | None:
    """What the scenario's `show:` asks for, or what suits the cases best; None where no case has such a figure.

    One-node cases that came along as baselines only are left out.
    """
    cases = [case for case in run.cases if case.role != "baseline"]
    x, y, by = _asked(run.show, cases)
    shown = [case for case in cases if _has(case, y) and x in case.params]
    if not shown:
        return None
    groups: dict[tuple[str, ...], list[Point]] = {}
    for case in shown:
        key = tuple(_word(case.params[path]) for path in by if path in case.params)
        groups.setdefault(key, []).append(Point(case, _word(case.params[x]), figure(case, y)))
    drawn = [point.figure for points in groups.values() for point in points]
    cited = [text(run.show.get("formula"))] if run.show.get("formula") else [figure.formula for figure in drawn]
    return Finding(
        x=x, y=y, formulas=tuple(filter(None, dict.fromkeys(cited))), unit=drawn[0].unit,
        places=_places([case for case in cases if x in case.params], x),
        series=tuple(Series(", ".join(key), tuple(points)) for key, points in groups.items()),
        without=tuple(case.id for case in cases if case.trusted and figure(case, y).measured is None),
    )  # fmt: skip


def figure(case: CaseView, metric: str) -> Figure:
    """A metric of the record, or one that is another's share of a sample: of those that a node has in a step."""
    of = QUANTITIES[metric].of if metric in QUANTITIES else ""
    if not of:
        return case.figure(metric)
    whole, step, rate = case.figure(of), case.figure("step_time"), case.figure("throughput")
    measured = _samples(step.measured, rate.measured, case.nodes)
    predicted = _share(whole.predicted, _samples(step.predicted, rate.predicted, case.nodes))
    value, low, high = (_share(each, measured) for each in (whole.measured, whole.low, whole.high))
    return replace(
        Figure(metric, whole.unit, value, low, high, predicted, whole.formula), error=relative(value, predicted)
    )


def answer(run: RunView) -> str:
    """One sentence: from where to where the figure goes, its best and its worst, and how far off its formula was."""
    found = finding(run)
    if found is None or not found.trusted:
        return "No case could be judged, so the question stays open."
    parts = (_trends(found), _ends(found), _without(found), _agreement(found), _traffic(run))
    told = "; ".join(filter(None, parts))
    return f"{told[:1].upper()}{told[1:]}."


# ── series ───────────────────────────────────────────────────────────────────────────────────────────
def _asked(show: Mapping[str, Any], cases: Sequence[CaseView]) -> tuple[str, str, list[str]]:
    """What stands along x, the metric, and the paths whose values have a series each. A path that is named and yet is
    in no case was swept before a `--set`.
    """
    varied, swept = _varied(cases), {path for case in cases for path in case.params}
    named = {key: text(path) for key, path in show.items() if key not in ("x", "by") or path in swept}
    x = named.get("x") or next(iter(varied), "nodes")
    y = named.get("y") or next((name for name in _USUAL if any(_has(case, name) for case in cases)), "")
    return x, y, [named["by"]] if named.get("by") else [path for path in varied if path != x]


def _varied(cases: Sequence[CaseView]) -> list[str]:
    """Swept paths of which the cases have several values: `nodes` first, what is judged left out."""
    paths = dict.fromkeys(["nodes", *(path for case in cases for path in case.params)])
    values = {path: {_word(case.params.get(path)) for case in cases} for path in paths}
    return [path for path in paths if len(values[path]) > 1 and not path.startswith("expect.")]


def _has(case: CaseView, metric: str) -> bool:
    found = figure(case, metric)
    return found.measured is not None or found.predicted is not None


def _places(cases: Sequence[CaseView], x: str) -> tuple[str, ...]:
    """Numbers by size, all else as the scenario has it."""
    values = [case.params[x] for case in cases]
    if all(figures.number(value) is not None for value in values):
        values.sort(key=float)
    return tuple(dict.fromkeys(map(_word, values)))


def _word(value: object) -> str:
    """A swept value as people read it: {powersgd: {rank: 4}} is "powersgd rank 4"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_word(part)}" for key, part in value.items())
    return " + ".join(map(_word, value)) if isinstance(value, list) else text(value)


def _samples(step: float | None, rate: float | None, nodes: int | None) -> float | None:
    return None if not step or not rate or not nodes else step * rate / nodes


def _share(value: float | None, samples: float | None) -> float | None:
    return None if value is None or not samples else value / samples


# ── the sentence ─────────────────────────────────────────────────────────────────────────────────────
def _trends(found: Finding) -> str:
    """Where each curve begins and ends; nothing where that is no order, or there are too many."""
    curves = [_judged(curve) for curve in found.series]
    ends = {(curve[0].place, curve[-1].place) for curve in curves if curve}
    if not found.ordered or len(ends) != 1 or len(curves) > MOST_TRENDS or not all(curves):
        return ""
    ((first, last),) = ends
    if first == last:
        return ""
    extent = f"from {first} to {last} nodes" if found.x == "nodes" else f"with {found.x} from {first} to {last}"
    parts = [
        f"from {_value(points[0])} to {_value(points[-1])}" + (f" ({curve.label})" if curve.label else "")
        for curve, points in zip(found.series, curves, strict=True)
    ]
    return f"{extent}, {found.quantity.noun} goes {listed(parts)}"


def _judged(curve: Series) -> list[Point]:
    return [point for point in curve.points if point.case.trusted and point.figure.measured is not None]


def _ends(found: Finding) -> str:
    points = sorted(found.trusted, key=lambda point: point.figure.measured or 0.0)
    if found.quantity.better == "more":
        points.reverse()
    best, worst = points[0], points[-1]
    if best is worst:
        return f"{found.quantity.noun} is {_value(best)} at {best.case.id}"
    return f"best {_value(best)} at {best.case.id}, worst {_value(worst)} at {worst.case.id}"


def _without(found: Finding) -> str:
    return f"none at {listed(found.without)}" if found.without else ""


def _agreement(found: Finding) -> str:
    """The worst error of what the scenario judges; of all figures where it judges none."""
    known = [point.figure for point in found.trusted if point.figure.error is not None]
    if not known:
        return "no formula predicts it"
    worst = max(abs(figure.error or 0.0) for figure in [figure for figure in known if figure.judged] or known)
    further = any(abs(figure.error or 0.0) > worst for figure in known)
    which = ", where that is judged," if further else ""
    extent = "equal to" if worst < figures.EXACT else f"within {figures.percent(worst, signed=False)} of"
    return f"measured{which} {extent} its formula"


def _traffic(run: RunView) -> str:
    """How far the bytes were off at worst, where they were judged."""
    judged = [case.figure("payload_tx") for case in run.cases if case.trusted and case.figure("payload_tx").judged]
    errors = [abs(figure.error) for figure in judged if figure.error is not None]
    if not errors:
        return ""
    worst = max(errors)
    off = figures.percent(worst, signed=False)
    return "bytes as predicted" if worst < figures.EXACT else f"bytes within {off} of the prediction"


def _value(point: Point) -> str:
    return figures.in_unit(point.figure.measured, point.figure.unit)
