"""The report of a run: one HTML page, tables, a trace and JUnit, all from the record and nothing else.

figures   numbers as people read them
reading   record → typed views; the one place that distrusts it
curves    speed-up over nodes, and the one-sentence answer
svg plots pictures (matplotlib, imported when drawn)
agreement measured over predicted, and errors   breakeven speed-up against bandwidth
html      report.html            sheets  steps.csv, links.csv
findings  a run's answer         experiments  one page about several runs
trace     trace.json (Perfetto)  junit   junit.xml
tables    the terminal's summary, and one line per case for CI
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rig.errors import RecordError


def write(record: Mapping[str, Any], folder: Path) -> tuple[Path, ...]:
    """Write report.html, steps.csv, links.csv, trace.json and junit.xml into `folder` and return their paths.

    Existing files are replaced. Raises RecordError where the folder cannot be written.
    """
    # Imported here: the command line imports this package, and `rig --help` must not wait for templates.
    from rig.report import html, junit, reading, sheets, trace

    run = reading.read(record)
    documents = {
        "steps.csv": sheets.steps(run),
        "links.csv": sheets.links(run),
        "trace.json": trace.document(run),
        "junit.xml": junit.document(run),
        "report.html": html.page(run),
    }
    return tuple(write_page(folder / name, content) for name, content in documents.items())


def write_page(path: Path, content: str) -> Path:
    """Write one file of a report, its folder too, and return its path. Raises RecordError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="")
    except OSError as error:
        raise RecordError(
            f"{path}: writing the report: {error.strerror or error}; free the space or the right, "
            "then rebuild it with `rig report`"
        ) from error
    return path
