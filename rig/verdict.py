"""Metrics, predictions, links and host → a verdict with its reason. Pure; every limit is data, and is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rig.links import bad_lines, bad_links
from rig.model import Case
from rig.results import Check, LinkReport, Metric, Predicted, Status
from rig.work import Script

LIMITS: Mapping[str, float] = {
    "lateness": 0.01,  # mean over steps of the worst paced wait, against the step: bounds the error of the mean
    "run_delay": 0.20,  # real compute: time a rank's main thread waited for a CPU, against the step; its own gloo
    # threads on the node's one CPU take up to 0.09, a stranger's program 0.3 and more
    "credit": 0.10,  # a step may be shorter than its bytes take on the wire, by what the token bucket lends
    "crossed": 0.01,  # bytes the links carried may fall short of the payload predicted by this
    "stolen": 0.005,  # CPU time a hypervisor gave to others while ranks ran; quiet runs show up to 0.0025
    "spread": 0.10,  # half the interval against the mean: beyond it a figure is flagged unstable
}
BYTES = ("payload_tx", "wire_tx")  # a rank that waits for a CPU sends what it would have sent
SLACK_BYTES = 512  # a control message may fall on the other side of a step's border; matters for tiny payloads only


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    status: Status
    reason: str = ""
    checks: tuple[Check, ...] = ()
    unstable: bool = False


@dataclass(frozen=True)
class Evidence:
    """All that a verdict rests on. `carried`: what each node's uplink carried in all (B, as tc counts)."""

    links: Sequence[LinkReport]
    measured: Mapping[str, Metric]
    predicted: Mapping[str, Predicted]
    carried: Mapping[str, int]
    host: Mapping[str, Any] = field(default_factory=dict)
    silent: str = ""  # why the one-node case does not tell what is to be expected, where it ran well


def judge(case: Case, evidence: Evidence) -> Verdict:
    """Invalid where the network or the host was not what the case needs; else fail or pass by its expectations."""
    checks = tuple(_checks(case, evidence))
    unstable = _unstable(case, evidence.measured)
    bypassed = _bypassed(case, evidence)
    if bypassed:
        return Verdict("fail", bypassed, checks, unstable)
    slow = bad_host(case, evidence)
    bytes_only = case.computes_real and bool(case.expect) and all(metric in BYTES for metric in case.expect)
    invalid = bad_links(case, evidence.links) or _too_fast(case, evidence)
    invalid = invalid or (bad_lines(case, evidence.host.get("delay_line", {})) if bytes_only else slow)
    if invalid:
        return Verdict("invalid", invalid, checks, unstable)
    missing = sorted(set(case.expect) - {check.metric for check in checks}) if case.baseline != case.id else []
    if missing and all(check.status == "pass" for check in checks):
        why = f"tells nothing of it: {evidence.silent}" if evidence.silent else "gave no valid figure"
        what = f"{', '.join(missing)} cannot be judged: its one-node case {case.baseline} {why}"
        return Verdict("invalid", what, checks, unstable)
    failed = [check for check in checks if check.status == "fail"]
    if stolen := _stolen(failed, evidence):
        return Verdict("invalid", stolen, checks, unstable)
    reason = "; ".join(
        f"{check.metric}{check.note} is {check.error:+.2%} from the prediction, {check.tolerance:.2%} allowed"
        for check in failed
    )
    if slow and not failed:
        reason = f"bytes are as predicted, times say nothing: {slow}"
    return Verdict("fail" if failed else "pass", reason, checks, unstable)


def unjudged(cases: Sequence[Case], results: Sequence[Mapping[str, Any]]) -> str:
    """A warning about expectations that no case could be held to, or nothing."""
    judged = {check["metric"] for result in results for check in result["checks"]}
    if all(result["status"] in ("error", "skipped", "invalid") for result in results):
        return ""
    never = sorted({metric for case in cases for metric in case.expect} - judged)
    why = "it was not measured, or nothing predicts it (real compute needs a one-node case and another one)"
    return f"expectation on {', '.join(never)}: judged in no case: {why}" if never else ""


def _stolen(failed: Sequence[Check], evidence: Evidence) -> str:
    """Why a failure proves nothing: a time was off while a hypervisor gave this machine's CPUs to others, for so long
    that the figures say nothing, or for as long as would explain what is beyond the tolerance (were every moment of it
    one that the step had to wait for).
    """
    share, cpus = evidence.host.get("cpu_stolen", 0.0), evidence.host.get("cpus", 1)
    if not failed or any(evidence.measured[one.metric].unit == "B" for one in failed):
        return ""
    # Stolen time only ever slows: a step that is too short is not explained by it.
    slower = [one.error if evidence.measured[one.metric].unit == "s" else -one.error for one in failed]
    most = [one.tolerance + share * cpus for one in failed]
    explained = share > 0 and all(0 < by <= limit for by, limit in zip(slower, most, strict=True))
    if share <= LIMITS["stolen"] and not explained:
        return ""
    return (
        f"{failed[0].metric} is {failed[0].error:+.2%} from the prediction, but {share:.2%} of this machine's CPU time "
        f"went to other machines on its host ({LIMITS['stolen']:.1%} allowed, less where that explains the excess), "
        "so this proves nothing; run it again"
    )


