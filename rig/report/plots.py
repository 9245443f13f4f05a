"""The report's pictures: speed-up over nodes, where a step's time goes, and ranks on a time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rig.report import figures, svg
from rig.report.curves import Curve
from rig.report.views import PHASES, Bucket, CaseView, Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 40
MOST_CURVES = svg.SERIES  # more could not be told apart
MOST_RANKS = 8
LEGEND = {"earlier": "earlier micro-batches"}


@dataclass(frozen=True)
class Picture:
    """One drawn picture: the <svg> element, and what its colours mean."""

    svg: str
    legend: tuple[tuple[str, str, str], ...]  # (CSS colour variable, shape: line, dash, dot or block; label)


def scaling(curves: Sequence[Curve]) -> Picture:
    """Speed-up over nodes: measured as points with their 95 % intervals, predicted as lines, and the ideal line."""
    curves = curves[:MOST_CURVES]
    figure, axes = svg.blank(3.9)
    counts = sorted({nodes for curve in curves for nodes, _ in curve.points})
    ideal = [min(counts), max(counts)]
    axes.plot(ideal, ideal, color=svg.colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    for index, curve in enumerate(curves):
        # Side by side where curves meet: the first three by less than a point's width, more of them closer still.
        place = (index - (len(curves) - 1) / 2) / max(3, len(curves)) * (ideal[1] - ideal[0]) * 0.02
        _draw_curve(axes, curve, f"s{index % svg.SERIES}", place)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("nodes", color=svg.colour("muted"))
    axes.set_ylabel("speed-up over one node (×)", color=svg.colour("muted"))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=svg.colour("line"), linewidth=0.6)
    legend = [(f"s{index % svg.SERIES}", "dot", curve.label or "speed-up") for index, curve in enumerate(curves)]
    key = (("muted", "dot", "measured, 95 % interval"), ("muted", "line", "predicted"), ("muted", "dash", "ideal"))
    return Picture(svg.inline(figure, "scaling", "Speed-up over the number of nodes"), (*legend, *key))


def budget(cases: Sequence[CaseView]) -> Picture:
    """A bar per case: the measured step, compute and exposed communication; a tick where it was predicted."""
    shown = [case for case in cases if case.figure("step_time").measured is not None][:MOST_BARS]
    figure, axes = svg.blank(0.55 + 0.27 * len(shown))
    for row, case in enumerate(shown):
        _draw_bar(axes, row, case)
    name_rows(axes, [case.id for case in shown])
    axes.set_xlabel("step time (ms)", color=svg.colour("muted"))
    axes.set_xlim(left=0, right=axes.get_xlim()[1] * 1.08)
    axes.grid(axis="x", color=svg.colour("line"), linewidth=0.6)
    legend = tuple(_budget_legend(shown))
    return Picture(svg.inline(figure, "budget", "Measured step time of every case, with its prediction"), legend)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write what each row is beside it, from the top down; smaller where names are long."""
    size = 9.0 if max(map(len, names)) <= 40 else 7.5
    axes.set_yticks(range(len(names)), [svg.literal(name, 60) for name in names], fontsize=size)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelcolor=svg.colour("ink"))


