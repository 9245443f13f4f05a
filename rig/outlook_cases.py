"""The cases' part of `rig plan`: two lines for each, its name and its figures, on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rig.formulas.predict import unknown
from rig.model import Case
from rig.report import figures
from rig.results import Predicted

if TYPE_CHECKING:
    from rich.text import Text


WIDTH = 80


@dataclass(frozen=True)
class Expected:
    """One case's predictions, with what they should lie between, and what limits its step."""

    case: Case
    figures: Mapping[str, Predicted]
    limit: str  # link, compute, latency or host; "" where no time is predicted


@dataclass(frozen=True)
class Column:
    """One figure: its heading, what the legend says of it, and a cell's text from a case; None where it has none."""

    heading: str
    about: str
    cell: Callable[[Expected], str | None]


def text(name: str, cases: Sequence[Expected]) -> Text:
    """Title, headings, every case, and a legend."""
    from rich.text import Text

    columns, rows = _table(cases)
    widths = [max(map(len, texts)) for texts in zip([one.heading for one in columns], *rows, strict=True)]

    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "

    def line(texts: Sequence[str]) -> str:
        return gap.join(cell.rjust(width) for cell, width in zip(texts, widths, strict=True)) + "\n"

    heading = line([one.heading for one in columns])
    title = f"{name}: {len(cases)} case{'s' if len(cases) > 1 else ''}".center(max(len(heading) - 1, 40)).rstrip()
    shown = Text(f"\n{title}\n", style="bold").append("\n", style="not bold")
    shown.append(heading + "─" * (len(heading) - 1) + "\n", style="not bold")
    for one, row in zip(cases, rows, strict=True):
        shown.append(one.case.id + (" (baseline)" if one.case.role == "baseline" else "") + "\n")
        shown.append(line(row), style="not bold")
    return shown.append(_legend(cases, columns), style="not bold dim")


def _table(cases: Sequence[Expected]) -> tuple[list[Column], list[list[str]]]:
    """The columns that some case has a figure for, and every case's cells."""
    cells = [[one.cell(case) for case in cases] for one in COLUMNS]
    used = [index for index, column in enumerate(cells) if any(cell is not None for cell in column)]
    rows = [[cells[index][row] or figures.MISSING for index in used] for row in range(len(cases))]
    return [COLUMNS[index] for index in used], rows


def _of(metric: str, how: Callable[[float], str]) -> Callable[[Expected], str | None]:
    def cell(one: Expected) -> str | None:
        found = one.figures.get(metric)
        return None if found is None else how(found.value)

    return cell


def _step(one: Expected) -> str:
    found = one.figures.get("step_time")
    return figures.seconds(found.value) if found else "unknown"


def _off(one: Expected) -> str | None:
    """How much longer the step may be: the side that is further away."""
    found = one.figures.get("step_time")
    return None if found is None or found.high is None else _percent(found.high / found.value - 1)


def _percent(share: float) -> str:
    """At most four digits: 1.5%, 12%, 240%."""
    return f"{share * 100:.{1 if share < 0.0995 else 0}f}%"


COLUMNS = (
    Column("k", "dilation", lambda one: str(one.case.dilation)),
    Column("sent", "TCP payload of one node in a step", _of("payload_tx", figures.size)),
    Column("step", "", _step),
    Column("±", "what the step may be off by", _off),
    Column("exposed", "communication that computing does not hide", _of("exposed_comm", figures.seconds)),
    Column("samples/s", "", _of("throughput", figures.plain)),
    Column("speed-up", "", _of("speedup", figures.ratio)),
    Column("eff.", "speed-up ÷ nodes", _of("efficiency", _percent)),
    Column("bus rate", "what the all-reduce makes of each link", _of("busbw", figures.rate)),
    Column("in all", "the epoch or job that the scenario names", _of("time_to_train", figures.span)),
    Column("limit", "what the step waits for most", lambda one: one.limit or None),
)


def _legend(cases: Sequence[Expected], columns: Sequence[Column]) -> str:
    lines = ["; ".join(f"{one.heading}: {one.about}" for one in columns if one.about)]
    timeless = [one.case for one in cases if one.case.size > 1 and "step_time" not in one.figures]
    if reasons := ", ".join(dict.fromkeys(unknown(case) for case in timeless if unknown(case))):
        lines.append(
            f"unknown: no formula tells how long an exchange takes there ({reasons}); bytes are known all the same"
        )
    if any(case.computes_real and not unknown(case) for case in timeless):
        lines.append("unknown: real compute is unknown until a one-node run; then give --from RUN")
    return "\n".join(lines)
