"""What bounds a case's step, and the numbers that say so: host, straggler, compute, queue, window, latency or link.

Pure; works on the measured timeline, the links and the counters. Every limit is data, and is printed with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

from rig.formulas.edges import Leg, ring
from rig.formulas.limits import HIDDEN
from rig.formulas.rings import WORKERS
from rig.formulas.traffic import segments_per_chunk
from rig.lag import Lag, Step, latest
from rig.model import BUFFER_OVERHEAD, Case
from rig.verdict import Evidence, bad_host

Kind = Literal["host", "straggler", "compute", "queue", "window", "latency", "link"]
Counters = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by cable and direction: wiring.Fabric.counters

LIMITS: Mapping[str, float] = {
    "lag": 0.05,  # of the step: so much later than the others' is a straggler's last gradient …
    "waited": 0.50,  # … and so much it is of what the others wait for after theirs
    "clocks": 2.0,  # a lag is a difference of two clocks: it counts above twice the uncertainty of one
    "exposed": HIDDEN,  # of the step: computing bounds it where no more communication than that is exposed
    "dropped": 0.001,  # of the packets on one way of a cable: a full queue counts from there …
    "slowed": 0.05,  # … where bytes leave more than that of the communication to waiting
    "filled": 0.50,  # of the communication: where bytes fill less, it waits for round trips
}
SEGMENTS = 2  # of one gloo all-reduce under way at a time (facts.md, section 1)


@dataclass(frozen=True)
class Bottleneck:
    """What bounds a step. `where`: the rank or the way of a cable, where it is one. `figures`: emulated seconds,
    bit/s, bytes and shares of 1, the limits they were held against included.
    """

    kind: Kind
    where: str
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Facts:
    """A case in the figures that the rules ask for; emulated seconds, bit/s."""

    case: Case
    evidence: Evidence
    step: float
    exposed: float
    comm: float
    bytes: float  # what the busiest node's payload takes at the slowest edge's goodput; 0 where nothing says
    slowest: Leg | None
    several: bool  # whether edges differ, so that one of them can be named
    lag: Lag | None

    @property
    def filled(self) -> float | None:
        """Share of the communication in which bytes pass; None where a link that changed makes it unknown."""
        return min(1.0, self.bytes / self.comm) if self.comm > 0 and self.slowest and not self.case.changes else None

    @property
    def waits(self) -> bool:
        """Whether communication takes more than its bytes do."""
        return self.filled is not None and self.filled < 1 - LIMITS["slowed"]


def attribute(case: Case, evidence: Evidence, steps: Sequence[Step]) -> Bottleneck:
    """The first rule that holds, in the order of RULES; else the link.

    `steps`: a row per repeat, rank and step, warm-up included; none tell nothing of stragglers. `evidence.host`: with
    "clock_uncertainty" (s) and "dropped" (see `dropped`), where they are known.
    """
    facts = _facts(case, evidence, steps)
    return next((found for rule in RULES if (found := rule(facts))), None) or _link(facts)


def dropped(before: Counters, after: Counters) -> dict[str, dict[str, int]]:
    """Packets sent, and those a full queue dropped, between two looks at the fabric's counters, by "cable way"."""
    return {
        f"{name} {way}": {
            "packets": now["packets"] - before[name][way]["packets"],
            "drops": _lost(now) - _lost(before[name][way]),
        }
        for name, ways in after.items()
        for way, now in ways.items()
    }


def _lost(counted: Mapping[str, Any]) -> int:
    return int(counted["drops"] + counted.get("overflowed", 0))


def _facts(case: Case, evidence: Evidence, steps: Sequence[Step]) -> _Facts:
    legs = ring(case)
    slowest = min(legs, key=lambda leg: leg.edge.goodput, default=None)
    payload, measured = evidence.measured["payload_tx"], evidence.measured
    sent = max(payload.per_node, default=payload.value)
    return _Facts(
        case, evidence,
        step=measured["step_time"].value,
        exposed=measured["exposed_comm"].value,
        comm=measured["comm_time"].value,
        bytes=sent * 8 / slowest.edge.goodput if slowest else 0.0,
        slowest=slowest,
        several=len({leg.edge.goodput for leg in legs}) > 1,
        lag=latest(steps),
    )  # fmt: skip


# ── the rules, in the order in which they are asked ─────────────────────────────────────────────────────────
def _host(facts: _Facts) -> Bottleneck | None:
    reason = bad_host(facts.case, facts.evidence)
    return Bottleneck("host", "", reason, _host_figures(facts)) if reason else None


def _host_figures(facts: _Facts) -> dict[str, float]:
    late = facts.evidence.measured["lateness"].value / facts.step
    return {"lateness": late, "run_delay": float(facts.evidence.host.get("run_delay", 0.0))}


def _straggler(facts: _Facts) -> Bottleneck | None:
    if (lag := facts.lag) is None:
        return None
    k, clocks = facts.case.dilation, float(facts.evidence.host.get("clock_uncertainty", 0.0))
    late, waited = lag.seconds / k, lag.waited / k
    counts = late > LIMITS["lag"] * facts.step and late > LIMITS["waited"] * waited
    if not counts or lag.seconds <= LIMITS["clocks"] * clocks:
        return None
    where = f"rank {lag.rank} on {lag.node}"
    text = (
        f"{where} has its last gradient {_ms(late)} after the others (median): {late / facts.step:.1%} of the step "
        f"({LIMITS['lag']:.0%} counts), of {_ms(waited)} that they wait ({LIMITS['waited']:.0%} counts); clocks agree "
        f"within {_ms(clocks)} of real time"
    )
    return Bottleneck("straggler", where, text, {
        "lag": late, "waited": waited, "step": facts.step, "clock_uncertainty": clocks,
        "limit_lag": LIMITS["lag"], "limit_waited": LIMITS["waited"],
    })  # fmt: skip