def timeline(case: CaseView, steps: Sequence[Step]) -> Picture:
    """One step on one axis, emulated ms, as it was predicted and as every rank did it, the slowest first: compute
    above, the all-reduce of each bucket below it.
    """
    rows = _rows(case, steps)
    figure, axes = svg.blank(0.6 + 0.5 * len(rows))
    lengths = [((step.end or 0.0) - zero) / case.dilation for _, step, zero in rows]
    longest = max(*lengths, case.figure("step_time").predicted or 0.0)
    for row, (_, step, zero) in enumerate(rows):
        _draw_rank(axes, row, step, _Clock(zero, case.dilation, longest))
    _mark_prediction(axes, case, len(rows))
    axes.set_yticks(range(len(rows)), [svg.literal(name, 28) for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.45, -0.65)
    axes.tick_params(axis="y", length=0, labelcolor=svg.colour("ink"))
    axes.set_xlim(left=0)
    axes.set_xlabel("ms since the step began (emulated)", color=svg.colour("muted"))
    drawn = [step for _, step, _ in rows]
    legend = tuple((name, "block", LEGEND.get(name, name)) for name in PHASES if _has(drawn, name))
    legend += (("bucket-a", "block", "all-reduce: the bucket that ends next"),)
    return Picture(svg.inline(figure, f"timeline-{case.index}", f"Timeline of one step of {case.id}"), legend)


def _rows(case: CaseView, steps: Sequence[Step]) -> list[tuple[str, Step, float]]:
    """(what it is, step, the moment it counts from): the prediction, the slowest rank, then the others by rank."""
    slowest = max(steps, key=lambda step: (step.end or 0.0, -step.rank))
    others = [step for step in steps if step is not slowest]
    zero = min(step.start or 0.0 for step in steps)
    mark = " (slowest)" if others else ""
    found = [(_rank_name(step) + (mark if step is slowest else ""), step, zero) for step in (slowest, *others)]
    expected = [("predicted", case.expected, 0.0)] if case.expected else []
    return [*expected, *found[:MOST_RANKS]]


def typical(case: CaseView) -> tuple[Step, ...]:
    """The ranks of the measured step whose length is the median; empty where the record has no whole step."""
    whole: dict[tuple[int, int], list[Step]] = {}
    for step in case.steps:
        if not step.warmup and step.start is not None and step.end is not None and step.end > step.start:
            whole.setdefault((step.repeat, step.step), []).append(step)
    by_length = sorted(whole.values(), key=lambda steps: max((step.end or 0.0) - (step.start or 0.0) for step in steps))
    return tuple(sorted(by_length[len(by_length) // 2], key=lambda step: step.rank)) if by_length else ()


def _draw_curve(axes: Axes, curve: Curve, name: str, place: float) -> None:
    colour = svg.colour(name)
    expected = [(nodes, figure.predicted) for nodes, figure in curve.points if figure.predicted is not None]
    axes.plot([nodes for nodes, _ in expected], [value for _, value in expected], color=colour, linewidth=1.5)
    for (nodes, figure), trusted in zip(curve.points, curve.trusted, strict=True):
        if figure.measured is None:
            continue
        x = nodes + place
        if figure.low is not None and figure.high is not None:
            axes.plot([x, x], [figure.low, figure.high], color=colour, linewidth=1.5)
        inside = colour if trusted else svg.colour("paper")
        axes.plot(x, figure.measured, "o", color=colour, markersize=5.5, markerfacecolor=inside)


def _draw_bar(axes: Axes, row: int, case: CaseView) -> None:
    step, exposed = case.figure("step_time"), case.figure("exposed_comm").measured
    whole = (step.measured or 0.0) * 1e3
    waiting = min(max(0.0, exposed or 0.0) * 1e3, whole)
    axes.barh(row, whole - waiting, height=0.58, color=svg.colour("compute" if exposed is not None else "muted"))
    axes.barh(row, waiting, left=whole - waiting, height=0.58, color=svg.colour("comm"))
    label = f"{figures.seconds(step.measured)}"
    furthest = whole
    if step.predicted is not None:
        at = step.predicted * 1e3
        axes.plot([at, at], [row - 0.42, row + 0.42], color=svg.colour("ink"), linewidth=1.4)
        furthest = max(whole, at)
        label += f"  {figures.percent(step.error)}"
    note(axes, label, (furthest, row), xytext=(5, 0), va="center")


def _budget_legend(shown: Sequence[CaseView]) -> Iterator[tuple[str, str, str]]:
    split = [case.figure("exposed_comm").measured is not None for case in shown]
    if any(split):
        yield from (("compute", "block", "compute"), ("comm", "block", "exposed communication"))
    if not all(split):
        yield "muted", "block", "step, not split in the record"
    if any(case.figure("step_time").predicted is not None for case in shown):
        yield "ink", "tick", "predicted step"


class _Clock(NamedTuple):
    """How a row's moments (real seconds) become places on the axis, and how long that is (emulated seconds)."""

    zero: float
    dilation: float
    longest: float


def _draw_rank(axes: Axes, row: int, step: Step, clock: _Clock) -> None:
    def span(start: float, end: float) -> tuple[float, float]:
        return (start - clock.zero) / clock.dilation * 1e3, (end - start) / clock.dilation * 1e3

    for name, start, end in step.phases():
        axes.broken_barh([span(start, end)], (row - 0.38, 0.36), color=svg.colour(name), linewidth=0)
    for index, (bucket, begun) in enumerate(next_to_end(step.buckets)):
        left, width = span(begun, bucket.end)
        colour = svg.colour("bucket-b" if index % 2 else "bucket-a")
        axes.broken_barh([(left, width)], (row + 0.02, 0.3), color=colour, linewidth=0)
        if bucket.bytes and width > 0.09 * clock.longest * 1e3:
            middle, ink = (left + width / 2, row + 0.17), svg.colour("bucket-ink")
            axes.text(*middle, figures.size(bucket.bytes), ha="center", va="center_baseline", fontsize=7, color=ink)


def next_to_end(buckets: Sequence[Bucket]) -> Iterator[tuple[Bucket, float]]:
    """Of buckets under way together the one that ends next, from when it is that: drawn so, none hides another."""
    reached = float("-inf")
    for bucket in sorted(buckets, key=lambda bucket: bucket.end):
        yield bucket, max(bucket.start, reached)
        reached = bucket.end


def _mark_prediction(axes: Axes, case: CaseView, ranks: int) -> None:
    predicted = case.figure("step_time").predicted
    if predicted is None:
        return
    axes.plot([predicted * 1e3] * 2, [-0.6, ranks - 0.5], color=svg.colour("ink"), linewidth=1, linestyle=(0, (3, 2)))
    note(axes, "predicted end", (predicted * 1e3, -0.6), xytext=(-4, 0), ha="right", va="bottom")


def note(axes: Axes, text: str, at: tuple[float, float], **place: Any) -> None:
    """A quiet word beside a point, `place` in points from it."""
    axes.annotate(
        text, at, textcoords="offset points", fontsize=8, color=svg.colour("muted"), annotation_clip=False, **place
    )


def _has(steps: Sequence[Step], name: str) -> bool:
    return any(phase == name for step in steps for phase, _, _ in step.phases())


def _rank_name(step: Step) -> str:
    return f"rank {step.rank}" + (f" · {step.node}" if step.node else "")
