"""Who looks on while a run goes: a live table on a terminal, one plain line per event elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from rig.model import Case
from rig.report import figures, tables
from rig.results import CaseResult

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

HEIGHT = 12  # finished cases kept in sight


class Lines:
    """One line when a case ends; its stages are not told, a log needs no breath."""

    def __init__(self) -> None:
        self._under_way = False

    def planned(self, cases: int, lab: str) -> None:
        """Say what is coming."""
        self._print(f"{cases} cases in lab {lab}")

    def began(self, case: Case) -> None:
        """Nothing to say: the line comes with the result."""
        self._under_way = True

    def stage(self, text: str) -> None:
        """Tell only what precedes the cases, such as the building of an image."""
        if not self._under_way:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Tell what should be checked before the result is trusted, or what was decided."""
        self._print(text)

    def ended(self, result: CaseResult) -> None:
        """The verdict."""
        self._print(tables.plain(asdict(result)))

    def _print(self, text: str) -> None:
        if sys.stderr is not None:
            with suppress(OSError):  # its reader may have left; the run goes on
                print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Board:
    """The last verdicts, and what is going on now; draws itself anew several times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done: list[CaseResult] = []
        self._planned = 0
        self._lab = ""
        self._now, self._stage = "", "get ready"
        self._began = self._since = time.monotonic()

    def planned(self, cases: int, lab: str) -> None:
        """How many rows there will be."""
        self._planned, self._lab = cases, lab

    def began(self, case: Case) -> None:
        """Show the case as the current one."""
        self._now, self._since = case.id, time.monotonic()
        self._stage = "start the lab"

    def stage(self, text: str) -> None:
        """Show what is being done."""
        self._stage = text

    def warn(self, text: str) -> None:
        """Above the table, where it stays."""
        self._console.print(text, style="yellow", highlight=False, markup=False)

    def ended(self, result: CaseResult) -> None:
        """Move the case up to those that are done."""
        self._done.append(result)
        self._now, self._stage = "", ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()

    def _table(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        spent = time.strftime("%M:%S", time.gmtime(time.monotonic() - self._began))
        title = f"{len(self._done)} of {self._planned or '?'} cases done, lab {self._lab or '?'}, {spent}"
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
        table.add_column("case", overflow="ellipsis", no_wrap=True, min_width=20)
        table.add_column("verdict", no_wrap=True)
        for heading in ("step", "predicted", "error"):
            table.add_column(heading, justify="right", no_wrap=True)
        for result in self._done[-HEIGHT:]:
            table.add_row(Text(result.id), Text(result.status, tables.STYLES[result.status]), *_figures(result))
        if self._now or self._stage:
            now = f"{time.monotonic() - self._since:.0f} s"
            table.add_row(Text(self._now), Text(self._stage, "cyan", overflow="ellipsis", no_wrap=True), now)
        return table


def _figures(result: CaseResult) -> tuple[str, str, str]:
    measured, predicted = result.measured.get("step_time"), result.predicted.get("step_time")
    if measured is None:
        return "", "", ""
    if predicted is None:
        return figures.seconds(measured.value), "", ""
    error = figures.percent(measured.value / predicted.value - 1)
    return figures.seconds(measured.value), figures.seconds(predicted.value), error


@contextmanager
def watch(live: bool) -> Iterator[Lines | Board]:
    """The one that fits; the live one leaves the terminal as it found it."""
    if not live:
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    board = Board(console)
    with Live(board, console=console, transient=True, refresh_per_second=4):
        yield board
