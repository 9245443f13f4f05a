"""How well predictions hold: every case measured against predicted, and every case's error beside its tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rig.report import figures, svg
from rig.report.plots import MOST_BARS, Picture, name_rows, note
from rig.report.views import CaseView, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 200  # of one scatter
_SANE = (1e-9, 1e9)  # seconds and ratios that can be drawn to one scale
_WORST = 10.0  # errors beyond it are drawn there, and told in words
_PANELS = {"step_time": ("step time (ms)", 1e3), "speedup": ("speed-up over one node (×)", 1.0)}


def scatters(cases: Sequence[CaseView]) -> tuple[Picture, ...]:
    """Measured over predicted: a picture for step time and one for speed-up, where they were predicted."""
    return tuple(_scatter(metric, found) for metric in _PANELS if (found := _pairs(cases, metric)))


def errors(cases: Sequence[CaseView]) -> Picture | None:
    """A row per case, sorted by its step time's error; None where there is none. Of many, those furthest off."""
    rows = [case for case in cases if _errors(case)]
    if not rows:
        return None
    rows = sorted(rows, key=lambda case: -max(map(abs, _errors(case).values())))[:MOST_BARS]
    rows.sort(key=lambda case: next(iter(_errors(case).values())), reverse=True)
    figure, axes = svg.blank(0.6 + 0.24 * len(rows))
    hovers = {name: text for row, case in enumerate(rows) for name, text in _draw_row(axes, row, case).items()}
    axes.axvline(0, color=svg.colour("muted"), linewidth=0.8)
    name_rows(axes, [case.id for case in rows])
    furthest = max(map(abs, axes.get_xlim()))
    axes.set_xlim(-furthest, furthest * 1.12)
    axes.set_xlabel("(measured − predicted) ÷ predicted (%)", color=svg.colour("muted"))
    axes.grid(axis="x", color=svg.colour("line"), linewidth=0.6)
    return Picture(svg.inline(figure, "errors", "Error of every case's prediction", hovers), _errors_legend(rows))


def left_out(cases: Sequence[CaseView]) -> int:
    """How many cases `errors` has no room for."""
    return max(0, sum(bool(_errors(case)) for case in cases) - MOST_BARS)


def _pairs(cases: Sequence[CaseView], metric: str) -> list[tuple[CaseView, float, float]]:
    """(case, predicted, measured); speed-up of one node is 1 by definition, and shows nothing."""
    found = [(case, case.figure(metric)) for case in cases if metric != "speedup" or case.nodes != 1]
    known = [(case, figure.predicted, figure.measured) for case, figure in found]
    return [
        (case, predicted, measured)
        for case, predicted, measured in known
        if predicted is not None
        and measured is not None
        and all(_SANE[0] < v < _SANE[1] for v in (predicted, measured))
    ][:MOST_POINTS]


def _scatter(metric: str, found: Sequence[tuple[CaseView, float, float]]) -> Picture:
    name, factor = _PANELS[metric]
    figure, axes = svg.blank(4.0, 4.2)
    values = [value * factor for _, *pair in found for value in pair]
    low, high = min(values), max(values)
    wide = high > 10 * low
    limits = (
        (low / 1.25, high * 1.25) if wide else (low - (high - low or high) * 0.12, high + (high - low or high) * 0.12)
    )
    axes.plot(limits, limits, color=svg.colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    hovers = {}
    for case, predicted, measured in found:
        inside = svg.colour("s0" if case.trusted else "paper")
        at = (predicted * factor, measured * factor)
        axes.plot(*at, "o", color=svg.colour("s0"), markersize=5, markerfacecolor=inside, gid=f"case-{case.index}")
        hovers[f"case-{case.index}"] = _told(case, case.figure(metric))
    for axis, side in ((axes.xaxis, "predicted"), (axes.yaxis, "measured")):
        axis.set_label_text(f"{side} {name}", color=svg.colour("muted"))
    if wide:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    if wide:
        svg.logarithmic(axes.xaxis)
        svg.logarithmic(axes.yaxis)
    axes.set_aspect("equal")
    axes.grid(color=svg.colour("line"), linewidth=0.6)
    title = f"Measured over predicted {name.partition(' (')[0]}"
    legend = (("s0", "dot", "a case"), ("muted", "dash", "measured = predicted"))
    return Picture(svg.inline(figure, f"agreement-{metric}", title, hovers), legend)


def _told(case: CaseView, figure: Figure) -> str:
    shown = [figures.in_unit(value, figure.unit) for value in (figure.measured, figure.predicted)]
    return f"{case.id}: measured {shown[0]}, predicted {shown[1]}, {figures.percent(figure.error)}"


def _errors(case: CaseView) -> dict[str, float]:
    """Per cent, the step time's first; what lies beyond all reason at its edge."""
    known = {metric: case.figure(metric).error for metric in _PANELS if metric != "speedup" or case.nodes != 1}
    return {metric: 100 * max(-_WORST, min(_WORST, error)) for metric, error in known.items() if error is not None}


def _draw_row(axes: Axes, row: int, case: CaseView) -> dict[str, str]:
    found = _errors(case)
    first = next(iter(found))
    tolerance = case.figure(first).tolerance
    if tolerance is not None and 0 < tolerance < _WORST:
        axes.barh(row, 200 * tolerance, left=-100 * tolerance, height=1.0, color=svg.colour("line"), zorder=0.5)
    hovers = {}
    for metric, error in found.items():
        name = f"{metric}-{case.index}"
        if metric == "step_time":
            inside = svg.colour("s0" if case.trusted else "paper")
            axes.plot(error, row, "o", color=svg.colour("s0"), markersize=5, markerfacecolor=inside, gid=name)
        else:
            axes.plot(error, row, "|", color=svg.colour("s1"), markersize=9, markeredgewidth=1.8, gid=name)
        hovers[name] = _told(case, case.figure(metric))
    note(axes, figures.percent(case.figure(first).error), (max(found.values()), row), xytext=(6, 0), va="center")
    return hovers


def _errors_legend(rows: Sequence[CaseView]) -> tuple[tuple[str, str, str], ...]:
    legend = []
    if any("step_time" in _errors(case) for case in rows):
        legend.append(("s0", "dot", "step time"))
    if any("speedup" in _errors(case) for case in rows):
        legend.append(("s1", "tick", "speed-up"))
    if any(case.figure(next(iter(_errors(case)))).tolerance is not None for case in rows):
        legend.append(("line", "block", "within the tolerance"))
    return tuple(legend)