def _bypassed(case: Case, evidence: Evidence) -> str:
    """Traffic that took another way (shared memory, loopback, another interface) makes every figure worthless."""
    predicted = evidence.predicted.get("payload_tx")
    if said := evidence.host.get("nccl", {}).get("bypass"):
        return str(said)
    if case.size == 1 or predicted is None:
        return ""
    work = case.workload  # a script makes as many steps as it likes, and a sample of its step time is one of them
    counted = len(evidence.measured["step_time"].samples) if isinstance(work, Script) else work.steps * case.repeats
    steps = counted + work.warmup * case.repeats
    each = predicted.per_node or (predicted.value,) * case.size
    due = {node.name: sent * steps for node, sent in zip(case.nodes, each, strict=True)}
    short = [name for name, count in due.items() if evidence.carried[name] < count * (1 - LIMITS["crossed"])]
    sent = sum(evidence.carried[name] for name in due)
    if not predicted.per_node and sent >= sum(due.values()) * (1 - LIMITS["crossed"]):
        short = []  # which node sends more than another is not known, but all of it is there
    if not short:
        return ""
    carried, whole = (sum(of[name] for name in short) / 1e6 for of in (evidence.carried, due))
    return (
        f"{carried:.0f} of {whole:.0f} MB crossed the links of {', '.join(short)}: the rest took another way "
        "(one host name for two nodes, shared memory, loopback or another interface)"
    )


def _too_fast(case: Case, evidence: Evidence) -> str:
    """A step is no shorter than its bytes take on the wire, unless a token bucket's credit let them pass at once."""
    payload, step = evidence.measured["payload_tx"], evidence.measured["step_time"].value
    ways = {
        link.name: link.asked.get("goodput", link.asked["rate"]) for link in evidence.links if link.direction == "up"
    }
    for node, sent in zip(case.nodes, payload.per_node, strict=False):
        least = sent * 8 / ways.get(node.name, float("inf"))
        if step < least * (1 - LIMITS["credit"]):
            burst = node.link.up.burst
            return (
                f"link {node.name} up: a step took {step * 1e3:.3f} ms, but its {sent / 1e3:.1f} kB need "
                f"{least * 1e3:.3f} ms on that wire: they passed on the token bucket's credit ({burst} after each "
                "pause); send more a step, or give the link a smaller burst"
            )
    return ""


def bad_host(case: Case, evidence: Evidence) -> str:
    """Why the host could not keep up with a case, or nothing: its delay line, its waits, or CPUs for its ranks."""
    if held_up := bad_lines(case, evidence.host.get("delay_line", {})):
        return held_up
    step = evidence.measured["step_time"].value
    late = evidence.measured["lateness"].value / step
    if case.nodes[0].pace and late > LIMITS["lateness"]:
        return (
            f"the host could not keep up: paced waits ended {late:.1%} of a step late on average "
            f"({LIMITS['lateness']:.0%} allowed); use a larger dilation (--set dilation={2 * case.dilation}), "
            "or close other programs"
        )
    waited = evidence.host.get("run_delay", 0.0)
    if case.computes_real and waited > LIMITS["run_delay"]:
        less = f"use fewer nodes than {case.size}, paced compute with dilation, or" if case.size > 1 else ""
        return (
            f"the host could not keep up: ranks waited {waited:.0%} of a step for a CPU "
            f"({LIMITS['run_delay']:.0%} allowed); {less} close other programs"
        ).replace("  ", " ")
    return ""


def _checks(case: Case, evidence: Evidence) -> list[Check]:
    found = []
    for metric, tolerance in case.expect.items():
        measured, predicted = evidence.measured.get(metric), evidence.predicted.get(metric)
        if measured is None or predicted is None:
            continue
        if metric == "speedup" and case.baseline == case.id:
            continue  # one by definition
        found.append(_check(metric, measured, predicted, tolerance.ratio))
    return found


def _check(metric: str, measured: Metric, predicted: Predicted, tolerance: float) -> Check:
    """Compare the figure, and each node's own where both have them: the worst is the verdict's."""
    pairs = [(measured.value, predicted.value, "")]
    if measured.per_node and predicted.per_node:
        both = zip(measured.per_node, predicted.per_node, strict=True)
        pairs += [(one, other, f" of n{index}") for index, (one, other) in enumerate(both)]
    one, other, note = max(pairs, key=lambda pair: abs(_error(pair[0], pair[1])))
    error = _error(one, other)
    excused = measured.unit == "B" and abs(one - other) <= SLACK_BYTES and other < 2**20
    status = "pass" if abs(error) <= tolerance or excused else "fail"
    return Check(metric, one, other, error, tolerance, status, note)  # type: ignore[arg-type]


def _error(measured: float, predicted: float) -> float:
    if predicted == 0:
        return 0.0 if measured == 0 else float("inf")
    return measured / predicted - 1


def _unstable(case: Case, measured: Mapping[str, Metric]) -> bool:
    for name in case.expect:
        metric = measured.get(name)
        if metric is None or metric.low is None or metric.high is None:
            continue
        if (metric.high - metric.low) / 2 > LIMITS["spread"] * abs(metric.value):
            return True
    return False
