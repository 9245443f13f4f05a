"""The verbs and the exit codes, nothing else. Heavy imports happen inside a verb, so that help is quick.

Exit codes: 0 all pass · 1 a verdict failed · 2 bad usage or scenario · 3 lab, workload or machine broke ·
4 invalid or skipped · 130 interrupted. Where several hold: 130, then 3, 1, 4.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from rig import verbs
from rig.errors import LabError, RigError, UsageError
from rig.node.undisturbed import ENDING
from rig.terminal import (
    AsJson,
    File,
    Files,
    LabName,
    NoLock,
    Only,
    Sets,
    concerned,
    files_of,
    load,
    load_all,
    say,
    show,
    watching,
)

app = typer.Typer(
    help="Run distributed training on an emulated network, and check it against formulas.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    _end_on_signals()
    try:
        status = app(standalone_mode=False) or 0
        if status == _INTERRUPTED:  # typer catches Ctrl-C itself and returns this, older ones let it pass
            raise KeyboardInterrupt
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        status = _INTERRUPTED
    except RigError as error:
        say(str(error))
        status = error.exit_code
    except Exception as error:  # noqa: BLE001  the one place where the unforeseen becomes an exit code
        status = _unforeseen(error)
    # Nothing is left to interrupt, and Python would else die of a caught Ctrl-C that met it in exec().
    signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDING))
    sys.exit(status)


def _unforeseen(error: Exception) -> int:
    if hasattr(error, "format_message"):  # click's own usage errors
        message = error.format_message()
        say(message if message.startswith("Usage:") else f"rig: {message}; see `rig --help`")
        return 2
    traceback.print_exception(error)
    say("rig: a defect of the rig itself, with its place above; please report it")
    return 3


@app.command()
def run(
    files: Files, lab: LabName = None, sets: Sets = None, only: Only = "*",
    out: Annotated[Path, typer.Option(help="The folder that gets the run's folder.")] = Path("reports"),
    no_lock: NoLock = False, as_json: AsJson = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop after the plan.")] = False,
) -> None:  # fmt: skip
    """Run scenarios, judge them, write record and report."""
    from rig import pipeline

    scenarios = concerned(load_all(files, sets), only)
    if dry_run:
        return _show_plans(scenarios, as_json, only=only)
    command = shlex.join(["rig", *sys.argv[1:]])
    books: list[Any] = []
    codes = []
    with _afterwards(lambda: _write_experiments(books, out) if len(scenarios) > 1 else None):
        for scenario in scenarios:
            request = pipeline.Request(lab or scenario.lab, out, only, command, lock=not no_lock)
            try:
                codes.append(_run_one(scenario, request, books, as_json))
            except UsageError:
                raise
            except RigError as error:  # what one scenario cannot have, another may not need
                if len(scenarios) == 1:
                    raise
                say(f"{scenario.name}: {error}")
                codes.append(error.exit_code)
    raise SystemExit(min(codes, key=(3, 1, 4, 0).index))  # the gravest


def _run_one(scenario: Any, request: Any, books: list[Any], as_json: bool) -> int:
    """Run a scenario to its report, and return its exit code; its record joins `books` before the first case."""
    from rig import pipeline
    from rig import report as reports
    from rig.report import tables

    with watching(as_json) as watch:
        work = pipeline.prepare(scenario, request, watch)
        book = work.book
        books.append(book)
        with _afterwards(lambda: reports.write(book.document, book.folder)):
            pipeline.run(work, watch)
    show(json.dumps(book.document, indent=1) if as_json else tables.summary(book.document))
    say(f"report: {book.folder / 'report.html'}")
    return int(book.document["summary"]["exit"])


def _write_experiments(books: Sequence[Any], out: Path) -> None:
    from rig.report import experiments

    if books:
        say(f"experiments: {experiments.write([(book.document, book.folder) for book in books], out)}")


@app.command()
def probe(
    file: File, lab: LabName = None, sets: Sets = None, no_lock: NoLock = False, as_json: AsJson = False
) -> None:  # fmt: skip
    """Measure a scenario's links, and nothing else."""
    from rig import inspection

    scenario = load(file, sets)
    with watching(as_json) as watch:
        document, table, status = inspection.run_probe(scenario, lab or scenario.lab, watch, locked=not no_lock)
    show(json.dumps(document, indent=1) if as_json else table)
    raise SystemExit(status)


@app.command()
def plan(
    file: File, sets: Sets = None, as_json: AsJson = False,
    earlier: Annotated[Path | None, typer.Option("--from", help="A run that did the one-node cases.")] = None,
) -> None:  # fmt: skip
    """Show the cases, what would be built, and what is predicted. Needs no root, no torch, no Docker."""
    _show_plans([load(file, sets)], as_json, earlier=earlier)


@app.command()
def advise(
    file: File, sets: Sets = None, only: Only = "*", as_json: AsJson = False,
    earlier: Annotated[Path | None, typer.Option("--from", help="A run that did the one-node cases.")] = None,
) -> None:  # fmt: skip
    """Rank what would help one case most, by prediction."""
    from rig import advice, advice_text
    from rig.lab.ceiling import here
    from rig.plan import expand

    scenario = load(file, sets)
    cases = expand(scenario, *here())
    known = {}
    if earlier:
        from rig import outlook, record

        known = outlook.known_from(record.load(earlier).document, cases)
    told = advice_text.document if as_json else advice_text.text
    found = told(scenario.name, advice.advise(advice.studied(cases, only, known)))
    show(json.dumps(found, indent=1) if as_json else found)


