"""steps.csv and links.csv: the record's raw figures, one row each, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rig.report.figures import number
from rig.report.views import CaseView, LinkView, RunView, Step

_STEP_COLUMNS = (
    *("case", "dilation", "repeat", "rank", "node", "step", "warmup"),
    *("start_s", "forward_start_s", "earlier_end_s", "forward_end_s", "backward_end_s", "end_s", "step_time_s"),
    *("buckets", "bucket_bytes", "comm_start_s", "comm_end_s"),
    *("payload_bytes", "wire_bytes", "late_s", "run_delay_s", "loss", "samples"),
)


def steps(run: RunView) -> str:
    """One row per case, repeat, rank and step.

    Times are real seconds since the repeat's launch, but `step_time_s`, which is emulated (÷ dilation).
    Bytes are per step. Fields the record lacks are empty.
    """
    return _csv(_STEP_COLUMNS, (_step_row(case, step) for case in run.cases for step in case.steps))


def links(run: RunView) -> str:
    """One row per case, link and direction.

    `asked_…` and `measured_…` are emulated bit/s and seconds, `applied_…` what the kernel reported back.
    """
    rows = [(case, link) for case in run.cases for link in case.links]
    asked = _keys((link.asked for _, link in rows), ("rate", "goodput", "rtt"))
    applied = _keys((link.applied for _, link in rows), ("rate",))
    measured = _keys((link.measured for _, link in rows), ("goodput", "rtt"))
    columns = (
        *("case", "dilation", "link", "direction", "shaper"),
        *(f"asked_{key}" for key in asked),
        *(f"applied_{key}" for key in applied),
        *(f"measured_{key}" for key in measured),
        "goodput_error",
    )
    return _csv(columns, (_link_row(case, link, (asked, applied, measured)) for case, link in rows))


def _step_row(case: CaseView, step: Step) -> tuple[object, ...]:
    whole = None if step.start is None or step.end is None else (step.end - step.start) / case.dilation
    return (
        *(case.id, f"{case.dilation:g}", step.repeat, step.rank, step.node, step.step, int(step.warmup)),
        *(step.start, step.forward_start, step.earlier_end, step.forward_end, step.backward_end, step.end, whole),
        len(step.buckets),
        sum(bucket.bytes or 0 for bucket in step.buckets),
        min((bucket.start for bucket in step.buckets), default=None),
        max((bucket.end for bucket in step.buckets), default=None),
        *(step.rest[key] for key in ("payload", "wire", "late", "run_delay", "loss", "samples")),
    )


def _link_row(case: CaseView, link: LinkView, keys: Sequence[Sequence[str]]) -> tuple[object, ...]:
    parts = zip((link.asked, link.applied, link.measured), keys, strict=True)
    values = (_cell(flat(part).get(key)) for part, wanted in parts for key in wanted)
    return (case.id, f"{case.dilation:g}", link.name, link.direction, link.shaper, *values, link.error)


def _keys(parts: Iterable[Mapping[str, Any]], least: Sequence[str]) -> tuple[str, ...]:
    """Every key that occurs, the expected ones first: a later version's impairments become columns by themselves."""
    return tuple(dict.fromkeys((*least, *(key for part in parts for key in flat(part)))))


def flat(part: Mapping[str, Any]) -> dict[str, Any]:
    """What is nested as keys of its own: {"transit": {"delay": 1}} is "transit_delay"."""
    inner = {
        f"{key}_{name}": value for key, of in part.items() if isinstance(of, Mapping) for name, value in of.items()
    }
    return {key: value for key, value in part.items() if value is not None and not isinstance(value, Mapping)} | inner


def _cell(value: object) -> object:
    return value if isinstance(value, str | bool) else number(value)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_compact(value) for value in row] for row in rows)
    return sheet.getvalue()


def _compact(value: object) -> object:
    """Whole numbers without a trailing .0, times to the nanosecond."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
