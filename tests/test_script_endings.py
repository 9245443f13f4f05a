"""How a repeat of a script ended, from what its ranks said and left: in one sentence, and with the right rank named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rig.errors import WorkloadError
from rig.lab.endings import judge, trains_alone
from rig.lab.outcome import Outcome
from rig.lab.stall import Signs
from rig.model import Case
from rig.work import Script
from tests.cases import case

CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [198.18.0.11]:4242"


def scripted(nodes: int = 2, **changes: Any) -> Case:
    fields: dict[str, Any] = {
        "steps": 0, "warmup": 3, "command": ("python", "train.py"), "folder": "/own", "files": "mounted",
        "torchrun": False,
    }  # fmt: skip
    return case(nodes, workload=Script(**(fields | changes)))


def outcome(steps: Mapping[int, int], *, group: bool = True, hello: bool = True) -> Outcome:
    """Ranks, one a node, that have made so many steps."""
    found = Outcome(0, 0.0)
    for rank, count in steps.items():
        if hello:
            found.take(f"n{rank}", {"event": "hello", "rank": rank})
        if group:
            found.take(f"n{rank}", {"event": "group", "rank": rank, "size": len(steps)})
        for step in range(count):
            found.take(f"n{rank}", {"event": "step", "rank": rank, "step": step})
    return found


def ends(found: Outcome, rank: int, code: int = 0, *tail: str) -> Outcome:
    """The same, with a rank that has ended; one that could still do so has said that it is done."""
    if code >= 0:
        found.take(f"n{rank}", {"event": "done", "rank": rank})
    found.take(f"n{rank}", {"event": "exit", "rank": rank, "code": code, "at": len(found.exits), "tail": list(tail)})
    return found


def sentence(one: Case, found: Outcome, lab: str = "netns") -> str:
    with pytest.raises(WorkloadError) as error:
        judge(one, lab, found)
    return str(error.value).splitlines()[0]


# ── well ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("steps", "most", "kept"), [({0: 10, 1: 10}, 0, 10), ({0: 10, 1: 9}, 0, 9), ({0: 10, 1: 10}, 4, 7)]
)
def test_steps_that_all_ranks_made_count_up_to_the_most(steps: dict[int, int], most: int, kept: int) -> None:
    found = ends(ends(outcome(steps), 0), 1)
    judge(scripted(steps=most), "netns", found)
    for rank in steps:
        assert [step["step"] for step in found.steps if step["rank"] == rank] == list(range(kept))


def test_one_rank_alone_needs_no_group() -> None:
    found = ends(outcome({0: 10}, group=False), 0)
    judge(scripted(1), "netns", found)
    assert len(found.steps) == 10


def test_torchrun_ends_once_a_node() -> None:
    one = scripted(2, torchrun=True)
    several = replace(one, nodes=tuple(replace(node, ranks=2) for node in one.nodes))
    found = outcome({rank: 10 for rank in range(4)})
    for node, rank in enumerate((0, 2)):
        found.take(f"n{node}", {"event": "exit", "rank": rank, "code": 0, "at": 0.0, "tail": []})
    judge(several, "netns", found)


# ── not well ─────────────────────────────────────────────────────────────────────────────────────────
def test_uneven_batches() -> None:
    found = ends(ends(outcome({0: 10, 1: 10}), 1), 0, 1, CLOSED)
    assert sentence(scripted(), found) == (
        "rank 1 (node n1): run script: it ended after 10 steps, with exit code 0, while rank 0 (node n0) wanted to go "
        "on after 10: every rank must make as many steps; give all as many batches (a DistributedSampler with "
        "drop_last=True does), or use torch.distributed.algorithms.join.Join"
    )


def test_one_that_waits_in_vain_is_told_as_one_that_dies_of_it() -> None:
    found = ends(outcome({0: 10, 1: 10}), 1)
    found.stalled = True
    assert re.match(r"rank 1 \(node n1\): .* while rank 0 \(node n0\) .*; it waited until", sentence(scripted(), found))


@pytest.mark.parametrize("torchrun", [False, True])
def test_the_crash_is_named_and_not_its_victim(torchrun: bool) -> None:
    found = outcome({0: 5, 1: 5})
    found.take("n1", {"event": "log", "rank": 1, "text": "[rank1]: Traceback (most recent call last):"})
    ends(found, 1, 1, "[rank1]: ValueError: odd")
    ends(found, 0, 1, CLOSED)
    assert sentence(scripted(torchrun=torchrun), found) == (
        "rank 1 (node n1): run script: exit code 1 after 5 steps; its last lines:"
    )


def test_a_crash_after_the_others_are_done_is_its_own() -> None:
    found = ends(ends(outcome({0: 10, 1: 10}), 1), 0, 1, "OSError: No space left on device")
    assert sentence(scripted(), found).startswith("rank 0 (node n0): run script: exit code 1 after 10 steps")


def test_ranks_without_a_group_are_known_before_they_end() -> None:
    going = outcome({0: 22, 1: 22}, group=False)
    assert not trains_alone(scripted(), going)
    going.take("n0", {"event": "step", "rank": 0, "step": 22})
    assert trains_alone(scripted(), going), "3 of warm-up and 20 more"
    assert trains_alone(scripted(steps=5), outcome({0: 8, 1: 1}, group=False)), "as many as count"
    assert not trains_alone(scripted(), outcome({0: 99, 1: 99}))
    assert not trains_alone(scripted(1), outcome({0: 99}, group=False))
    assert not trains_alone(case(2), outcome({0: 99, 1: 99}, group=False)), "no script: the rig's own have theirs"


def test_ranks_that_never_made_a_group() -> None:
    found = ends(ends(outcome({0: 5, 1: 5}, group=False), 0), 1)
    assert sentence(scripted(), found).startswith(
        "all ranks: run script: it never called torch.distributed.init_process_group for its 2 ranks: nothing was exch"
    )


def test_no_step_and_not_enough_steps() -> None:
    none = "all ranks: run script: it ended with exit code 0 and made no step; a step is seen when"
    told = sentence(scripted(1), ends(outcome({0: 0}), 0))
    assert told.startswith(none) and "nor was anything else heard" not in told
    assert "nor was anything else heard from inside it" in sentence(scripted(1), ends(outcome({0: 0}, hello=False), 0))
    few = ends(ends(outcome({0: 10, 1: 3}), 0), 1)
    assert sentence(scripted(), few).startswith(
        "rank 1 (node n1): run script: it ended with exit code 0 after 3 steps, and the first 3 are warm-up"
    )


@pytest.mark.parametrize(
    ("lab", "code", "last", "told"),
    [
        ("netns", 1, "ModuleNotFoundError: No module named 'timm.data'", "lacks the package timm: install it with the"),
        ("docker", 1, "ModuleNotFoundError: No module named 'timm'", "lacks the package timm: build it into the image"),
        ("netns", 2, "python: can't open file '/own/trian.py': [Errno 2] No such", "there is no /own/trian.py on the"),
        ("netns", 127, "accelrate: No such file or directory", "the node has no program python: correct the command"),
        ("netns", 1, "OSError: [Errno 30] Read-only file system: 'a.pt'", "write to the folder that $RIG_OUT names"),
        ("netns", 3, "odd", "exit code 3 after 0 steps"),
        ("netns", -9, "", "killed by SIGKILL after 0 steps"),
    ],
)
def test_last_words_that_tell_what_to_do(lab: str, code: int, last: str, told: str) -> None:
    found = ends(outcome({0: 0, 1: 0}), 0, code, last)
    assert told in sentence(scripted(), found, lab)


def test_a_package_is_named_that_only_the_log_tells_of() -> None:
    """torchrun's own report fills the last lines."""
    found = outcome({0: 0, 1: 0})
    found.take("n0", {"event": "log", "rank": 0, "text": "ModuleNotFoundError: No module named 'timm'"})
    assert "lacks the package timm" in sentence(scripted(torchrun=True), ends(found, 0, 1, "ChildFailedError"))


