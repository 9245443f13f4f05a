"""report.html: the whole record on one self-contained page that needs no network, no script and no server."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rig.report import agreement, breakeven, curves, figures, learning, plots, topologies
from rig.report.reading import text
from rig.report.views import CaseView, Figure, LinkView, RunView, Step

if TYPE_CHECKING:
    from jinja2 import Environment

# The page stays under 3 MB and readable, whatever the record holds; what is left out is said, and is elsewhere.
MOST_TIMELINES = 12
MOST_LINKS = 300
MOST_CHANGES = 300
MOST_CASES = 500
MOST_CHARACTERS = 40_000
_URGENCY = {"fail": 0, "error": 1, "invalid": 2, "pass": 3, "skipped": 4}
_COMPARED = (
    "step_time",
    "throughput",
    "speedup",
    "efficiency",
    "payload_tx",
    "wire_tx",
    "comm_time",
    "exposed_comm",
    "busbw",
)
_NAMES = {
    "step_time": "step time",
    "speedup": "speed-up",
    "payload_tx": "payload a node sends a step",
    "wire_tx": "bytes on a node’s wire a step",
    "comm_time": "communication a step",
    "exposed_comm": "exposed communication a step",
    "busbw": "bus bandwidth",
    "held_out_loss": "held-out loss",
    "accuracy": "held-out accuracy",
    "learning_rate": "learning rate of the last step",
    "time_to_loss": "time to the target loss",
    "steps_to_loss": "steps to the target loss",
}


@dataclass(frozen=True)
class Timeline:
    """One case's timeline picture, and which step it shows."""

    case: CaseView
    step: Step
    ranks: int
    open: bool
    picture: plots.Picture


@dataclass(frozen=True)
class HostRow:
    """How well the host kept up with one case, from the raw steps; emulated seconds, shares of a step."""

    case: CaseView
    lateness: float | None  # worst lateness of a paced wait, as a share of its step
    run_delay: float | None  # mean time a rank waited for a CPU, as a share of its step
    facts: tuple[tuple[str, str], ...]  # the rest of what the record says about the host


def page(run: RunView) -> str:
    """The page as text. Everything from the record is escaped by the template."""
    return pages().get_template("report.html.j2").render(run=run, **_pictures(run), **_tables(run))


def pages() -> Environment:
    """The templates of this folder, with numbers as people read them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shows = (
        figures.seconds,
        figures.size,
        figures.rate,
        figures.ratio,
        figures.percent,
        figures.plain,
        figures.in_unit,
    )
    shown = {show.__name__: show for show in (*shows, figures.number)}
    found.filters.update(shown, cut=_cut, described=_described)
    return found


def _pictures(run: RunView) -> dict[str, Any]:
    # One node count gives a dot without a line to read; the tables say it better.
    found = [curve for curve in curves.curves(run) if len(curve.points) > 1]
    scaling = plots.scaling(found) if found else None
    timed = [case for case in run.cases if case.figure("step_time").measured is not None]
    paths = {curve.path for curve in found}
    networks, networks_left_out = topologies.topologies(run.resolved)
    even, even_left_out = breakeven.charts(run)
    learnt, learnt_left_out = learning.chart(run)
    return {
        "scatters": agreement.scatters(run.cases),
        "errors": agreement.errors(run.cases),
        "errors_left_out": agreement.left_out(run.cases),
        "even": even,
        "even_left_out": even_left_out,
        "learnt": learnt,
        "learnt_left_out": learnt_left_out,
        "networks": networks,
        "networks_left_out": networks_left_out,
        "scaling": scaling,
        "curves_left_out": max(0, len(found) - plots.MOST_CURVES),
        "curve_of": paths.pop() if len(paths) == 1 else "",
        "budget": plots.budget(timed) if timed else None,
        "bars_left_out": max(0, len(timed) - plots.MOST_BARS),
        "timelines": _timelines(run),
        "most_ranks": plots.MOST_RANKS,
    }


def _tables(run: RunView) -> dict[str, Any]:
    every = [(case, link) for case in run.cases for link in case.links]
    links = every if len(every) <= MOST_LINKS else sorted(every, key=_link_urgency)[:MOST_LINKS]
    return {
        "answer": curves.answer(run),
        "cases": run.cases[:MOST_CASES],
        "cases_left_out": max(0, len(run.cases) - MOST_CASES),
        "compared": [(case, rows) for case in run.cases[:MOST_CASES] if (rows := _compared(case))],
        "bounded": [case for case in run.cases[:MOST_CASES] if case.bound.kind],
        "ranged": any(figure.least is not None for case in run.cases for figure in case.figures.values()),
        "names": _NAMES,
        "links": links,
        "links_left_out": len(every) - len(links),
        "applied": [_applied(link) for _, link in links],
        "fates": any(_has_fate(link) for _, link in links),
        "changes": [(case, change) for case in run.cases for change in case.changes][:MOST_CHANGES],
        "changes_left_out": max(0, sum(len(case.changes) for case in run.cases) - MOST_CHANGES),
        "hosts": [_host(case) for case in run.cases[:MOST_CASES] if case.steps or case.host],
        "environment": tuple(_flat(run.environment)),
        "command": run.command or f"rig run {shlex.quote(run.path or 'FILE')}",
        "scenario_text": run.text,
    }


def _timelines(run: RunView) -> tuple[Timeline, ...]:
    """The cases worth a picture, in page order: those in trouble, then those that wait longest for the network."""
    drawable = [(case, steps) for case in run.cases if (steps := plots.typical(case))]
    drawable.sort(key=lambda pair: (_URGENCY[pair[0].status], -_exposure(pair[0])))
    chosen = sorted(drawable[:MOST_TIMELINES], key=lambda pair: pair[0].index)
    return tuple(
        Timeline(case, steps[0], len(steps), case is drawable[0][0], plots.timeline(case, steps))
        for case, steps in chosen
    )


def _exposure(case: CaseView) -> float:
    step, exposed = case.figure("step_time").measured, case.figure("exposed_comm").measured
    return exposed / step if step and exposed is not None else 0.0


def _compared(case: CaseView) -> tuple[Figure, ...]:
    """The case's metrics in a fixed order, then any a later version brings."""
    metrics = (*_COMPARED, *(metric for metric in case.figures if metric not in _COMPARED))
    figured = (case.figures[metric] for metric in metrics if metric in case.figures)
    return tuple(figure for figure in figured if figure.measured is not None or figure.predicted is not None)


