"""A record, read with suspicion: every field typed, every absent or absurd one None, every text inert.

A record may come from a run that broke half way, from an older version, or from a stranger. All of that
is dealt with here, once, so that pages, pictures and tables can take what they get at its word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rig.report.figures import number
from rig.report.views import (
    STATUSES,
    Bound,
    Bucket,
    CaseView,
    Change,
    Evaluation,
    Figure,
    LinkView,
    Prospect,
    RunView,
    Step,
    relative,
)

# Control characters break XML and can drive a terminal; lone surrogates cannot be written as UTF-8;
# bidirectional overrides make a text look like another.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_MOST_COUNTED = 10**6
_LONGEST_S = 10.0**8
_FASTEST = 10.0**15  # bit/s
_CHECKED_AS = {"traffic": "payload_tx"}  # an expectation's name → the metric it judges


def inert(value: Any) -> Any:
    """The same document with harmful characters in every text, keys included, replaced by U+FFFD."""
    if isinstance(value, str):
        return _HARMFUL.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {str(inert(str(key))): inert(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [inert(entry) for entry in value]
    return value


def text(value: object) -> str:
    """A text, or the empty one for None."""
    return "" if value is None else str(value)


def mapping(value: object) -> Mapping[str, Any]:
    """The mapping itself, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    """The mappings of a list; anything else in it is left out."""
    return tuple(entry for entry in value if isinstance(entry, Mapping)) if isinstance(value, list) else ()


def read(record: Mapping[str, Any]) -> RunView:
    """Read a record (design.md, section 6); raises nothing, however little there is in it."""
    record = mapping(inert(record))
    scenario, summary = mapping(record.get("scenario")), mapping(record.get("summary"))
    warnings = record.get("warnings")
    return RunView(
        rig=text(record.get("rig")),
        run=text(record.get("run")),
        started=text(record.get("started")),
        name=text(scenario.get("name")) or "unnamed",
        question=text(scenario.get("description")),
        path=text(scenario.get("path")),
        command=text(scenario.get("command")),
        text=text(scenario.get("text")),
        environment=mapping(record.get("environment")),
        warnings=tuple(map(text, warnings)) if isinstance(warnings, list) else (),
        cases=tuple(_case(index, raw) for index, raw in enumerate(mappings(record.get("cases")))),
        resolved=mappings(mapping(scenario.get("resolved")).get("cases")),
        curves=tuple(_curves(record)),
        seconds=number(summary.get("seconds")),
        exit=number(summary.get("exit")),
        show=mapping(mapping(mapping(scenario.get("resolved")).get("document")).get("show")),
    )


def read_case(case: Mapping[str, Any]) -> CaseView:
    """Read a single `cases[]` entry."""
    return _case(0, mapping(inert(case)))


def metric_of(check: Mapping[str, Any]) -> str:
    """The metric a check is about, whichever of its two names the record uses."""
    name = text(check.get("metric"))
    return _CHECKED_AS.get(name, name)


def _case(index: int, raw: Mapping[str, Any]) -> CaseView:
    params = mapping(raw.get("params"))
    dilation = number(raw.get("dilation"))
    status, reason = text(raw.get("status")), text(raw.get("reason"))
    if status not in STATUSES:
        status, reason = "error", reason or f"the record gives this case the unknown status {status!r}"
    return CaseView(
        index=index,
        id=text(raw.get("id")) or f"case {index + 1}",
        params=params,
        nodes=_count(params.get("nodes")),
        role=text(raw.get("role")),
        baseline=text(raw.get("baseline")),
        lab=text(raw.get("lab")),
        dilation=dilation if dilation is not None and dilation > 0 else 1.0,
        status=status,
        unstable=raw.get("unstable") is True,
        reason=reason,
        bound=_bound(raw),
        links=tuple(_link(link) for link in mappings(raw.get("links"))),
        checks=mappings(raw.get("checks")),
        host={key: value for key, value in mapping(raw.get("host")).items() if key != "bottleneck"},
        figures=_figures(raw),
        changes=tuple(_change(note) for note in mappings(_raw(raw, "notes")) if note.get("event") == "change"),
        evaluations=tuple(_evaluations(raw)),
        steps=tuple(_step(step) for step in mappings(_raw(raw, "steps"))),
        expected=_expected(raw, dilation if dilation is not None and dilation > 0 else 1.0),
    )


def _figures(raw: Mapping[str, Any]) -> dict[str, Figure]:
    measured, predicted = mapping(raw.get("measured")), mapping(raw.get("predicted"))
    checks = {metric_of(check): check for check in mappings(raw.get("checks"))}
    return {
        metric: _figure(metric, mapping(measured.get(metric)), mapping(predicted.get(metric)), checks.get(metric, {}))
        for metric in dict.fromkeys((*measured, *predicted))
    }


def _figure(metric: str, measured: Mapping[str, Any], predicted: Mapping[str, Any], check: Mapping[str, Any]) -> Figure:
    value, expected, judged = number(measured.get("value")), number(predicted.get("value")), number(check.get("error"))
    return Figure(
        metric=metric,
        unit=text(measured.get("unit")) or text(predicted.get("unit")),
        measured=value,
        low=number(measured.get("low")),
        high=number(measured.get("high")),
        predicted=expected,
        formula=text(predicted.get("formula")),
        error=relative(value, expected) if judged is None else judged,
        tolerance=number(check.get("tolerance")),
        judged=text(check.get("status")),
        least=number(predicted.get("low")),
        most=number(predicted.get("high")),
    )


