"""Loss against time: what a way of training is worth is not how fast its steps are, but how soon they have learnt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rig.report import figures, svg
from rig.report.figures import number
from rig.report.plots import Picture
from rig.report.views import CaseView, RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CURVES = svg.SERIES  # more could not be told apart
MOST_POINTS = 400  # of a curve


@dataclass(frozen=True)
class LossCurve:
    """One case's loss over the seconds of its steps, means over repeats; evaluations take no time here."""

    case: CaseView
    held_out: bool  # of samples that are held out; else that of the batches it was trained on
    points: tuple[tuple[float, float], ...]  # (s, loss)


def loss_curves(run: RunView) -> list[LossCurve]:
    """Of every case that tells a loss at two moments at least, in the record's order."""
    found = (_held_out(case) or _trained(case) for case in run.cases)
    return [curve for curve in found if curve is not None]


def chart(run: RunView) -> tuple[Picture | None, int]:
    """The picture, None where no case learns, and how many curves are left out."""
    found = loss_curves(run)
    return (_draw(found[:MOST_CURVES], _target(run)) if found else None), max(0, len(found) - MOST_CURVES)


def seconds(case: CaseView, repeat: int) -> dict[int, float]:
    """Step of a repeat → emulated seconds of training when it is done: of each step the mean over ranks. Warm-up is
    counted, for it trains as well.
    """
    spans: dict[int, list[float]] = defaultdict(list)
    for step in case.steps:
        if step.repeat == repeat and step.start is not None and step.end is not None:
            spans[step.step].append(max(0.0, step.end - step.start) / case.dilation)
    order = sorted(spans)
    return dict(zip(order, accumulate(fmean(spans[step]) for step in order), strict=True))


def _held_out(case: CaseView) -> LossCurve | None:
    known = {(seen.repeat, seen.step): seen.loss for seen in case.evaluations}
    return _curve(case, known, held_out=True)


def _trained(case: CaseView) -> LossCurve | None:
    losses: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in case.steps:
        if (loss := step.rest.get("loss")) is not None:
            losses[step.repeat, step.step].append(loss)
    return _curve(case, {moment: fmean(values) for moment, values in losses.items()}, held_out=False)


def _curve(case: CaseView, losses: Mapping[tuple[int, int], float], held_out: bool) -> LossCurve | None:
    """From the loss after each step of each repeat; None for less than two moments."""
    times = {repeat: seconds(case, repeat) for repeat in {repeat for repeat, _ in losses}}
    moments: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (repeat, step), loss in losses.items():
        if step in times[repeat]:
            moments[step].append((times[repeat][step], loss))
    points = [tuple(map(fmean, zip(*moments[step], strict=True))) for step in sorted(moments)]
    thinned = points[:: max(1, -(-len(points) // MOST_POINTS))]
    return LossCurve(case, held_out, tuple((at, loss) for at, loss in thinned)) if len(thinned) > 1 else None


def _target(run: RunView) -> float | None:
    """The loss that every case is to reach, where there is one."""
    works = [case.get("workload") for case in run.resolved]
    targets = {number(work.get("target_loss")) for work in works if isinstance(work, Mapping)}
    return targets.pop() if len(targets) == 1 else None


def _draw(curves: Sequence[LossCurve], target: float | None) -> Picture:
    figure, axes = svg.blank(3.9)
    if target is not None:
        axes.axhline(target, color=svg.colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    for place, curve in enumerate(curves):
        _draw_curve(axes, curve, svg.colour(f"s{place}"))
    axes.set_xlabel("seconds of training (emulated)", color=svg.colour("muted"))
    axes.set_ylabel("loss", color=svg.colour("muted"))
    axes.set_xlim(left=0)
    axes.grid(axis="y", color=svg.colour("line"), linewidth=0.6)
    return Picture(svg.inline(figure, "learning", "Loss over seconds of training"), tuple(_legend(curves, target)))


def _draw_curve(axes: Axes, curve: LossCurve, colour: str) -> None:
    style: dict[str, Any] = {"marker": "o", "markersize": 4} if curve.held_out else {"linestyle": (0, (3, 2))}
    inside = colour if curve.case.trusted else svg.colour("paper")
    times, losses = zip(*curve.points, strict=True)
    axes.plot(times, losses, color=colour, markerfacecolor=inside, linewidth=1.5, **style)


def _legend(curves: Sequence[LossCurve], target: float | None) -> Iterator[tuple[str, str, str]]:
    for place, curve in enumerate(curves):
        time, steps = (curve.case.figure(name).measured for name in ("time_to_loss", "steps_to_loss"))
        reached = f", at the target after {figures.seconds(time)}, {figures.plain(steps)} steps" if time else ""
        yield f"s{place}", "dot" if curve.held_out else "dash", f"{curve.case.id}{reached}"
    if target is not None:
        yield "muted", "dash", f"target {figures.plain(target)}"
