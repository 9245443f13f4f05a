"""How a repeat ended: well, or in which of the ways that can be told in one sentence. Pure, but for the words it reads.

The rig's own workloads make a known number of steps; a script makes as many as it likes, and may know of no others.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rig.errors import WorkloadError
from rig.lab import launching, stall
from rig.lab.outcome import Outcome
from rig.lab.talk import quoted
from rig.model import Case
from rig.work import Script

FROZEN = ("T", "t", "D")  # states in which a process does nothing: stopped, traced, paused with its container
ENOUGH = 20  # steps of a script, beyond the warm-up, after which ranks that share no group will not make one
# What gloo, NCCL and the store say when it was the other side that went away.
_LEFT = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|remote process exited|recvBytes|Socket Timeout|DistNetworkError"
    r"|DistBackendError|ncclRemoteError|Timed out waiting"
)
# How torchrun's report on a dead rank begins, which is longer than what it is about.
_AGENT = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode")
SHOWN = 30  # of a rank's last lines
_LACKS = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_ABSENT = re.compile(r"can't open file '([^']+)'")
_SEEN = "a step is seen when an optimizer of torch.optim steps, or where the script says so: from rig import step"


def judge(case: Case, lab: str, outcome: Outcome) -> None:
    """Raise WorkloadError where the repeat is worth nothing; else leave the steps that count, and the warm-up's.

    `lab`: its kind, for what to do about a package that is missing.
    """
    failed = [one for one in outcome.exits if one["code"] != 0]
    if failed:
        first = min(failed, key=lambda one: one["at"] - outcome.offset(one["node"]))
        raise WorkloadError(_uneven(case, outcome, first) or obituary(case, lab, outcome, first))
    done = _steps(case, outcome)
    if trains_alone(case, outcome):
        raise WorkloadError(_alone(case))
    if len(outcome.exits) < launching.processes(case):
        raise WorkloadError(_stalled(case, outcome, done) if outcome.stalled else _late(case, outcome, done))
    if isinstance(case.workload, Script):
        _judge_script(case, case.workload, outcome)
        return
    expected, behind = case.workload.steps + case.workload.warmup, min(done, key=lambda rank: done[rank])
    if done[behind] != expected:
        raise WorkloadError(
            f"{_who(case, behind)}: run {case.workload.kind}: it ended early, "
            f"after {done[behind]} of {expected} steps, with exit code 0"
        )


def trains_alone(case: Case, outcome: Outcome) -> bool:
    """Whether a rank has made so many steps without a group that there will be none; or all have ended so."""
    work = case.workload
    if not isinstance(work, Script) or len(case.seats) == 1:
        return False
    if not outcome.steps or any(note["event"] == "group" and note.get("size", 0) > 1 for note in outcome.notes):
        return False
    over = len(outcome.exits) == launching.processes(case)
    return over or max(step["step"] for step in outcome.steps) + 1 >= work.warmup + (work.steps or ENOUGH)


def _steps(case: Case, outcome: Outcome) -> dict[int, int]:
    """Rank → the steps it has done."""
    done = Counter(step["rank"] for step in outcome.steps)
    return {rank: done[rank] for rank in range(len(case.seats))}


def _who(case: Case, rank: int) -> str:
    return f"rank {rank} (node {case.seats[rank].name})"


# ── the rig's own, and what all have alike ───────────────────────────────────────────────────────────
def _late(case: Case, outcome: Outcome, done: Mapping[int, int]) -> str:
    frozen = [note["rank"] for note in outcome.notes if note["event"] == "state" and note["state"] in FROZEN]
    behind = min(frozen or done, key=lambda rank: done[rank])
    known = not isinstance(case.workload, Script)
    expected = f" of {case.workload.steps + case.workload.warmup}" if known else ""
    shorter = "" if known else ", let the script do less,"
    return (
        f"{_who(case, behind)}: run {case.workload.kind}: not done within {case.timeout}: "
        f"{'it stands still, ' if frozen else ''}it finished {done[behind]}{expected} steps, "
        f"the others up to {max(done.values())}; "
        f"give a longer timeout{shorter} or look at its last lines:\n{_last_words(outcome, case.seats[behind].name)}"
    )


def obituary(case: Case, lab: str, outcome: Outcome, death: Mapping[str, Any]) -> str:
    """The sentence on a rank, or a launcher, that ended with an error, and its last lines. `death`: its last event."""
    code, node, tail = death["code"], death["node"], death.get("tail") or [death.get("words", "")]
    how = f"killed by {_signal(-code)}" if isinstance(code, int) and code < 0 else f"exit code {code}"
    why = _reason(case, lab, code, _words(outcome, node, tail))
    if node not in (one.name for one in case.nodes):
        return f"{beside(case, node)}: {why or how}; its last lines:\n{quoted(_own(tail))}"
    who = "the launcher" if death.get("rank") is None else f"rank {death['rank']}"
    steps = sum(step["rank"] == death.get("rank") for step in outcome.steps)
    why = why or f"{how} after {steps} steps"
    return f"{who} (node {node}): run {case.workload.kind}: {why}; its last lines:\n{quoted(_own(tail))}"


def _own(tail: Sequence[str]) -> Sequence[str]:
    """What it said itself."""
    end = next((number for number, line in enumerate(tail) if _AGENT.search(line)), len(tail))
    return tail[:end][-SHOWN:] or tail[-SHOWN:]


def beside(case: Case, place: str) -> str:
    """How a silent sibling's troubles begin."""
    return f"node {place}: run {case.workload.kind} beside the one-node case {case.id}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _last_words(outcome: Outcome, node: str) -> str:
    """What the ranks of a node said last, as its launcher told when it was asked; else as far as the log goes."""
    states = [note for note in outcome.notes if note["event"] == "state" and note["node"] == node]
    told = [line for note in states for line in note.get("tail", ())]
    return quoted(told or [line for line in outcome.log if line.startswith(f"{node}: ")][-10:])


