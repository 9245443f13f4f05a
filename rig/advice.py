"""What would help a case most, by prediction: every change that could be made, weighed and ranked. Pure.

`remedies` lists the changes, `weigh` predicts what a case gives, `advise` ranks by samples a second of all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rig import whatif
from rig.errors import UsageError
from rig.formulas.predict import predict
from rig.model import WAYS, Case, Phases
from rig.plan import first
from rig.remedies import KINDS, Option, options
from rig.results import Predicted
from rig.work import Ddp

NO_GAIN = 0.01  # of the samples a second: less is told as none
HARDLY_MORE = 0.05  # what a larger step of one kind must gain over a smaller one to stand in the ranking
EITHER = ({"nodes", "spread", "fewer"}, {"accumulate", "local"}, {"fp16", "local"})  # of each, one can be chosen

Worth = Literal["helps", "hardly more", "no gain", "unknown"]


@dataclass(frozen=True)
class Outcome:
    """What a case gives: bytes always, times (s, emulated) where they can be predicted."""

    nodes: int
    samples: int  # a step, of all nodes
    sent: float  # TCP payload of one node a step, the mean (B)
    step: float | None
    exposed: float | None  # of the step: communication that computing does not hide
    predicted: Mapping[str, Predicted]

    @property
    def throughput(self) -> float | None:
        """Samples a second of all nodes."""
        return self.samples / self.step if self.step else None

    @property
    def sent_per_sample(self) -> float:
        """What a node sends for each sample that it trains on (B)."""
        return self.sent * self.nodes / self.samples

    @property
    def share(self) -> float | None:
        """The part of a step in which nothing is computed, 0 to 1."""
        return self.exposed / self.step if self.step and self.exposed is not None else None


@dataclass(frozen=True)
class Weighed:
    """One change, or two together, and what comes of it."""

    options: tuple[Option, ...]
    outcome: Outcome
    gain: float | None  # in samples a second, over the case as it is: 0.5 is half as many again
    worth: Worth = "helps"

    @property
    def name(self) -> str:
        return " and ".join(option.name for option in self.options)

    @property
    def leaves_training(self) -> bool:
        """Whether the same is learnt, step by step, as without it."""
        return all(option.kind in ("links", "lines", "spread") for option in self.options)


@dataclass(frozen=True)
class Advice:
    """The case as it is, its changes (the best first), and the best with what adds most to it."""

    case: Case
    now: Outcome
    changes: tuple[Weighed, ...]
    together: Weighed | None

    @property
    def work(self) -> int | None:
        """Samples of the whole job, where the scenario names one; so many steps are those of the case as it is."""
        job = whatif.training(self.case).job
        return (job.samples or job.steps * self.now.samples) if job else None

    def of_worth(self, worth: Worth) -> tuple[Weighed, ...]:
        """The changes of that worth, in rank."""
        return tuple(one for one in self.changes if one.worth == worth)


def chosen(cases: Sequence[Case], only: str) -> Case:
    """The case that advice is about: the first that the glob names, or for "*" the one with most nodes, and of those
    the slowest link. Raises UsageError when the glob names none, or the case does not train.
    """
    if only == "*":
        swept = [case for case in cases if case.role == "case"]
        case = max(swept, key=lambda case: (case.size, -_slowest(case)))
    else:
        case = first(cases, only)
    if not isinstance(case.workload, Ddp):
        why = "of which no table of layers tells" if case.workload.kind == "script" else "which trains on no samples"
        raise UsageError(
            f"advise {case.id}: weigh changes by samples a second: the workload is {case.workload.kind}, {why}; write "
            "one of kind ddp"
        )
    return case


def _slowest(case: Case) -> int:
    """The rate of the slowest direction of any cable (bit/s)."""
    return min(cable.link.way(way).rate for cable in case.cables for way in WAYS)


def studied(cases: Sequence[Case], only: str, known: Mapping[str, Phases]) -> Case:
    """The chosen case; one of real compute is paced as its one-node case was found to be, where that is known (by the
    id of the one-node case). Raises UsageError as `chosen` does, and where nothing tells what a model sends.
    """
    case = chosen(cases, only)
    if not whatif.training(case).table.parameters and case.baseline not in known:
        raise UsageError(
            f"advise {case.id}: weigh what it sends: {whatif.training(case).model} has no layer table, and no one-node "
            "run of it is known; give --from RUN"
        )
    return whatif.paced(case, known[case.baseline]) if case.computes_real and case.baseline in known else case


def advise(case: Case) -> Advice:
    """Weigh every change. Where no time of the case can be predicted, changes are ranked by bytes a sample."""
    now = weigh(case)
    changes = [_weighed(case, now, (option,)) for option in options(case)]
    if now.throughput is None:
        return Advice(case, now, tuple(sorted(changes, key=lambda one: one.outcome.sent_per_sample)), None)
    judged = list(_judged(changes))
    return Advice(case, now, tuple(sorted(judged, key=_by_gain, reverse=True)), _together(case, now, judged))


def weigh(case: Case) -> Outcome:
    """Predict what a case gives."""
    predicted = predict(case)
    times = [predicted[name].value if name in predicted else None for name in ("step_time", "exposed_comm")]
    return Outcome(case.size, whatif.samples(case), predicted["payload_tx"].value, times[0], times[1], predicted)


# ── the ranking ──────────────────────────────────────────────────────────────────────────────────────
def _weighed(case: Case, now: Outcome, several: Sequence[Option]) -> Weighed:
    ordered = tuple(sorted(several, key=lambda option: list(KINDS).index(option.kind)))
    changed = case
    for option in ordered:
        changed = option.apply(changed)
    outcome = weigh(changed)
    if now.throughput is None or outcome.throughput is None:
        return Weighed(ordered, outcome, None, "unknown")
    return Weighed(ordered, outcome, outcome.throughput / now.throughput - 1)


def _judged(changes: Sequence[Weighed]) -> Iterator[Weighed]:
    """A larger step of a kind stands in the ranking only where it gains more than a smaller one before it."""
    best: dict[str, float] = {}
    for one in changes:
        gain, kind = _by_gain(one), one.options[0].kind
        if one.worth == "unknown":
            yield one
        elif gain < NO_GAIN:
            yield replace(one, worth="no gain")
        elif kind in best and 1 + gain < (1 + best[kind]) * (1 + HARDLY_MORE):
            yield replace(one, worth="hardly more")
        else:
            best[kind] = gain
            yield one


def _together(case: Case, now: Outcome, changes: Sequence[Weighed]) -> Weighed | None:
    """The best change with the one of another kind that adds most to it; where none helps, a further node with the one
    that makes it worth while. None where two gain no more than one. `changes`: the smaller steps of a kind first.
    """
    helping = [one for one in changes if one.worth == "helps"]
    best = max(helping, key=_by_gain, default=next(one for one in changes if one.options[0].kind == "nodes"))
    pairs = [
        _weighed(case, now, (*best.options, *other.options))
        for other in helping or changes
        if _compatible(best.options[0], other.options[0])
    ]
    top = max((pair for pair in _judged(pairs) if pair.worth == "helps"), key=_by_gain, default=None)
    least = (1 + max(0.0, _by_gain(best))) * (1 + NO_GAIN)
    return top if top and 1 + _by_gain(top) >= least else None


def _by_gain(one: Weighed) -> float:
    return one.gain or 0.0


def _compatible(one: Option, other: Option) -> bool:
    return one.kind != other.kind and not any({one.kind, other.kind} <= either for either in EITHER)
