"""Runs a case's ranks in a lab once: starts them, hears them, and says which one failed when one does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rig.errors import FabricError, WorkloadError
from rig.fabric import NODE_END
from rig.fabric.client import Fabric
from rig.lab import Lab, siblings
from rig.lab.schedule import Schedule
from rig.lab.talk import Talk, quoted
from rig.model import Case, Node
from rig.workloads import WORKLOADS

PORT = 29500  # of the rendezvous store; inside a lab nothing else can have it
GLANCE = 1.0  # seconds between two looks at the fabric
SETTLE = 1.0  # seconds to hear who else died, so that the first to die is named and not its victims
CLOCK_ROUNDS = 8
FROZEN = ("T", "t", "D")  # states in which a process does nothing: stopped, traced, paused with its container
LOG_KEPT = 400  # lines of log per repeat in the record


@dataclass
class Clock:
    """A node's CLOCK_MONOTONIC less the orchestrator's, and half the round trip it was read in (s)."""

    offset: float = 0.0
    uncertainty: float = float("inf")
    rounds: int = 0


@dataclass
class Outcome:
    """What one repeat gave: every event of every rank, times on the orchestrator's clock since the launch."""

    repeat: int
    began: float
    steps: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)  # hello, layout, done
    log: list[str] = field(default_factory=list)
    clocks: dict[str, Clock] = field(default_factory=dict)
    exits: list[dict[str, Any]] = field(default_factory=list)


def run_ranks(lab: Lab, case: Case, run: str, outcome: Outcome) -> None:
    """One repeat, one rank a node, into `outcome`. Raises WorkloadError when a rank dies, hangs or ends early."""
    try:
        _converse(lab, case, run, outcome)
    finally:
        _align(outcome)  # what was heard before an interruption counts too
    _judge(case, outcome)