@app.command()
def graph(
    file: File, sets: Sets = None, only: Only = "*",
    form: Annotated[str, typer.Option("--format", help="text, mermaid or svg.")] = "text",
) -> None:  # fmt: skip
    """Draw the network of one case."""
    from rig import graph as drawing
    from rig.lab.ceiling import here
    from rig.plan import expand, first

    forms = {"text": drawing.text, "mermaid": drawing.mermaid, "svg": drawing.svg}
    if form not in forms:
        raise UsageError(f"--format {form!r}: draw the network: there are {', '.join(forms)}")
    case = first(expand(load(file, sets), *here()), only)
    show(forms[form](case))


@app.command()
def validate(files: Files) -> None:
    """Check scenario files; say every error with its place."""
    wrong = []
    for file in files_of(files):
        try:
            scenario = load(file, None)
            show(f"{file}: {len(scenario.cells)} cases, no errors")
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("\n".join(wrong))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a scenario file."""
    from rig import scenario

    show(json.dumps(scenario.schema(), indent=2))


@app.command()
def init(path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("scenario.yaml")) -> None:
    """Write a commented scenario to start from."""
    from rig import scenario

    text = scenario.starter(path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path}: write a starter: it is there already; name another file") from None
    except OSError as error:
        raise UsageError(f"{path}: write a starter: {error.strerror}; name another file") from error
    show(f"{path} written; now: rig run {path}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Runs' folders, or their record.json.", metavar="RUN…")],
    out: Annotated[Path, typer.Option(help="The folder that gets the page about several.")] = Path("reports"),
) -> None:
    """Rebuild HTML, JUnit, CSV and trace from a record.

    Of several runs, one page about them all.
    """
    from rig import record
    from rig import report as reports
    from rig.report import experiments

    books = [record.load(run) for run in runs]
    if len(books) > 1:
        show(str(experiments.write([(book.document, book.folder) for book in books], out)))
        return
    for path in reports.write(books[0].document, books[0].folder):
        show(str(path))


@app.command()
def calibrate(no_lock: NoLock = False, as_json: AsJson = False) -> None:
    """Measure what this machine adds to a step."""
    from rig import calibration

    found = calibration.calibrate(say, locked=not no_lock)
    show(json.dumps(calibration.document(found), indent=1) if as_json else calibration.table(found))
    raise SystemExit(found.exit_code)


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="cnn, transformer, package.module:factory, or LIBRARY:NAME.")],
    batch: Annotated[int, typer.Option(help="Samples per step.")] = 8,
    inputs: Annotated[list[str] | None, typer.Option("--input", help="3x224x224 or 128:int. Repeatable.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    repeats: Annotated[int, typer.Option(help="Steps that count.")] = 5,
    optimizer: Annotated[str, typer.Option(help="sgd or adamw.")] = "sgd",
    out: Annotated[Path | None, typer.Option(help="The layer table to write.")] = None,
) -> None:
    """Time a model's layers on this machine: makes a layer table.

    LIBRARY is torchvision, timm, transformers or diffusers, where installed. Nothing is downloaded: weights are random.
    """
    from rig import profiling

    made = profiling.make(profiling.Request(model, batch, inputs or (), device, repeats, optimizer, out))
    for note in made.notes:
        say(note)
    show(profiling.summary(made))
    show(profiling.usage(made))


@app.command()
def clean() -> None:
    """Remove what a crashed run left behind.

    Only the rig's own things: containers and notes whose run is over.
    """
    import shutil

    from rig import held
    from rig.lab import leftovers

    removed, left = held.clean(say), list[str]()
    if shutil.which("docker") is not None:  # without Docker there are no containers
        containers, left = leftovers.clean(say)
        removed += containers
    show(f"{removed} removed")
    if left:
        raise LabError(f"clean: remove {', '.join(left)}: still there after 30 s; look at `docker ps -a`")


app.command("up")(verbs.up)
app.command("exec")(verbs.exec_)
app.command("status")(verbs.status)
app.command("capture")(verbs.capture)
app.command("down")(verbs.down)
app.command("doctor")(verbs.doctor)


def _show_plans(scenarios: Sequence[Any], as_json: bool, earlier: Path | None = None, only: str = "*") -> None:
    from rig import outlook, record
    from rig.lab.calibration import known_host
    from rig.lab.ceiling import here
    from rig.plan import expand, select
    from rig.scenario.origins import origins

    cores, worth = here()
    host = known_host(say)
    for scenario in scenarios:
        for note in origins(scenario):
            say(note)
        cases = select(expand(scenario, cores, worth), only)
        known = outlook.known_from(record.load(earlier).document, cases) if earlier else {}
        basis = outlook.Basis(known, host, worth)
        if as_json:
            show(outlook.document(cases, basis))
        else:
            show(outlook.table(scenario.name, cases, basis))


@contextmanager
def _afterwards(write: Callable[[], object]) -> Iterator[None]:
    """Write a report, also after an interruption; what went wrong first is then what is said, not the report's own
    troubles (a full disk has both).
    """
    try:
        yield
    except BaseException:
        with suppress(RigError):
            write()
        raise
    write()


def _end_on_signals() -> None:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: through every clean-up."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in ENDING[1:]:
        signal.signal(number, interrupt)


if __name__ == "__main__":
    main()
