"""The flow on one page: scenario → cases → lab → probe → workload → measurement → prediction → verdict → record.

A new lab, workload, impairment or formula needs no edit here.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from rig import attribution, cards, links, measure, prospects, record, verdict
from rig.errors import LackError, RecordError, RigError
from rig.formulas.confidence import bounded
from rig.formulas.predict import predict
from rig.lab import Lab, Order, choose, open_lab
from rig.lab.background import background
from rig.lab.calibration import known_host
from rig.lab.ceiling import here
from rig.lab.lock import measuring
from rig.lab.outputs import collected
from rig.lab.preflight import preflight
from rig.lab.probing import probe
from rig.lab.ranks import Outcome, run_ranks
from rig.model import Case, Host, Phases
from rig.plan import buildable, expand, resolved, select
from rig.provision import load
from rig.results import CaseResult, Metric
from rig.scenario import Scenario
from rig.scenario.origins import origins


class Watch(Protocol):
    """Who looks on: a live table, plain lines, or nobody."""

    def planned(self, cases: int, lab: str) -> None: ...
    def began(self, case: Case) -> None: ...
    def stage(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def ended(self, result: CaseResult) -> None: ...


@dataclass(frozen=True)
class Request:
    """What the caller asks beyond the scenario."""

    lab: str  # auto, netns, docker
    out: Path  # the folder that gets the run's folder
    only: str = "*"  # a glob over case ids; the baselines they need are run too
    command: str = ""  # what was typed, for whoever wants to run it again
    lock: bool = True  # measure only while no other rig on this machine does


@dataclass
class Known:
    """What finished cases tell later ones, and what an earlier calibration tells all of them."""

    host: Host | None = None
    measured: dict[str, dict[str, Metric]] = field(default_factory=dict)
    phases: dict[str, Phases] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """A run that may begin: its cases, the lab they go to, and the record that will hold them."""

    cases: tuple[Case, ...]
    lab: str
    run: str
    book: record.Record
    lock: bool = True
    host: Host | None = None  # this machine's calibration


def prepare(scenario: Scenario, request: Request, watch: Watch) -> Work:
    """Choose cases and lab, open the record. Raises UsageError, LackError, RecordError."""
    cases = buildable(select(expand(scenario, *here()), request.only))
    kind, why = choose(request.lab, watch.stage)
    run_id = record.new_run_id()
    folder = record.new_folder(request.out, scenario.name, run_id)
    source = _source(scenario, cases) | {"command": request.command}
    book = record.start(folder, run_id, source, record.environment() | {"lab": kind})
    if why:
        book.document["environment"]["lab_because"] = why
        watch.warn(why)

    def warn(text: str) -> None:
        book.document["warnings"].append(text)
        watch.warn(text)

    for note in origins(scenario):
        warn(note)
    host = known_host(warn)
    book.document["environment"]["host"] = record.plain(asdict(host)) if host else None
    book.save()
    return Work(cases, kind, run_id, book, request.lock, host)


def run(work: Work, watch: Watch) -> None:
    """Run every case, each into the record as it ends. Raises LackError and RecordError, after which nothing more
    can be run; what was finished is in the record by then, and the rest as skipped.
    """
    watch.planned(len(work.cases), work.lab)
    try:
        _run_all(work, watch)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        why = "the run was interrupted" if interrupted else f"the run ended before: {error}"
        rest = [replace(_blank(case, work.lab), status="skipped", reason=why) for case in work.cases]
        with suppress(RecordError):  # a full disk is what ended it, and is about to be told
            work.book.close(130 if interrupted else 3, rest)
        raise


def _run_all(work: Work, watch: Watch) -> None:
    began = time.monotonic()
    known = Known(work.host)
    for case in work.cases:
        watch.began(case)
        order = Order(work.run, case, watch.stage, mounts(case), watch.warn, work.lock, work.book.folder)
        result = run_case(order, work.lab, known)
        work.book.document["summary"]["seconds"] = round(time.monotonic() - began, 3)
        work.book.add(result)
        _write_log(work.book.folder, result)
        watch.ended(result)
    _conclude(work, known, watch)


def _conclude(work: Work, known: Known, watch: Watch) -> None:
    """What only the whole run tells: expectations that no case could be held to, and the curves of the report."""
    document, warnings = work.book.document, []
    if unjudged := verdict.unjudged(work.cases, document["cases"]):
        warnings.append(unjudged)
    try:
        document["curves"] = prospects.curves(work.cases, known.phases, work.host)
    except Exception as error:  # noqa: BLE001  a picture must not cost the record
        warnings.append(f"curves: predict speed-up against bandwidth: {type(error).__name__}: {error}; left out")
    document["warnings"] += warnings
    work.book.save()
    for warning in warnings:
        watch.warn(warning)


def _blank(case: Case, kind: str) -> CaseResult:
    ways = links.paths(case)
    return CaseResult(case.id, case.params, case.role, case.baseline, kind, case.dilation, "error", paths=ways)


def run_case(order: Order, kind: str, known: Known) -> CaseResult:
    """One case, from an empty machine to a verdict; whatever breaks becomes its result."""
    case = order.case
    result = _blank(case, kind)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    try:
        with open_lab(kind, order) as lab, measuring(order.warn, order.lock):
            opened = time.monotonic()
            result = _network(case, lab, order, result)
            if reason := links.bad_links(case, result.links):
                return replace(result, status="invalid", reason=reason)
            before, probed = lab.fabric.counters(), time.monotonic()
            worked = psutil.cpu_times()
            _repeat(lab, order, outcomes)
            shares = measure.cpu_shares(worked, psutil.cpu_times())
            after, ran = lab.fabric.counters(), time.monotonic()
        spent = {"open": opened - began, "probe": probed - opened, "run": ran - probed, "close": time.monotonic() - ran}
        host = {"spent": spent, "delay_line": links.held_back(before, after), **shares}
        host["cpus"] = psutil.cpu_count()
        host["dropped"] = attribution.dropped(before, after)
        result = replace(result, host={**result.host, **host})
        carried = {name: after[name]["up"]["bytes"] - before[name]["up"]["bytes"] for name in after}
        return _weigh(case, result, outcomes, carried, known)
    except (LackError, RecordError):
        raise  # true for every other case as well
    except RigError as error:
        return replace(result, reason=str(error), raw={**result.raw, **_raw(outcomes)})
    except Exception as error:  # noqa: BLE001  one case must not cost the others
        raw = {**result.raw, **_raw(outcomes)}
        raw["log"] += traceback.format_exc().splitlines()
        return replace(result, reason=f"{type(error).__name__}: {error}; a defect of the rig, see logs/", raw=raw)


def _network(case: Case, lab: Lab, order: Order, result: CaseResult) -> CaseResult:
    order.tell("check the nodes")
    facts = preflight(lab, case, order.run)
    probed = probe(lab, case, order.run, order.tell)
    host = {"lab": dict(lab.facts), "nodes": facts, "tcp": asdict(case.tcp), "siblings": case.siblings}
    raw = {"probe": {name: seen.said for name, seen in probed.items()}}
    return replace(result, links=links.link_reports(case, lab, probed), host=host, raw=raw)


def _repeat(lab: Lab, order: Order, outcomes: list[Outcome]) -> None:
    """Every repeat in the same lab; what one gave before it broke stays in `outcomes`."""
    case = order.case
    for number in range(case.repeats):
        order.tell(f"run {case.workload.kind}, repeat {number + 1} of {case.repeats}")
        with background(lab, case, order.run), collected(lab, order, number):
            outcomes.append(Outcome(number, time.monotonic()))
            run_ranks(lab, case, order.run, outcomes[-1])


def _raw(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "steps": [step for outcome in outcomes for step in outcome.steps],
        "notes": [{**note, "repeat": outcome.repeat} for outcome in outcomes for note in outcome.notes],
        "log": [f"repeat {outcome.repeat}: {line}" for outcome in outcomes for line in outcome.log],
    }


def _weigh(
    case: Case, result: CaseResult, outcomes: Sequence[Outcome], carried: dict[str, int], known: Known
) -> CaseResult:
    """Steps → metrics → predictions → verdict."""
    raw = {**result.raw, **_raw(outcomes), "carried": carried}
    steps = raw["steps"]
    measured = measure.measure(case, steps) | measure.learnt(case, steps, raw["notes"])
    baseline = measured if case.baseline == case.id else known.measured.get(case.baseline, {})
    measured |= measure.relate(case, measured, baseline)
    one_node = known.phases.get(case.baseline) if case.baseline != case.id else None  # never from what is judged
    predicted = bounded(case, predict(case, one_node, known.host), load(case, here()[1]))
    measured["goodput"], predicted["goodput"] = measure.goodput(result.links)
    host = dict(result.host) | measure.host(
        steps, [clock.uncertainty for one in outcomes for clock in one.clocks.values()]
    )
    host |= cards.told(case, raw["notes"])
    evidence = verdict.Evidence(result.links, measured, predicted, carried, host, one_node.silent if one_node else "")
    found = verdict.judge(case, evidence)
    if found.status in ("pass", "fail"):  # an invalid case says nothing about others
        known.measured[case.id] = measured
        if case.size == 1 and case.computes_real:
            known.phases[case.id] = measure.phases(steps, raw["notes"])
    bound = attribution.attribute(case, evidence, steps)
    return replace(
        result, status=found.status, reason=found.reason, unstable=found.unstable, checks=found.checks,
        measured=measured, predicted=predicted, host=host | {"bottleneck": asdict(bound)}, raw=raw,
        bottleneck=bound.kind,
    )  # fmt: skip


def mounts(case: Case) -> tuple[Path, ...]:
    """What of the host's own files the ranks read."""
    return tuple(map(Path, case.workload.reads))


def _source(scenario: Scenario, cases: Sequence[Case]) -> dict[str, Any]:
    return {
        "path": str(scenario.path), "name": scenario.name, "description": scenario.description,
        "text": scenario.text,
        "resolved": {"document": dict(scenario.resolved), "cases": [resolved(case) for case in cases]},
    }  # fmt: skip


def _write_log(folder: Path, result: CaseResult) -> None:
    if lines := result.raw.get("log"):
        record.write_atomically(folder / "logs" / f"{result.id[:120]}.txt", "\n".join(lines) + "\n")