@dataclass
class _Session:
    """One repeat while it goes on."""

    talk: Talk
    outcome: Outcome
    schedule: Schedule
    open: set[str]  # nodes whose launchers run, silent siblings left out
    asked: dict[str, float] = field(default_factory=dict)  # node → when its clock was asked for

    def hear(self, until: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is said until the nodes' launchers have ended; of a silent sibling only that it has died."""
        for place, said in self.talk.hear(until):
            if place in self.outcome.clocks or said["event"] in ("exit", "closed"):
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
        siblings.start(talk, case, _beside(lab, case), until)
        session = _Session(talk, outcome, Schedule(lab, case, outcome.notes), {node.name for node in case.nodes})
        for rank, node in enumerate(case.nodes):
            outcome.clocks[node.name] = Clock()
            talk.say(node.name, _order(lab, case, rank))
        session.asked = {node.name: time.monotonic() for node in case.nodes}
        for name in session.asked:
            talk.say(name, {"do": "clock"})
        try:
            _listen(session, lab.fabric, until)
        finally:
            session.schedule.restore()
        if time.monotonic() >= until:
            _ask_states(session, case)


def _listen(session: _Session, fabric: Fabric, until: float) -> None:
    while session.open and time.monotonic() < until:
        failed = _hear(session, min(until, time.monotonic() + GLANCE, session.schedule.wake()))
        if failed:
            _hear(session, time.monotonic() + SETTLE, settle=True)
        _look_at(fabric)
        if failed:
            return
        session.schedule.apply()


def _hear(session: _Session, until: float, settle: bool = False) -> bool:
    """File what is said; True as soon as something says that the repeat has failed. To settle is to hear on even so."""
    for place, said in session.hear(until):
        if said["event"] == "clock":
            _tick(session, place, said["at"])
        elif _take(session.outcome, place, said) and not settle:
            return True
        elif said["event"] == "step" and session.schedule.heard(said):
            return False  # a change is due
    return False


def _look_at(fabric: Fabric) -> None:
    """Without its switch a lab is dead, and its ranks would only wait."""
    if fabric.status is not None:
        raise FabricError(
            f"fabric: while ranks ran, its process ended with exit status {fabric.status}: the lab is gone"
        )


def _take(outcome: Outcome, place: str, said: Mapping[str, Any]) -> bool:
    """File an event; True when it means that the repeat has failed."""
    event = {**said, "node": place}
    match said["event"]:
        case "step":
            outcome.steps.append(event)
        case "exit":
            outcome.exits.append(event)
            return bool(said["code"] != 0)
        case "closed":
            if said["code"] != 0:
                outcome.exits.append({**event, "rank": None, "at": time.monotonic(), "tail": [said["words"]]})
                return True
        case "log" | "text":
            if len(outcome.log) < LOG_KEPT:
                outcome.log.append(f"{place}: {said['text']}")
        case _:
            outcome.notes.append(event)
    return False


def _ask_states(session: _Session, case: Case) -> None:
    """After a time-out: a frozen rank holds up all others, so that numbers of steps cannot tell which one it is."""
    outcome = session.outcome
    for node in case.nodes:
        session.talk.say(node.name, {"do": "states"})
    for place, said in session.hear(time.monotonic() + SETTLE):
        _take(outcome, place, said)
    heard = {note["node"] for note in outcome.notes if note["event"] == "state"}
    gone = {one["node"] for one in outcome.exits}
    for rank, node in enumerate(case.nodes):
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


def _judge(case: Case, outcome: Outcome) -> None:
    failed = [one for one in outcome.exits if one["code"] != 0]
    if failed:
        first = min(failed, key=lambda one: one["at"] - _offset(outcome, one["node"]))
        raise WorkloadError(_obituary(case, outcome, first))
    expected = case.workload.steps + case.workload.warmup
    done = {rank: 0 for rank in range(case.size)}
    for step in outcome.steps:
        done[step["rank"]] += 1
    frozen = [note["rank"] for note in outcome.notes if note["event"] == "state" and note["state"] in FROZEN]
    behind = min(frozen or done, key=lambda rank: done[rank])
    who = f"rank {behind} (node {case.nodes[behind].name})"
    if len(outcome.exits) < case.size:
        raise WorkloadError(
            f"{who}: run {case.workload.kind}: not done within {case.timeout}: "
            f"{'it stands still, ' if frozen else ''}it finished {done[behind]} of {expected} steps, "
            f"the others up to {max(done.values())}; "
            f"give a longer timeout, or look at its last lines:\n{_last_words(outcome, case.nodes[behind].name)}"
        )
    if done[behind] != expected:
        raise WorkloadError(
            f"{who}: run {case.workload.kind}: it ended early, "
            f"after {done[behind]} of {expected} steps, with exit code 0"
        )


def _obituary(case: Case, outcome: Outcome, death: Mapping[str, Any]) -> str:
    code = death["code"]
    how = f"killed by {_signal(-code)}" if isinstance(code, int) and code < 0 else f"exit code {code}"
    who = "the launcher" if death["rank"] is None else f"rank {death['rank']}"
    steps = sum(step["rank"] == death["rank"] for step in outcome.steps)
    return (
        f"{who} (node {death['node']}): run {case.workload.kind}: {how} after {steps} steps; its last lines:\n"
        f"{quoted(death['tail'])}"
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _last_words(outcome: Outcome, node: str) -> str:
    return quoted([line for line in outcome.log if line.startswith(f"{node}: ")][-10:])


def _offset(outcome: Outcome, node: str) -> float:
    return outcome.clocks[node].offset if node in outcome.clocks else 0.0


def _align(outcome: Outcome) -> None:
    """Put every time on the orchestrator's clock, counted from the launch."""
    for step in outcome.steps:
        del step["event"]
        step["repeat"] = outcome.repeat
        shift = _offset(outcome, step["node"]) + outcome.began
        for name in ("start", "forward_start", "forward_end", "backward_end", "end"):
            step[name] -= shift
        step["buckets"] = [
            {"start": begin - shift, "end": end - shift, "bytes": count} for begin, end, count in step["buckets"]
        ]


def _order(lab: Lab, case: Case, rank: int) -> dict[str, Any]:
    """What the launcher of one of the case's nodes is told."""
    node = case.nodes[rank]
    seat = {"RANK": str(rank), "WORLD_SIZE": str(case.size), "MASTER_ADDR": case.nodes[0].address}
    return _launch(lab, case, seat | _own(case, node), job(case, node)) | {"cpus": cpus(case, rank)}


def _beside(lab: Lab, case: Case) -> dict[str, dict[str, Any]]:
    """What the launchers of its silent siblings are told, by node: each is a world of its own, and does not end."""
    return {
        node.name: _launch(
            lab, case, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": node.address} | _own(case, node),
            {**job(case, node), "steps": siblings.ENDLESS},
        ) | {"cpus": cpus(case, case.size + number)}
        for number, node in enumerate(siblings.siblings(case))
    }  # fmt: skip


def _own(case: Case, node: Node) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(node.threads), **case.env}


def _launch(lab: Lab, case: Case, env: Mapping[str, str], work: Mapping[str, Any]) -> dict[str, Any]:
    given = {
        "LOCAL_RANK": "0",
        # A first optimizer makes torch create a folder for compiled code, and that would stay: this one is there.
        "TORCHINDUCTOR_CACHE_DIR": "/tmp",
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": NODE_END,
        "NCCL_SOCKET_IFNAME": f"={NODE_END}",
        **env,
    }
    argv = [*lab.python, "-m", WORKLOADS[case.workload.kind]]
    return {"ranks": [{"rank": int(env["RANK"]), "argv": argv, "env": given, "job": work}]}


def job(case: Case, node: Node) -> dict[str, Any]:
    """The document a rank gets on its stdin: its workload, with its own batch and pace."""
    document = asdict(case.workload)
    pace = asdict(node.pace) if node.pace else None
    return {"kind": case.workload.kind, **document, "batch": node.batch, "pace": pace, "dilation": case.dilation}


def cpus(case: Case, place: int) -> list[int] | None:
    """A node's own CPUs where there are enough for all, silent siblings included, which come last; None where they must
    share, each with an equal weight.
    """
    mine = sorted(os.sched_getaffinity(0))
    nodes = siblings.crowded(case).nodes
    first = sum(node.threads for node in nodes[:place])
    if sum(node.threads for node in nodes) > len(mine):
        return None
    return mine[first : first + nodes[place].threads]
