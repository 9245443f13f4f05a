"""From which bandwidth on do more nodes help: predicted speed-up against the rate, with what the run measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING

from rig.report import figures, svg
from rig.report.figures import number
from rig.report.plots import Picture
from rig.report.views import CaseView, Prospect, RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 12
_MBIT = 1e6
Key = tuple[tuple[str, str], ...]  # what a case is, but for its nodes and its rate


@dataclass(frozen=True)
class Chart:
    """The curves of one kind of case, one for each node count, as a picture."""

    title: str  # "workload.batch 8"; empty where nothing else was swept
    picture: Picture


def charts(run: RunView) -> tuple[tuple[Chart, ...], int]:
    """A chart for every kind of case that has curves, and how many more there would be."""
    kinds = {case.id: _kind(case) for case in run.cases}
    groups: dict[Key, dict[int, Prospect]] = {}
    for curve in run.curves:
        key = kinds.get(curve.case, (("case", curve.case),))
        groups.setdefault(key, {}).setdefault(curve.nodes, curve)
    shown = list(groups.items())[:MOST_DRAWN]
    drawn = (
        Chart(
            ", ".join(f"{path} {value}" for path, value in key),
            _draw(index, [of[nodes] for nodes in sorted(of)], [case for case in run.cases if kinds[case.id] == key]),
        )
        for index, (key, of) in enumerate(shown)
    )
    return tuple(drawn), len(groups) - len(shown)


def even(curve: Prospect) -> float | None:
    """The lowest rate (bit/s) from which the curve stays above 1, None where there is none or it always is. Straight on
    log-log paper between two points: speed-up is proportional to the rate as long as the link bounds it.
    """
    for (slow, less), (fast, more) in reversed(list(pairwise(curve.points))):
        if less < 1 <= more:
            return exp(log(slow) + log(1 / less) / log(more / less) * log(fast / slow))
    return None


def _kind(case: CaseView) -> Key:
    return tuple((path, str(value)) for path, value in case.params.items() if path not in ("nodes", "link.rate"))


def _draw(index: int, curves: Sequence[Prospect], cases: Sequence[CaseView]) -> Picture:
    figure, axes = svg.blank(3.9)
    axes.set_xscale("log")
    axes.axhline(1, color=svg.colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    hovers: dict[str, str] = {}
    for place, curve in enumerate(curves):
        name = f"s{place % svg.SERIES}"
        rates, gains = zip(*curve.points, strict=True)
        axes.plot([rate / _MBIT for rate in rates], gains, color=svg.colour(name), linewidth=1.5)
        hovers |= dict(_draw_measured(axes, name, [case for case in cases if case.nodes == curve.nodes]))
    svg.logarithmic(axes.xaxis)
    axes.set_xlabel("link rate (Mb/s)", color=svg.colour("muted"))
    axes.set_ylabel("speed-up over one node (×)", color=svg.colour("muted"))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=svg.colour("line"), linewidth=0.6)
    legend = tuple((f"s{place % svg.SERIES}", "line", _label(curve)) for place, curve in enumerate(curves))
    key = (("muted", "dot", "measured, 95 % interval"), ("muted", "dash", "one node alone"))
    return Picture(svg.inline(figure, f"break-even-{index}", "Speed-up against bandwidth", hovers), (*legend, *key))


def _label(curve: Prospect) -> str:
    rate = even(curve)
    if rate is not None:
        return f"{curve.nodes} nodes, worth it from about {float(f'{rate / _MBIT:.2g}'):g} Mb/s"
    throughout = "always" if curve.points[0][1] >= 1 else "never"
    return f"{curve.nodes} nodes, {throughout} worth it in this range"


def _draw_measured(axes: Axes, colour: str, cases: Sequence[CaseView]) -> Iterator[tuple[str, str]]:
    for case in cases:
        rate, gain = _rate(case), case.figure("speedup")
        if rate is None or gain.measured is None:
            continue
        drawn, inside = svg.colour(colour), svg.colour(colour if case.trusted else "paper")
        if gain.low is not None and gain.high is not None:
            axes.plot([rate / _MBIT] * 2, [gain.low, gain.high], color=drawn, linewidth=1.5)
        name = f"case-{case.index}"
        axes.plot(rate / _MBIT, gain.measured, "o", color=drawn, markersize=5.5, markerfacecolor=inside, gid=name)
        yield name, f"{case.id}: {figures.ratio(gain.measured)}× at {figures.rate(rate)}"


def _rate(case: CaseView) -> float | None:
    """The slowest link's, as asked (bit/s)."""
    rates = [number(link.asked.get("rate")) for link in case.links]
    return min((rate for rate in rates if rate is not None and rate > 0), default=None)
