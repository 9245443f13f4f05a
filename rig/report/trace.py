"""trace.json: every rank's compute phases and all-reduces in Chrome's trace event format, as Perfetto opens it.

A process per case, a thread per rank, and beside it one for the rank's communication; more of those where
buckets overlap, since the events of one thread must nest. Time is real; repeats and cases stand one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rig.report.views import Bucket, CaseView, RunView, Step

_GAP_S = 0.01  # between two repeats, so that they can be told apart
_LANES = 16  # thread numbers kept for each rank: one for compute, the rest for overlapping buckets

Event = dict[str, Any]


def document(run: RunView) -> str:
    """The trace as JSON text; `ts` and `dur` are in µs."""
    events: list[Event] = []
    offset = 0.0
    for case in run.cases:
        added, offset = _case(case, offset)
        events += added
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"scenario": run.name, "run": run.run}}
    return json.dumps(trace, allow_nan=False, separators=(",", ":"))


def _case(case: CaseView, offset: float) -> tuple[list[Event], float]:
    """A case's events, its repeats one after another from `offset` (s), and where the next case starts."""
    if not case.steps:
        return [], offset
    pid = case.index + 1
    events: list[Event] = [
        _metadata(pid, 0, "process_name", name=f"{case.id} (k={case.dilation:g}, {case.status})"),
        _metadata(pid, 0, "process_sort_index", sort_index=pid),
    ]
    used: dict[int, str] = {}
    for repeat in sorted({step.repeat for step in case.steps}):
        steps = [step for step in case.steps if step.repeat == repeat and None not in (step.start, step.end)]
        first = min((step.start or 0.0 for step in steps), default=0.0)
        for step in steps:
            events += _step(pid, step, offset - first, used)
        offset += max((step.end or 0.0 for step in steps), default=first) - first + _GAP_S
    events += [_metadata(pid, tid, "thread_name", name=name) for tid, name in sorted(used.items())]
    events += [_metadata(pid, tid, "thread_sort_index", sort_index=tid) for tid in sorted(used)]
    return events, offset


def _step(pid: int, step: Step, offset: float, used: dict[int, str]) -> Iterator[Event]:
    tid = step.rank * _LANES + 1
    where = f"rank {step.rank}" + (f" on {step.node}" if step.node else "")
    used[tid] = where
    name = f"warm-up step {step.step}" if step.warmup else f"step {step.step}"
    details = {key: value for key, value in step.rest.items() if value is not None} | {"repeat": step.repeat}
    yield _complete(pid, tid, (name, "step"), _span(step.start, step.end, offset), details)
    for phase, start, end in step.phases():
        yield _complete(pid, tid, (phase, "phase"), _span(start, end, offset), {"step": step.step})
    for index, bucket, lane in _in_lanes(step.buckets):
        used[tid + lane] = f"{where}: all-reduce" + (f" ({lane})" if lane > 1 else "")
        span, details = _span(bucket.start, bucket.end, offset), {"bytes": bucket.bytes or 0, "step": step.step}
        yield _complete(pid, tid + lane, (f"bucket {index}", "all-reduce"), span, details)


def _in_lanes(buckets: Iterable[Bucket]) -> Iterator[tuple[int, Bucket, int]]:
    """(number, bucket, lane from 1): each bucket in the first lane that is free when it starts."""
    free: list[float] = []
    for index, bucket in sorted(enumerate(buckets), key=lambda pair: pair[1].start):
        lane = next((lane for lane, end in enumerate(free) if end <= bucket.start), len(free))
        # Gloo works on two at a time; what would not fit a rank's numbers shares the last lane.
        lane = min(lane, _LANES - 2)
        free[lane : lane + 1] = [bucket.end]
        yield index, bucket, lane + 1


def _span(start: float | None, end: float | None, offset: float) -> tuple[float, float]:
    """Start and duration in µs; both ends are rounded alike, so that nested events stay nested."""
    first, last = (round(((moment or 0.0) + offset) * 1e6, 3) for moment in (start, end))
    return first, round(max(0.0, last - first), 3)


def _complete(pid: int, tid: int, name: tuple[str, str], span: tuple[float, float], args: Event) -> Event:
    timed = {"ts": span[0], "dur": span[1], "args": args}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name[0], "cat": name[1], **timed}


def _metadata(pid: int, tid: int, kind: str, **args: object) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}
