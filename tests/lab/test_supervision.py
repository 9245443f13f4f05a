"""Whatever ends a run, it ends soon, says why, keeps what was finished, and leaves the machine as it was."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rig.errors import LackError, WorkloadError
from rig.lab import open_lab
from rig.lab.ranks import Outcome, run_ranks
from rig.units import Duration, Size
from rig.work import Allreduce
from tests.lab.conftest import new_run, order, processes_of
from tests.lab.runs import ROOT, Run, assert_unchanged, inhabited, machine, now, spaces_of, start, until

STEPS = 1000  # half a second on one node, long enough to be interrupted on more
SOON = 5.0  # seconds from a rank's death to the end of its case


def reading(run: Run) -> bool:
    """Inside the verb, importing: the scenario loader's library is mapped."""
    return "pydantic_core" in Path(f"/proc/{run.process.pid}/maps").read_text(encoding="utf-8")


def building(run: Run) -> bool:
    """The fabric is there, in the namespaces of its box."""
    return any(set(spaces_of(pid)) - set(spaces_of(os.getpid())) for pid in run.processes("rig.fabric"))


def probing(run: Run) -> bool:
    return bool(run.processes("rig.node.probe"))


def computing(run: Run) -> bool:
    return bool(run.processes("RANK=0"))


def in_second_case(run: Run) -> bool:
    return run.cases() == ["pass"] and bool(run.processes("RIG_NODE=n1"))


@pytest.fixture(scope="module")
def netns() -> None:
    """These tests need lab netns; where the system forbids it, test_netns.py says so."""
    try:
        with open_lab("netns", order(new_run(), nodes=1)):
            pass
    except LackError as error:
        pytest.skip(str(error))


@pytest.fixture
def run(tmp_path: Path, netns: None) -> Iterator[Run]:
    """A run of two cases: one node, then two."""
    before = machine()
    started = start(tmp_path, steps=STEPS)
    yield started
    started.kill()
    assert_unchanged(before)


# ── interrupted ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("moment", [reading, building, probing, computing])
def test_ctrl_c_leaves_nothing(run: Run, moment: Callable[[Run], bool]) -> None:
    """To the whole process group, as a terminal sends it."""
    until(lambda: moment(run))
    run.note_spaces()
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert code == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    run.assert_gone(now())


@pytest.mark.slow
def test_a_finished_case_survives_a_termination(run: Run) -> None:
    until(lambda: in_second_case(run))
    run.note_spaces()
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    run.assert_gone(now())
    record = run.record()
    assert [one["status"] for one in record["cases"]] == ["pass", "skipped"]
    assert record["summary"]["pass"] == 1
    assert len(record["cases"][0]["raw"]["steps"]) == STEPS + 1


# ── killed ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("moment", [building, probing, computing])
def test_the_kernel_removes_what_a_killed_rig_had(run: Run, moment: Callable[[Run], bool]) -> None:
    until(lambda: moment(run))
    run.note_spaces()
    assert run.spaces, "it had namespaces of its own"
    run.kill()
    run.assert_gone(now())


HOLD_A_LARGE_LAB = """
    import sys, time
    from rig.lab import open_lab
    from tests.lab.conftest import order
    with open_lab("netns", order(sys.argv[1], nodes=40)):
        time.sleep(600)
"""