# ── scripts ──────────────────────────────────────────────────────────────────────────────────────────
def _judge_script(case: Case, script: Script, outcome: Outcome) -> None:
    """All ranks have ended well: whether they have made steps that count. Those that not all have made do not."""
    done = _steps(case, outcome)
    behind = min(done, key=lambda rank: done[rank])
    least = done[behind]
    if not outcome.steps:
        heard = any(note["event"] == "hello" for note in outcome.notes)
        why = "" if heard else (
            "; nor was anything else heard from inside it: it must be run by the node's python, without -I, -E or -S"
        )  # fmt: skip
        raise WorkloadError(f"all ranks: run script: it ended with exit code 0 and made no step; {_SEEN}{why}")
    if least <= script.warmup:
        raise WorkloadError(
            f"{_who(case, behind)}: run script: it ended with exit code 0 after {least} steps, and the first "
            f"{script.warmup} are warm-up, so that none counts; let it train longer, or write a smaller warmup"
        )
    last = min(least, script.warmup + script.steps) if script.steps else least
    outcome.steps[:] = [step for step in outcome.steps if step["step"] < last]


def _alone(case: Case) -> str:
    return (
        f"all ranks: run script: it never called torch.distributed.init_process_group for its {len(case.seats)} ranks: "
        "nothing was exchanged, every rank trained alone; call it before the model is wrapped (what it needs is in the "
        "environment), or run the script on one node"
    )


def _uneven(case: Case, outcome: Outcome, death: Mapping[str, Any]) -> str:
    """Another rank had ended well before this one died of its absence; empty where it was not so."""
    words = _words(outcome, death["node"], death["tail"])
    if not isinstance(case.workload, Script) or not outcome.gone or not _LEFT.search(words):
        return ""
    bad = {one["rank"] for one in outcome.exits if one["code"] != 0 and not case.workload.torchrun}
    crashed = {rank for rank in outcome.gone if any(f"[rank{rank}]: Traceback" in line for line in outcome.log)}
    early = next((rank for rank in outcome.gone if rank not in bad | crashed), None)
    if early is None:
        return ""
    others = [rank for rank in range(len(case.seats)) if rank != early]
    victim = death["rank"] if death["rank"] in others and not case.workload.torchrun else others[-1]
    return _ended_before(case, outcome, early, victim)


def _stalled(case: Case, outcome: Outcome, done: Mapping[int, int]) -> str:
    if not outcome.gone:
        counts = ", ".join(f"rank {rank} after {count}" for rank, count in list(done.items())[:8])
        return (
            f"all ranks: run script: each waits for another, and nothing has moved for {stall.LOCKED:.0f} s ({counts} "
            "steps): all must call the same collectives in the same order; give all as many batches (a "
            "DistributedSampler with drop_last=True does), and look for collectives that some ranks alone call"
        )
    gone = set(outcome.gone)
    waiting = next((rank for rank in done if rank not in gone), 0)
    early = next((rank for rank in outcome.gone if rank != waiting), waiting)
    return f"{_ended_before(case, outcome, early, waiting)}; it waited until the rig ended it"


def _ended_before(case: Case, outcome: Outcome, early: int, victim: int) -> str:
    done = _steps(case, outcome)
    return (
        f"{_who(case, early)}: run {case.workload.kind}: it ended after {done[early]} steps, with exit code 0, while "
        f"{_who(case, victim)} wanted to go on after {done[victim]}: every rank must make as many steps; give all as "
        "many batches (a DistributedSampler with drop_last=True does), or use torch.distributed.algorithms.join.Join"
    )


def _reason(case: Case, lab: str, code: int | None, words: str) -> str:
    """What a person can do about a script that ended with an error, where its words tell; else nothing."""
    if not isinstance(case.workload, Script):
        return ""
    if lacks := _LACKS.findall(words):
        package = lacks[-1].partition(".")[0]
        where = (
            "install it with the Python that the rig runs with"
            if lab == "netns"
            else "build it into the image (RIG_BASE_IMAGE names one that it starts from)"
        )
        return f"the node lacks the package {package}: {where}, or put it into the scenario file's folder"
    if absent := _ABSENT.findall(words):
        return f"there is no {absent[-1]} on the node: only the scenario file's folder is there; put it into that"
    if code == 127:
        return f"the node has no program {case.workload.command[0]}: correct the command, or install it there"
    if "Read-only file system" in words:
        return (
            "it wrote into its folder, which is read-only on the nodes: write to the folder that $RIG_OUT names, "
            "or write files: copied"
        )
    return ""


def _words(outcome: Outcome, node: str, tail: Iterable[str]) -> str:
    return "\n".join([*(line for line in outcome.log if line.startswith(f"{node}: ")), *tail])
