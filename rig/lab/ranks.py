"""Runs a case's ranks in a lab once: starts them, hears them, and says which one failed when one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rig.errors import FabricError, WorkloadError
from rig.fabric.client import Fabric
from rig.lab import Lab, endings, launching, nccl_log, siblings, stall
from rig.lab.outcome import Clock, Outcome
from rig.lab.schedule import Schedule
from rig.lab.talk import Talk
from rig.model import Case
from rig.work import Script

__all__ = ["Outcome", "run_ranks"]

GLANCE = 1.0  # seconds between two looks at the fabric
SETTLE = 1.0  # seconds to hear who else died, so that the first to die is named and not its victims
CLOCK_ROUNDS = 8


def run_ranks(lab: Lab, case: Case, run: str, outcome: Outcome) -> None:
    """One repeat, into `outcome`. Raises WorkloadError when a rank dies, hangs or ends early."""
    try:
        _converse(lab, case, run, outcome)
    finally:
        outcome.align()  # what was heard before an interruption counts too
        outcome.notes += nccl_log.notes(outcome.nccl)
    endings.judge(case, lab.kind, outcome)


@dataclass
class _Session:
    """One repeat while it goes on."""

    case: Case
    talk: Talk
    outcome: Outcome
    schedule: Schedule
    open: set[str]  # nodes whose launchers run, silent siblings left out
    signs: stall.Signs = field(default_factory=stall.Signs)
    asked: dict[str, float] = field(default_factory=dict)  # node → when its clock was asked for

    def hear(self, until: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is said until the nodes' launchers have ended; of a silent sibling only that it has died."""
        for place, said in self.talk.hear(until):
            if place in self.outcome.clocks or said.get("code"):
                yield place, said
            if said["event"] == "closed":
                self.open.discard(place)
            if not self.open:
                return


def _converse(lab: Lab, case: Case, run: str, outcome: Outcome) -> None:
    """Hear the ranks until all are gone, one has failed, or time is up; change links when it is time. Silent siblings
    compute before the first of them starts, and end with them.
    """
    modules = {node.name: ["rig.node.launch"] for node in siblings.crowded(case).nodes}
    until = outcome.began + case.timeout.seconds
    with Talk(lab, modules, run) as talk:
        _start_siblings(lab, case, talk, until)
        session = _Session(case, talk, outcome, Schedule(lab, case, outcome.notes), {node.name for node in case.nodes})
        for place, node in enumerate(case.nodes):
            outcome.clocks[node.name] = Clock()
            talk.say(node.name, launching.order(lab, case, place))
        session.asked = {node.name: time.monotonic() for node in case.nodes}
        for name in session.asked:
            talk.say(name, {"do": "clock"})
        try:
            _listen(session, lab.fabric, until)
        finally:
            session.schedule.restore()
        if time.monotonic() >= until:
            _ask_states(session, case)


def _start_siblings(lab: Lab, case: Case, talk: Talk, until: float) -> None:
    """Start them, and wait until each has done a step, or ended well: a script may make none of its own. Raises
    WorkloadError where one does neither.
    """
    orders = launching.beside(lab, case)
    for name, order in orders.items():
        talk.say(name, order)
    waiting = set(orders)
    for place, said in talk.hear(until) if waiting else ():
        if said.get("code"):
            raise WorkloadError(endings.obituary(case, lab.kind, Outcome(0, 0.0), {**said, "node": place}))
        if said["event"] in ("step", "exit"):
            waiting.discard(place)
        if not waiting:
            return
    if waiting:
        where = endings.beside(case, ", ".join(sorted(waiting)))
        raise WorkloadError(f"{where}: not one step within {case.timeout}; give a longer timeout")


def _listen(session: _Session, fabric: Fabric, until: float) -> None:
    outcome = session.outcome
    while session.open and time.monotonic() < until:
        failed = _hear(session, min(until, time.monotonic() + GLANCE, session.schedule.wake()))
        if failed:
            _hear(session, time.monotonic() + SETTLE, settle=True)
        _look_at(fabric)
        outcome.stalled = _stalled(session, fabric)
        if failed or outcome.stalled:
            return
        session.schedule.apply()


def _hear(session: _Session, until: float, settle: bool = False) -> bool:
    """File what is said; True as soon as something says that the repeat has failed. To settle is to hear on even so."""
    for place, said in session.hear(until):
        if said["event"] == "clock":
            _tick(session, place, said["at"])
            continue
        if said["event"] == "state":
            session.signs.used(said["rank"], said["cpu"])
            continue
        session.signs.seen()
        if session.outcome.take(place, said) and not settle:
            return True
        if said["event"] != "step":
            continue
        if endings.trains_alone(session.case, session.outcome):
            return True
        if session.schedule.heard(said):
            return False  # a change is due
    return False


def _stalled(session: _Session, fabric: Fabric) -> bool:
    """Whether ranks have waited long enough for one that has ended or, in a script, for each other; asks what moves."""
    outcome, case, quiet = session.outcome, session.case, session.signs.quiet
    may_lock = isinstance(case.workload, Script) and bool(outcome.steps) and not case.changes
    if not session.open or not (outcome.gone or may_lock):
        session.signs.seen()
        return False
    if quiet > stall.QUIET:
        for name in session.open:
            session.talk.say(name, {"do": "states"})
        session.signs.carried(fabric.counters())
    return quiet > (stall.GRACE if outcome.gone else stall.LOCKED)


def _look_at(fabric: Fabric) -> None:
    """Without its switch a lab is dead, and its ranks would only wait."""
    if fabric.status is not None:
        raise FabricError(
            f"fabric: while ranks ran, its process ended with exit status {fabric.status}: the lab is gone"
        )


def _ask_states(session: _Session, case: Case) -> None:
    """After a time-out: a frozen rank holds up all others, so that numbers of steps cannot tell which one it is."""
    outcome = session.outcome
    for node in case.nodes:
        session.talk.say(node.name, {"do": "states"})
    for place, said in session.hear(time.monotonic() + SETTLE):
        outcome.take(place, said)
    heard = {note["node"] for note in outcome.notes if note["event"] == "state"}
    gone = {one["node"] for one in outcome.exits}
    for rank, node in enumerate(case.seats):
        if node.name not in heard | gone:  # not even its launcher answers: the whole node stands still
            outcome.notes.append({"event": "state", "rank": rank, "state": "T", "node": node.name})


def _tick(session: _Session, place: str, at: float) -> None:
    """The round with the shortest trip tells most: Cristian's algorithm."""
    now, clock, asked = time.monotonic(), session.outcome.clocks[place], session.asked
    trip = now - asked[place]
    if trip / 2 < clock.uncertainty:
        clock.offset, clock.uncertainty = at - (now + asked[place]) / 2, trip / 2
    clock.rounds += 1
    if clock.rounds < CLOCK_ROUNDS:
        asked[place] = time.monotonic()
        session.talk.say(place, {"do": "clock"})