def _link_urgency(pair: tuple[CaseView, LinkView]) -> float:
    error = pair[1].error
    return -abs(error) if error is not None else -1.0


def _has_fate(link: LinkView) -> bool:
    """Whether it was asked for more than a rate and a delay."""
    return any(figures.number(link.asked.get(name)) for name in ("jitter", "loss", "duplicate", "reorder"))


def _described(does: object) -> str:
    """What a direction was asked to be: "50.00 Mb/s, 20.00 ms, loss 1.00 %"."""
    figure = {name: figures.number(value) for name, value in does.items()} if isinstance(does, Mapping) else {}
    parts = [figures.rate(figure.get("rate"))]
    parts += [figures.seconds(figure["delay"])] if figure.get("delay") else []
    parts += [f"± {figures.seconds(figure['jitter'])}"] if figure.get("jitter") else []
    parts += [f"loss {figures.percent(figure['loss'], signed=False)}"] if figure.get("loss") else []
    return ", ".join(parts)


def _applied(link: LinkView) -> str:
    """What the kernel holds besides the rate: "burst 131072, mtu 1500"."""
    return ", ".join(f"{key} {_shown(value)}" for key, value in link.applied.items() if key != "rate")


def _host(case: CaseView) -> HostRow:
    late, delays = [], []
    for step in case.steps:
        if step.warmup or step.start is None or step.end is None or step.end <= step.start:
            continue
        whole = step.end - step.start
        late += [step.rest["late"] / whole] if step.rest["late"] is not None else []
        delays += [step.rest["run_delay"] / whole] if step.rest["run_delay"] is not None else []
    of_nodes = ("nodes", "lab")  # long, and in record.json
    facts = {key: value for key, value in case.host.items() if key not in of_nodes}
    delay = sum(delays) / len(delays) if delays else None
    return HostRow(case, max(late, default=None), delay, tuple(_flat(facts)))


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, text) of every fact in a nested document."""
    for key, value in facts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _shown(value)


def _shown(value: object) -> str:
    if value in (None, {}, []):
        return figures.MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return figures.plain(figures.number(value))
    if isinstance(value, list):
        return ", ".join(map(_shown, _first(value, 32)))
    return text(value)


def _first(values: Iterable[object], most: int) -> list[object]:
    return [value for _, value in zip(range(most), values, strict=False)]


def _cut(content: str, most: int = MOST_CHARACTERS) -> str:
    """The text up to `most` characters, saying how many follow."""
    return (
        content
        if len(content) <= most
        else f"{content[:most]} … ({len(content) - most} more characters in record.json)"
    )
