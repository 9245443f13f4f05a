"""What pages, pictures and tables are made from: a record with every field typed and nothing left to doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rig.report.figures import number

STATUSES = ("pass", "fail", "invalid", "error", "skipped")
# earlier: micro-batches whose gradients stay here; waiting: for buckets still under way after the backward pass
PHASES = ("earlier", "forward", "backward", "waiting", "optimizer")


def relative(measured: float | None, predicted: float | None) -> float | None:
    """(measured − predicted) ÷ predicted, or None where either is missing or the prediction is nought."""
    return None if measured is None or not predicted else (measured - predicted) / predicted


@dataclass(frozen=True)
class Figure:
    """One metric of one case, measured beside predicted, in emulated units of the record."""

    metric: str
    unit: str = ""
    measured: float | None = None
    low: float | None = None  # 95 % interval of the measured mean
    high: float | None = None
    predicted: float | None = None
    formula: str = ""
    error: float | None = None  # (measured − predicted) ÷ predicted; of the worst node where it was judged
    tolerance: float | None = None
    judged: str = ""  # pass or fail; empty where nothing was expected
    least: float | None = None  # what the prediction should lie between
    most: float | None = None


@dataclass(frozen=True)
class Bucket:
    """One all-reduce of one rank, real seconds since the repeat's launch."""

    start: float
    end: float
    bytes: float | None


@dataclass(frozen=True)
class Step:
    """One step of one rank. Times are real seconds since the repeat's launch."""

    repeat: int
    rank: int
    node: str
    step: int
    warmup: bool
    start: float | None
    forward_start: float | None
    earlier_end: float | None  # of the micro-batches before the last; None where a step has one
    forward_end: float | None
    backward_end: float | None
    end: float | None
    buckets: tuple[Bucket, ...]
    rest: Mapping[str, float | None]  # payload, wire, late, run_delay, loss, samples

    def phases(self) -> Iterator[tuple[str, float, float]]:
        """(name, start, end) of each phase that took time; none for a bare all-reduce, which has no forward pass."""
        begun = self.forward_start if self.earlier_end is None else self.earlier_end
        marks = (self.forward_start, begun, self.forward_end, self.backward_end, self._optimizer_start(), self.end)
        for name, start, end in zip(PHASES, marks, marks[1:], strict=False):
            if start is not None and end is not None and end > start and self.forward_start != self.forward_end:
                yield name, start, end

    def _optimizer_start(self) -> float | None:
        """The optimizer needs the last gradient's sum: it begins when compute and every all-reduce are through."""
        if self.backward_end is None or self.end is None:
            return None
        return min(self.end, max((self.backward_end, *(bucket.end for bucket in self.buckets))))


@dataclass(frozen=True)
class Bound:
    """What bounds a case's step: which kind, where, and why in words; empty where the record does not say."""

    kind: str
    where: str
    text: str


@dataclass(frozen=True)
class Prospect:
    """Predicted speed-up against bandwidth for one node count; what else is as in `case`."""

    case: str
    nodes: int
    points: tuple[tuple[float, float], ...]  # (bit/s, ×), by rising rate


@dataclass(frozen=True)
class LinkView:
    """One direction of one link: asked and measured emulated, applied as the kernel holds it."""

    name: str
    direction: str
    shaper: str
    asked: Mapping[str, Any]
    applied: Mapping[str, Any]
    measured: Mapping[str, Any]

    @property
    def error(self) -> float | None:
        """How far the probed goodput is from the wire's arithmetic, as a fraction."""
        return relative(number(self.measured.get("goodput")), number(self.asked.get("goodput")))


@dataclass(frozen=True)
class Change:
    """What a link became while ranks ran; emulated seconds since the end of the warm-up."""

    repeat: int
    link: str
    asked_at: float | None
    asked_step: int | None
    at: float | None
    plugged: bool
    asked: Mapping[str, Any]  # by direction: rate, delay, jitter, loss


@dataclass(frozen=True)
class Evaluation:
    """What a case's rank 0 found on samples that are held out, after a step."""

    repeat: int
    step: int
    loss: float


@dataclass(frozen=True)
class CaseView:
    """One `cases[]` entry."""

    index: int
    id: str
    params: Mapping[str, Any]
    nodes: int | None
    role: str
    baseline: str
    lab: str
    dilation: float
    status: str
    unstable: bool
    reason: str
    bound: Bound
    links: tuple[LinkView, ...]
    checks: tuple[Mapping[str, Any], ...]
    host: Mapping[str, Any]
    figures: Mapping[str, Figure]
    changes: tuple[Change, ...]
    evaluations: tuple[Evaluation, ...]
    steps: tuple[Step, ...] = field(repr=False)  # every step of every rank, warm-up included, in the record's order
    expected: Step | None = None  # one step as it was predicted, from 0, real seconds

    def figure(self, metric: str) -> Figure:
        """The metric's figure; one with nothing in it where the record has none."""
        return self.figures.get(metric, Figure(metric))

    @property
    def trusted(self) -> bool:
        """Whether its measured figures may be used in a claim: an invalid case's may not."""
        return self.status in ("pass", "fail")


@dataclass(frozen=True)
class RunView:
    """A whole record."""

    rig: str
    run: str
    started: str
    name: str  # of the scenario
    question: str  # the scenario's description, which by custom asks what the run answers
    path: str  # of the scenario's file, as it was given
    command: str  # as it was typed; empty where the record has none
    text: str  # the scenario as written
    environment: Mapping[str, Any]
    warnings: tuple[str, ...]
    cases: tuple[CaseView, ...]
    resolved: tuple[Mapping[str, Any], ...]  # every case as it was planned
    curves: tuple[Prospect, ...]
    seconds: float | None
    exit: float | None
    show: Mapping[str, Any] = field(default_factory=dict)  # what the scenario wants drawn beside other runs

    @property
    def counts(self) -> dict[str, int]:
        """How many cases have each status, counted here rather than taken from the summary."""
        return {status: sum(case.status == status for case in self.cases) for status in STATUSES}