@pytest.mark.parametrize("links", [1, 20, 40])
def test_killed_while_links_are_shaped(netns: None, links: int, tmp_path: Path) -> None:
    """Counted in the switch's namespace, where a link shows as soon as it is made; a second lab then opens."""
    before, mark = machine(), new_run()
    code = textwrap.dedent(HOLD_A_LARGE_LAB)
    holder = subprocess.Popen([sys.executable, "-c", code, mark], cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        until(lambda: links_made(mark) >= links)
        spaces = {one for pid in processes_of(f"RIG_RUN={mark}") for one in spaces_of(pid)} - set(
            spaces_of(os.getpid())
        )
    finally:
        holder.kill()
        holder.wait()
    assert spaces
    ended = now()
    until(lambda: not processes_of(f"RIG_RUN={mark}") and not spaces & inhabited(ended), SOON)
    assert_unchanged(before)
    assert list(tmp_path.iterdir()) == []
    with open_lab("netns", order(mark)):
        pass


def links_made(mark: str) -> int:
    """Ends of links in the switch's namespace of a lab."""
    seen = [0]
    for pid in processes_of(f"RIG_RUN={mark}"):
        try:
            lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()
        except OSError:  # it has just ended
            continue
        seen.append(sum(re.match(r"\s*n\d+:", line) is not None for line in lines))
    return max(seen)


# ── a rank fails ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_others_are_stopped(tmp_path: Path, netns: None) -> None:
    run = start(tmp_path, nodes=4, steps=STEPS)
    try:
        until(lambda: run.processes("RANK=2\0", "WORLD_SIZE=4"), 60)
        (victim,) = run.processes("RANK=2\0", "WORLD_SIZE=4")
        probed = sent(victim)
        until(lambda: sent(victim) > probed + 20_000_000)  # several steps have been made
        run.note_spaces()
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        code, _, err = run.end()
    finally:
        run.kill()
    assert time.monotonic() - killed < SOON
    assert code == 3
    assert "Traceback" not in err
    finished, dead = run.record()["cases"]
    assert (finished["status"], dead["status"]) == ("pass", "error")
    assert re.match(r"rank 2 \(node n2\): run allreduce: killed by SIGKILL after [1-9]\d* steps;", dead["reason"])
    run.assert_gone(now())


def sent(pid: int) -> int:
    """Bytes that the node of a process has sent."""
    for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            return int(figures.split()[8])
    return 0


def test_a_rank_that_raises_is_quoted(netns: None) -> None:
    """Six bytes are no whole number of float32."""
    wanted = order(new_run())
    broken = replace(wanted.case, workload=Allreduce(steps=3, warmup=1, size=Size(6)))
    with open_lab("netns", wanted) as lab, pytest.raises(WorkloadError) as caught:
        run_ranks(lab, broken, wanted.run, Outcome(0, time.monotonic()))
    first, *words = str(caught.value).splitlines()
    assert re.fullmatch(r"rank [01] \(node n[01]\): run allreduce: exit code 1 after 0 steps; its last lines:", first)
    assert any("fill 6 bytes with float32" in line for line in words)


@pytest.mark.slow
def test_a_frozen_rank_ends_in_time_and_is_named(netns: None) -> None:
    wanted = order(new_run())
    frozen = replace(
        wanted.case, workload=Allreduce(steps=100_000, warmup=1, size=Size(2**16)), timeout=Duration(7 * 10**9)
    )
    freezer = threading.Thread(target=freeze, args=(wanted.run, "RANK=1\0"))
    with open_lab("netns", wanted) as lab:
        freezer.start()
        began = time.monotonic()
        with pytest.raises(
            WorkloadError, match=r"^rank 1 \(node n1\): run allreduce: not done within 7s: it stands still, "
        ):
            run_ranks(lab, frozen, wanted.run, Outcome(0, began))
        assert time.monotonic() - began < 7 + SOON
        assert ranks_of(wanted.run, "RANK=") == []
    freezer.join()


def freeze(run: str, telltale: str) -> None:
    """Stop a rank for good once it has sent something."""
    until(lambda: ranks_of(run, telltale))
    (victim,) = ranks_of(run, telltale)
    until(lambda: sent(victim) > 1_000_000)
    os.kill(victim, signal.SIGSTOP)


def ranks_of(run: str, telltale: str) -> list[int]:
    """Living processes of a run with this text in their environment."""
    found = []
    for pid in processes_of(f"RIG_RUN={run}"):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"\0{telltale}".encode() in environment:
            found.append(pid)
    return found
