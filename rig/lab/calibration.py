"""What this machine itself adds to communication and to a step: measured through the rig's own lab, kept, and known.

Nothing here looks at a case that is judged: what is measured are cases of the calibration's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rig import models
from rig.errors import LabError
from rig.fabric import NODE_END
from rig.formulas.traffic import DDP_CAP, gloo_allreduce_payload
from rig.lab import Order, Tell, kept, open_lab
from rig.lab.ceiling import bare
from rig.lab.launching import PORT, cpus
from rig.lab.ranks import Outcome, run_ranks
from rig.lab.talk import Talk
from rig.model import Case, Host
from rig.units import Size
from rig.work import Allreduce, Data, Ddp, Pace

NAME = "calibration"  # of its file in the cache folder


@dataclass(frozen=True)
class Series:
    """All-reduces of so many bytes, after some that do not count."""

    size: int
    warmup: int
    count: int


RANKS = (2, 4, 8)
SMALL, LARGE = Series(64, 20, 60), Series(2**25, 3, 9)
ANSWER_WITHIN = 60.0  # s
SOUND = 60.0  # s: no time that is measured here can be longer
RATE = "30gbit"  # near the most that a token bucket can count, and far above what gloo reaches on a few cores
MODEL, PACE = "resnet18", Pace(forward=0.020, backward=0.040, optimizer=0.005)
PACED_STEPS, PACED_WARMUP = 20, 3


def known_host(tell: Tell) -> Host | None:
    """This machine's calibration; None where there is none. One that cannot be used is told about, in one line."""
    said = kept.known(NAME)
    why = said.why
    if said.found is not None:
        try:
            return _host(said.found, said.date)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"it is damaged ({error!r})"
    if why:
        tell(f"calibration: use {_place()}: {why}; predictions are nominal; run `rig calibrate`")
    return None


def keep(host: Host) -> Path:
    """Write it where `known_host` looks. Raises OSError."""
    return kept.keep(NAME, {name: value for name, value in asdict(host).items() if name in ("alpha", "reduce", "step")})


def _host(found: Any, date: str) -> Host:
    machine = kept.this_machine()
    alpha = {int(ranks): float(seconds) for ranks, seconds in found["alpha"].items()}
    reduce, step = float(found["reduce"]), float(found["step"])
    if not (alpha and all(0 < one < SOUND for one in (*alpha.values(), reduce)) and 0 <= step < SOUND):
        raise ValueError(f"a time in it is not above 0, or not below {SOUND:.0f} s")
    return Host(alpha, reduce, step, machine.cores, machine.cpu, machine.kernel, date)


def _place() -> str:
    try:
        return str(kept.file(NAME))
    except OSError as error:
        return f"a file in the cache folder ({error.strerror})"


def measure(run: str, tell: Tell) -> Host:
    """Measure this machine, about half a minute. Raises LackError, LabError, WorkloadError."""
    machine = kept.this_machine()
    busy = max(4, min(max(RANKS), machine.cores))  # ranks, enough to keep every core at work
    alpha, reduce = {}, 0.0
    for ranks in RANKS:
        tell(f"time all-reduces of {ranks} ranks")
        small, large = (median(spans) for spans in _reductions(run, ranks))
        alpha[ranks] = small
        if ranks <= busy:
            reduce = large / (ranks * gloo_allreduce_payload(LARGE.size, ranks))
    tell("time paced steps of one rank")
    return Host(alpha, reduce, _beyond_pace(run), machine.cores, machine.cpu, machine.kernel, kept.now())


def _reductions(run: str, ranks: int) -> list[list[float]]:
    """Seconds of each all-reduce, small and large: from when its last rank was ready until the last had the sum."""
    case = bare(ranks, Allreduce(steps=1, warmup=1, size=Size(4)), RATE)  # what it would train does not matter
    said: dict[str, list[dict[str, Any]]] = {node.name: [] for node in case.nodes}
    with (
        open_lab("netns", Order(run, case, lambda _: None)) as lab,
        Talk(lab, {name: ["rig.workloads.reductions"] for name in said}, run) as talk,
    ):
        for rank, node in enumerate(case.nodes):
            talk.say(node.name, _job(case, rank))
        for place, event in talk.hear(time.monotonic() + ANSWER_WITHIN):
            if event["event"] == "reduced":
                said[place].append(event)
            elif event["event"] == "closed" and event["code"] != 0:
                raise LabError(f"node {place}: calibrate: exit status {event['code']}: {event['words'] or 'silence'}")
    if any(len(events) < 2 for events in said.values()):
        raise LabError(f"calibrate: time all-reduces of {ranks} ranks: not done within {ANSWER_WITHIN:.0f} s")
    return [_spans([events[which]["spans"] for events in said.values()]) for which in range(2)]


def _job(case: Case, rank: int) -> dict[str, Any]:
    return {
        "rank": rank, "size": case.size, "store": [case.nodes[0].address, PORT],
        "interface": NODE_END, "cpus": cpus(case, rank), "bytes": [asdict(SMALL), asdict(LARGE)],
    }  # fmt: skip


def _spans(ranks: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    return [max(end for _, end in moment) - max(start for start, _ in moment) for moment in zip(*ranks, strict=True)]


def _beyond_pace(run: str) -> float:
    """Seconds that a paced step of one rank takes beyond its pace, on average."""
    table = models.load(MODEL)
    workload = Ddp(
        PACED_STEPS, PACED_WARMUP, model=MODEL, compute="paced", table=table, bucket_cap=Size(DDP_CAP), seed=0, lr=0.1,
        data=Data(),
    )  # fmt: skip
    steps = _steps(run, bare(1, workload, RATE, PACE))
    return max(0.0, fmean(step["end"] - step["start"] for step in steps) - PACE.step())


def _steps(run: str, case: Case) -> list[dict[str, Any]]:
    """The steps of a case that count, rank by rank, in a lab of its own. Links are not probed: they are no limit."""
    outcome = Outcome(0, time.monotonic())
    with open_lab("netns", Order(run, case, lambda _: None)) as lab:
        run_ranks(lab, case, run, outcome)
    return [step for step in outcome.steps if not step["warmup"]]
