"""What a terminal and a CI log get to see: the summary table, and one line per case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rig.report import figures
from rig.report.reading import read, read_case
from rig.report.views import CaseView, RunView

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES = {"pass": "green", "fail": "bold red", "invalid": "yellow", "error": "bold red", "skipped": "dim"}
# A log or a terminal may be unable to show what a page can.
_ASCII = str.maketrans({"−": "-", "–": "-", "µ": "u", "×": "x", "…": "...", "÷": "/"})


def summary(record: Mapping[str, Any]) -> Table:
    """The verdicts as a table that fits 80 columns; cases that did not pass have their reasons below it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    run = read(record)
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=_line(run.name, 80), title_style="bold")
    table.add_column("case", overflow="fold", min_width=20)
    table.add_column("k", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for heading in ("step", "predicted", "error", "traffic", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in run.cases:
        table.add_row(*_row(case))
    table.caption, table.caption_justify, table.caption_style = _reasons(run), "left", ""
    return table


def plain(case: Mapping[str, Any]) -> str:
    """One line about one `cases[]` entry, for a log: verdict, figures, and the reason where it did not pass."""
    view = read_case(case)
    step, traffic, speedup = (view.figure(metric) for metric in ("step_time", "payload_tx", "speedup"))
    parts = [f"{view.status.upper():7} {view.id} k={view.dilation:g}{' unstable' if view.unstable else ''}"]
    if step.measured is not None:
        against = f" (predicted {figures.seconds(step.predicted)}, {figures.percent(step.error)})"
        parts.append(f"step {figures.seconds(step.measured)}" + (against if step.predicted is not None else ""))
    if traffic.measured is not None:
        against = f" ({figures.percent(traffic.error)})" if traffic.error is not None else ""
        parts.append(f"sent {figures.size(traffic.measured)}{against}")
    if speedup.measured is not None:
        against = f" (predicted {figures.ratio(speedup.predicted)})" if speedup.predicted is not None else ""
        parts.append(f"speed-up {figures.ratio(speedup.measured)}{against}")
    for metric in ("loss", "held_out_loss", "accuracy", "time_to_loss"):
        figure = view.figure(metric)
        if figure.measured is not None:
            parts.append(f"{metric.replace('_', ' ')} {figures.in_unit(figure.measured, figure.unit)}")
    if view.status != "pass":
        parts.append(_line(view.reason, 400) or "no reason in the record")
    return _line("; ".join(parts).translate(_ASCII), 1000)


def _row(case: CaseView) -> tuple[Text, ...]:
    from rich.text import Text

    step, traffic, speedup = (case.figure(metric) for metric in ("step_time", "payload_tx", "speedup"))
    pair = f"{figures.ratio(speedup.measured)}/{figures.ratio(speedup.predicted)}"
    cells = (
        *(figures.seconds(step.measured), figures.seconds(step.predicted), figures.percent(step.error)),
        figures.percent(traffic.error),
        pair if "speedup" in case.figures else figures.MISSING,
    )
    return (
        Text(_line(case.id, 60)),
        Text(f"{case.dilation:g}"),
        Text(case.status + ("*" if case.unstable else ""), style=STYLES[case.status]),
        *(Text(cell.translate(_ASCII).replace(" %", "%")) for cell in cells),
    )


def _reasons(run: RunView) -> Text:
    """What the columns mean, then a line per case that did not pass."""
    from rich.text import Text

    caption = Text("error: of step time; traffic: error of payload bytes; speed-up: measured / predicted", style="dim")
    if any(case.unstable for case in run.cases):
        caption.append("; * unstable")
    for case in run.cases:
        if case.status != "pass":
            caption.append(f"\n{case.status} ", style=STYLES[case.status])
            reason = _line(case.reason, 400) or "no reason in the record"
            caption.append(f"{_line(case.id, 60)}: {reason}", style="not dim")
    return caption


def _line(content: str, most: int) -> str:
    """The text on one line, cut to `most` characters."""
    words = " ".join(content[: most * 4].split())
    return words if len(words) <= most else f"{words[: most - 3]}..."
