"""What the verbs share: their options, and the one way results and words leave.

Results go to stdout, progress and warnings to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rig.errors import LabError, UsageError

Files = Annotated[
    list[Path], typer.Argument(help="Scenario files, or folders of them (*.yaml, not deeper).", metavar="FILE…")
]
File = Annotated[Path, typer.Argument(help="A scenario file.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Override one key: link.rate=2.5gbit. Repeatable.")]
LabName = Annotated[
    str | None, typer.Option("--lab", help="auto, netns or docker; the scenario's own choice if absent.")
]
Only = Annotated[str, typer.Option(help="A glob over case ids, such as 'nodes=4*'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
NoLock = Annotated[bool, typer.Option("--no-lock", help="Measure even while another rig measures.")]


def load(file: Path, sets: Sequence[str] | None) -> Any:
    """A scenario from its file. Raises ScenarioError."""
    from rig import scenario

    return scenario.load(file, sets or ())


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The scenario files meant: a folder stands for its *.yaml, sorted. Raises UsageError where it has none."""
    found = []
    for path in paths:
        inside = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path}: look for scenarios: the folder has no *.yaml; name another, or a file")
        found += inside
    return found


def load_all(paths: Sequence[Path], sets: Sequence[str] | None) -> list[Any]:
    """The scenarios of files and folders. Raises UsageError with every error of every file."""
    found, wrong = [], []
    for file in files_of(paths):
        try:
            found.append(load(file, sets))
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("\n".join(dict.fromkeys(wrong)))  # what is wrong with a --set is so in every file
    return found


def concerned(scenarios: Sequence[Any], only: str) -> list[Any]:
    """Those scenarios that have a case which --only names; a single one that has none says so by itself, later.

    Raises UsageError where none of several has one, or a lab could not be built for one's cases.
    """
    from rig.lab.ceiling import here
    from rig.plan import buildable, expand, select

    if len(scenarios) == 1:
        return list(scenarios)
    found, without = [], []
    for scenario in scenarios:
        cases = expand(scenario, *here())
        try:
            select(cases, only)
        except UsageError:
            without.append(scenario.name)
        else:
            buildable(select(cases, only))
            found.append(scenario)
    if not found:
        raise UsageError(f"--only {only!r}: select cases: none matches in {', '.join(without)}")
    for name in without:
        say(f"{name}: no case is called {only!r}; left out")
    return found


@contextmanager
def watching(as_json: bool) -> Iterator[Any]:
    """A live table on a terminal, plain lines elsewhere; on stderr, since stdout is for results."""
    from rig import progress

    with progress.watch(live=sys.stderr is not None and sys.stderr.isatty() and not as_json) as watch:
        yield watch


def show(result: Any) -> None:
    """Print a result on stdout, a table or a line; a reader that has left, or a closed stdout, is no failure.

    Raises LabError when it cannot be written.
    """
    if sys.stdout is None:
        return
    try:
        print(result if isinstance(result, str) else _drawn(result), flush=True)
    except BrokenPipeError:  # `rig plan … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python would try once more when it leaves
        raise LabError(f"stdout: write the result: {error.strerror}; send it elsewhere") from error


def _drawn(table: Any) -> str:
    """A table as text, fit for the terminal there is; rich itself would end the process when a reader leaves."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    with console.capture() as drawn:
        console.print(table, end="")
    return drawn.get()


def say(text: str) -> None:
    """Print words on stderr."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