def _bound(raw: Mapping[str, Any]) -> Bound:
    told = mapping(mapping(raw.get("host")).get("bottleneck"))
    return Bound(text(raw.get("bottleneck")), text(told.get("where")), text(told.get("text")))


def _curves(record: Mapping[str, Any]) -> Iterator[Prospect]:
    """Those with two points at least; a point that makes no sense is left out."""
    for curve in mappings(record.get("curves")):
        nodes, points = _count(curve.get("nodes")), curve.get("points")
        pairs = (
            [pair for pair in points if isinstance(pair, list) and len(pair) == 2] if isinstance(points, list) else []
        )
        known = sorted((number(rate) or 0.0, number(gain) or 0.0) for rate, gain in pairs)
        shown = tuple((rate, gain) for rate, gain in known if 0 < rate < _FASTEST and 0 < gain < _MOST_COUNTED)
        if nodes and len(shown) > 1:
            yield Prospect(text(curve.get("case")), nodes, shown)


def _link(raw: Mapping[str, Any]) -> LinkView:
    asked, applied, measured = (mapping(raw.get(key)) for key in ("asked", "applied", "measured"))
    return LinkView(
        text(raw.get("name")), text(raw.get("direction")), text(raw.get("shaper")), asked, applied, measured
    )


def _raw(case: Mapping[str, Any], key: str) -> object:
    return mapping(case.get("raw")).get(key)


def _change(note: Mapping[str, Any]) -> Change:
    return Change(
        repeat=_count(note.get("repeat")) or 0,
        link=text(note.get("cable")),
        asked_at=number(note.get("asked_at")),
        asked_step=_count(note.get("asked_step")),
        at=number(note.get("at")),
        plugged=note.get("plugged") is not False,
        asked=mapping(note.get("asked")),
    )


def _evaluations(raw: Mapping[str, Any]) -> Iterator[Evaluation]:
    """Those that tell a loss; one that is no number, as of a training that diverged, is left out."""
    for note in mappings(_raw(raw, "notes")):
        loss = _moment(note.get("held_out_loss")) if note.get("event") == "evaluated" else None
        if loss is not None:
            yield Evaluation(_count(note.get("repeat")) or 0, _count(note.get("step")) or 0, loss)


def _step(raw: Mapping[str, Any]) -> Step:
    return Step(
        repeat=_count(raw.get("repeat")) or 0,
        rank=_count(raw.get("rank")) or 0,
        node=text(raw.get("node")),
        step=_count(raw.get("step")) or 0,
        warmup=raw.get("warmup") is True,
        start=_moment(raw.get("start")),
        forward_start=_moment(raw.get("forward_start")),
        earlier_end=_earlier_end(raw),
        forward_end=_moment(raw.get("forward_end")),
        backward_end=_moment(raw.get("backward_end")),
        end=_moment(raw.get("end")),
        buckets=tuple(_buckets(raw)),
        rest={key: number(raw.get(key)) for key in ("payload", "wire", "late", "run_delay", "loss", "samples")},
    )


def _earlier_end(raw: Mapping[str, Any]) -> float | None:
    """The record gives a span; None where there is none, as in a step of a single micro-batch."""
    begun, span = _moment(raw.get("forward_start")), _moment(raw.get("earlier"))
    return begun + span if begun is not None and span is not None and span > 0 else None


def _expected(case: Mapping[str, Any], dilation: float) -> Step | None:
    """The predicted step as if a rank had done it, in real seconds; None where the record lacks any part of it."""
    inputs = mapping(mapping(mapping(case.get("predicted")).get("step_time")).get("inputs"))
    line = mapping(inputs.get("timeline"))
    spans = [_moment(line.get(key)) for key in ("before", "earlier", "forward", "backward", "optimizer")]
    ready, ends = (_spans(line.get(key)) for key in ("ready", "ends"))
    if None in spans or ready is None or ends is None or len(ready) != len(ends):
        return None
    before, earlier, forward, backward, optimizer = (max(0.0, span or 0.0) for span in spans)
    begun = before + earlier + forward  # of the last backward pass
    sizes = inputs.get("buckets")
    known = sizes if isinstance(sizes, list) and len(sizes) == len(ready) else [None] * len(ready)
    buckets = tuple(
        Bucket((begun + start) * dilation, (begun + max(start, end)) * dilation, number(size))
        for start, end, size in zip(ready, ends, known, strict=True)
    )
    marks = (0.0, before, before + earlier if earlier else None, begun, begun + backward)
    start, forward_start, earlier_end, forward_end, backward_end = (
        None if mark is None else mark * dilation for mark in marks
    )
    end = max([(begun + backward) * dilation, *(bucket.end for bucket in buckets)]) + optimizer * dilation
    return Step(0, 0, "", 0, False, start, forward_start, earlier_end, forward_end, backward_end, end, buckets, {})


def _spans(value: object) -> list[float] | None:
    """A list of spans, or None for anything else."""
    found = [_moment(entry) for entry in value] if isinstance(value, list) else [None]
    return None if None in found else [max(0.0, entry or 0.0) for entry in found]


def _buckets(raw: Mapping[str, Any]) -> Iterator[Bucket]:
    for bucket in mappings(raw.get("buckets")):
        start, end = _moment(bucket.get("start")), _moment(bucket.get("end"))
        if start is not None and end is not None and end >= start:
            yield Bucket(start, end, number(bucket.get("bytes")))


def _count(value: object) -> int | None:
    """A node count or an index; None for what no run has."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < _MOST_COUNTED else None


def _moment(value: object) -> float | None:
    """Seconds since a repeat's launch; None for what no run lasts, which would drown a picture or overflow a trace."""
    found = number(value)
    return found if found is not None and abs(found) < _LONGEST_S else None
