"""One page about several runs, a section each: the question, the answer, the picture, the formula, the verdicts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rig.formulas import FORMULAS
from rig.report import figures, findings, svg, write_page
from rig.report.findings import Finding, Point
from rig.report.plots import Picture
from rig.report.reading import read
from rig.report.views import STATUSES, CaseView, RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = "report.html"
MOST_SERIES = svg.SERIES  # more could not be told apart
MOST_ROWS = 200
_WIDE = 20.0  # the greatest figure over the least, from which on an axis is logarithmic
_APART = 0.06  # of the way to the next place, by which curves stand beside each other


@dataclass(frozen=True)
class Section:
    """One run on the page."""

    run: RunView
    link: str  # to the run's own page; empty where there is none
    answer: str
    finding: Finding | None
    picture: Picture | None
    series_left_out: int
    formulas: tuple[tuple[str, str], ...]  # name, and what it is in a sentence
    rows: tuple[Point, ...]
    rows_left_out: int
    troubled: tuple[CaseView, ...]  # cases that did not pass

    @property
    def counts(self) -> Mapping[str, int]:
        return self.run.counts


def write(runs: Sequence[tuple[Mapping[str, Any], Path]], out: Path) -> Path:
    """Write `<out>/<UTC>-experiments/report.html` about runs (each its record and its folder), and return its path.

    Raises RecordError where that cannot be written.
    """
    folder = out / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-experiments"
    return write_page(folder / PAGE, page([(record, _link(place, folder)) for record, place in runs]))


def page(runs: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """The page as text, from records and the links to their own pages ("" for none)."""
    from rig.report import html

    sections = [_section(index, read(record), link) for index, (record, link) in enumerate(runs)]
    counts = {status: sum(section.counts[status] for section in sections) for status in STATUSES}
    return html.pages().get_template("experiments.html.j2").render(sections=sections, counts=counts)


def _link(place: Path, folder: Path) -> str:
    """The run's own page as seen from the folder of this one."""
    own = place / PAGE
    return Path(os.path.relpath(own, folder)).as_posix() if own.is_file() else ""


def _section(index: int, run: RunView, link: str) -> Section:
    found = findings.finding(run)
    points = found.points if found else ()
    return Section(
        run=run,
        link=link,
        answer=findings.answer(run),
        finding=found,
        picture=draw(found, f"experiment-{index}") if found else None,
        series_left_out=max(0, len(found.series) - MOST_SERIES) if found else 0,
        formulas=tuple((name, _about(name)) for name in found.formulas) if found else (),
        rows=points[:MOST_ROWS],
        rows_left_out=max(0, len(points) - MOST_ROWS),
        troubled=tuple(case for case in run.cases if case.status != "pass"),
    )


def _about(formula: str) -> str:
    """The first sentence of a formula's docstring."""
    first = " ".join((getattr(FORMULAS.get(formula), "__doc__", "") or "").split("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".")


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────
def draw(found: Finding, name: str) -> Picture:
    """Measured figures as points with their 95 % intervals, predicted ones as lines, or as dashes where what they
    stand over has no order; places are evenly apart, whatever they are.
    """
    drawn = found.series[:MOST_SERIES]
    figure, axes = svg.blank(3.9)
    hovers: dict[str, str] = {}
    for number, series in enumerate(drawn):
        aside = (number - (len(drawn) - 1) / 2) * _APART
        spots = [(found.places.index(point.place) + aside, point) for point in series.points]
        _draw_predicted(axes, found, spots, f"s{number}")
        hovers |= dict(_draw_measured(axes, spots, f"s{number}"))
    _scale(axes, found)
    legend = [(f"s{number}", "dot", series.label or found.quantity.noun) for number, series in enumerate(drawn)]
    key = (("muted", "dot", "measured, 95 % interval"), ("muted", "line", "predicted"))
    title = f"{found.quantity.noun} over {found.x}"
    return Picture(svg.inline(figure, name, title, hovers), (*legend, *key))


def _draw_predicted(axes: Axes, found: Finding, spots: Sequence[tuple[float, Point]], name: str) -> None:
    known = sorted((at, point.figure.predicted) for at, point in spots if point.figure.predicted is not None)
    colour = svg.colour(name)
    if found.ordered and len(known) > 1:
        axes.plot([at for at, _ in known], [value for _, value in known], color=colour, linewidth=1.5)
        return
    for at, value in known:
        axes.plot([at - 0.16, at + 0.16], [value, value], color=colour, linewidth=1.5)


def _draw_measured(axes: Axes, spots: Sequence[tuple[float, Point]], name: str) -> Iterator[tuple[str, str]]:
    for at, point in spots:
        shown, colour = point.figure, svg.colour(name)
        if shown.measured is None:
            continue
        if shown.low is not None and shown.high is not None:
            axes.plot([at, at], [shown.low, shown.high], color=colour, linewidth=1.5)
        inside = colour if point.case.trusted else svg.colour("paper")
        spot = f"case-{point.case.index}"
        axes.plot(at, shown.measured, "o", color=colour, markersize=5.5, markerfacecolor=inside, gid=spot)
        value, expected = (figures.in_unit(each, shown.unit) for each in (shown.measured, shown.predicted))
        yield spot, f"{point.case.id}: measured {value}, predicted {expected}, {figures.percent(shown.error)}"


def _scale(axes: Axes, found: Finding) -> None:
    """Names along x; figures with their unit along y, on a logarithmic scale where they are far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xticks(range(len(found.places)), [svg.literal(place, 24) for place in found.places])
    axes.set_xlim(-0.5, len(found.places) - 0.5)
    axes.set_xlabel(svg.literal(found.x), color=svg.colour("muted"))
    axes.set_ylabel(svg.literal(found.quantity.noun), color=svg.colour("muted"))
    values = [value for point in found.points for value in (point.figure.measured, point.figure.predicted) if value]
    if values and min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axes.yaxis.set_minor_locator(NullLocator())
    elif not values or min(values) >= 0:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, found.unit)))
    axes.grid(axis="y", color=svg.colour("line"), linewidth=0.6)


def _tick(value: float, unit: str) -> str:
    """A round number, as a tick is: "200 ms" in place of "200.0 ms"."""
    if value == 0:
        return "0"
    number, _, rest = figures.in_unit(value, unit).partition(" ")
    short = number.removesuffix("×")
    trimmed = short.rstrip("0").rstrip(".") if "." in short else short
    return f"{trimmed}{'×' if number.endswith('×') else ''}{' ' + rest if rest else ''}"