def test_last_lines_are_the_rank_s_own_and_not_what_torchrun_says_of_it() -> None:
    agent = "E1201 07:11:27 39 /torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank"
    found = ends(outcome({0: 0, 1: 0}), 0, 1, "odd", agent, *["Traceback"] * 40)
    with pytest.raises(WorkloadError, match=r"its last lines:\n  odd$"):
        judge(scripted(torchrun=True), "netns", found)


def test_not_done_in_time_says_how_far_it_came() -> None:
    assert sentence(scripted(), outcome({0: 9, 1: 7})) == (
        "rank 1 (node n1): run script: not done within 60s: it finished 7 steps, the others up to 9; give a longer "
        "timeout, let the script do less, or look at its last lines:"
    )


def test_last_lines_are_those_that_were_asked_for_where_the_log_ends_early() -> None:
    found = outcome({0: 9, 1: 7})
    found.take("n1", {"event": "log", "rank": 1, "text": "long ago"})
    found.take("n1", {"event": "state", "rank": 1, "state": "S", "cpu": 1.0, "tail": ["just now"]})
    with pytest.raises(WorkloadError, match="just now") as error:
        judge(scripted(), "netns", found)
    assert "long ago" not in str(error.value)


# ── ranks that wait ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("cpu", "carried", "alive"),
    [
        (0.0, 0, False),
        (0.04, 900, False),  # a poll now and then, a heartbeat
        (0.06, 0, True),  # it computes
        (0.0, 2000, True),  # a long exchange on a slow link, which takes no CPU
    ],
)
def test_signs_of_life(monkeypatch: pytest.MonkeyPatch, cpu: float, carried: int, alive: bool) -> None:
    """`cpu` and `carried`: CPUs used and bytes a second."""
    now = 100.0
    monkeypatch.setattr("rig.lab.stall.time.monotonic", lambda: now)
    signs = Signs()
    for second in range(20):
        signs.used(0, 7 + cpu * second)
        signs.used(1, 7)
        signs.carried({"n0": {"up": {"bytes": 10**9 + carried * second}, "down": {"bytes": 0}}})
        now += 1.0
    assert signs.quiet == (1.0 if alive else 20.0)