def _compute(facts: _Facts) -> Bottleneck | None:
    if facts.case.size == 1:
        return Bottleneck("compute", "", "one node sends nothing", {"step": facts.step})
    share = facts.exposed / facts.step
    if share >= LIMITS["exposed"] or not facts.case.nodes[0].batch:
        return None
    text = f"computing hides communication but for {share:.1%} of the step (under {LIMITS['exposed']:.0%} counts)"
    return Bottleneck("compute", "", text, {**_exposure(facts), "limit_exposed": LIMITS["exposed"]})


def _queue(facts: _Facts) -> Bottleneck | None:
    shares = {name: _excess(facts.case, name, seen) for name, seen in facts.evidence.host.get("dropped", {}).items()}
    worst = max(shares, key=lambda name: shares[name], default="")
    if not worst or shares[worst] <= LIMITS["dropped"] or not facts.waits:
        return None
    text = (
        f"link {worst}: its queue dropped {shares[worst]:.2%} of the packets (over {LIMITS['dropped']:.1%} counts); "
        f"{_filling(facts)}; a longer queue would help"
    )
    figures = {"dropped": shares[worst], "limit_dropped": LIMITS["dropped"], "limit_slowed": LIMITS["slowed"]}
    return Bottleneck("queue", worst, text, {**_exposure(facts), **figures})


def _excess(case: Case, name: str, seen: Mapping[str, float]) -> float:
    """Share of a way's packets that were dropped, beyond the loss that was asked (netem counts it as drops)."""
    cable, _, way = name.rpartition(" ")
    asked = case.cable(cable).link.way("up" if way == "up" else "down").loss.mean
    offered = seen["packets"] + seen["drops"]
    return seen["drops"] / offered - asked if offered else 0.0


def _window(facts: _Facts) -> Bottleneck | None:
    if facts.slowest is None or not facts.waits or facts.slowest.edge.rtt == 0:
        return None
    edge, window = facts.slowest.edge, int(facts.case.tcp.buffer) // BUFFER_OVERHEAD
    carries = window * 8 / edge.rtt
    if carries >= edge.goodput or window >= _under_way(facts):
        return None
    text = (
        f"a socket's buffer of {facts.case.tcp.buffer}, half of it overhead, carries {carries / 1e6:.1f} Mb/s over a "
        f"round trip of {_ms(edge.rtt)}, the link {edge.goodput / 1e6:.1f}; a larger tcp.buffer would help"
    )
    figures = {"window": float(window), "rtt": edge.rtt, "window_rate": carries, "goodput": edge.goodput}
    return Bottleneck("window", "", text, {**_exposure(facts), **figures})


def _under_way(facts: _Facts) -> float:
    """Bytes that gloo keeps under way at most: a window that holds them is not what bounds it."""
    inputs = facts.evidence.predicted["payload_tx"].inputs if "payload_tx" in facts.evidence.predicted else {}
    largest, n = max(inputs.get("buckets") or [inputs.get("bytes", 0)]), facts.case.size
    return float(WORKERS * SEGMENTS * ceil(largest / (n * segments_per_chunk(largest, n)))) if largest else float("inf")


def _latency(facts: _Facts) -> Bottleneck | None:
    if facts.slowest is None or facts.filled is None or facts.filled >= LIMITS["filled"] or _spoils(facts.case):
        return None
    rtt = facts.slowest.edge.rtt
    rest = f"the rest waits for round trips of {_ms(rtt)}" if rtt else "the rest is the hosts' own time per message"
    text = f"{_filling(facts)} (under {LIMITS['filled']:.0%} counts): {rest}"
    return Bottleneck("latency", "", text, {**_exposure(facts), "rtt": rtt, "limit_filled": LIMITS["filled"]})


def _link(facts: _Facts) -> Bottleneck:
    figures = _exposure(facts)
    share = f"{facts.exposed / facts.step:.1%} of the step is exposed communication"
    if facts.slowest is None or facts.filled is None:
        changed = "; its links changed while it ran" if facts.case.changes else ""
        return Bottleneck("link", "", f"{share}{changed}", figures)
    spoilt = f"; the links were asked for {_spoils(facts.case)}, which slows TCP down" if _spoils(facts.case) else ""
    hop = facts.slowest.slowest
    where = f"{hop['cable']} {hop['direction']}" if facts.several else ""
    return Bottleneck("link", where, f"{share}; {_filling(facts)}{spoilt}", figures)


RULES: Sequence[Callable[[_Facts], Bottleneck | None]] = (_host, _straggler, _compute, _queue, _window, _latency)


def _spoils(case: Case) -> str:
    """What the scenario asked of the links that makes TCP slower than their rate, or nothing."""
    ways = [way for cable in case.cables for way in (cable.link.up, cable.link.down)]
    asked = {
        "loss": any(way.loss.mean or way.corrupt for way in ways),
        "reordering": any(way.reorder or way.jitter for way in ways),
    }
    return " and ".join(name for name, holds in asked.items() if holds)


def _exposure(facts: _Facts) -> dict[str, float]:
    figures = {"step": facts.step, "exposed": facts.exposed, "comm": facts.comm}
    if facts.slowest and facts.filled is not None:
        figures |= {"bytes": facts.bytes, "filled": facts.filled, "goodput": facts.slowest.edge.goodput}
    return figures


def _filling(facts: _Facts) -> str:
    assert facts.slowest is not None
    return (
        f"bytes need {_ms(facts.bytes)} at {facts.slowest.edge.goodput / 1e6:.1f} Mb/s, {facts.filled or 0.0:.0%} of "
        f"{_ms(facts.comm)} of communication"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"
