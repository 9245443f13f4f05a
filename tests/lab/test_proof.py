"""Nothing is left behind: a run is killed at twenty moments of its life, in every lab, and the machine is as before.

What Ctrl-C and failures leave is in test_supervision.py, what a killed `rig up` leaves in test_keeper.py.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.runs import Run, assert_unchanged, machine, now, rig, start_of, until

MOMENTS = 20
LATE = 3  # moments that may lie behind the end of a run, when it went faster than those that were timed
PLAIN = """\
name: small
nodes: 1
link: {rate: 1gbit}
workload: {kind: allreduce, size: 64KiB, steps: 50, warmup: 1}
"""
FAR = """\
name: small
link: {rate: 100mbit, delay: 2ms}
clusters: {us: {nodes: 2}, eu: {nodes: 1}}
wan: {rate: 50mbit, rtt: 10ms}
shaper: delayline
workload: {kind: allreduce, size: 64KiB, steps: 20, warmup: 1}
probe: {goodput: 50%, slack: 50ms}
"""
STAGES = {  # by a text in the environment or the command line of a process; the last that fits says how far it was
    "fabric": "rig.fabric",
    "holding back": "rig.fabric.delayline",
    "probing": "rig.node.probe",
    "launching": "rig.node.launch",
    "running": "RANK=0",
}
seen: dict[str, list[str]] = {}  # lab → how far the run was at each moment so far


@contextmanager
def nothing_left(run: Run) -> Iterator[None]:
    """The body ends the run; then `rig clean`, and the machine must be as it was, with nothing of the run there."""
    before = machine()
    yield
    ended = now()
    run.kill()
    cleaned = rig("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert run.containers() == []
    run.assert_gone(ended)
    assert_unchanged(before)


def stage(run: Run) -> str:
    """How far a run is."""
    if run.process.poll() is not None:
        return "over"
    found = [name for name, telltale in STAGES.items() if run.processes(telltale)]
    if not found and run.containers():
        return "containers"
    return found[-1] if found else "recorded" if run.id and run.cases() else "begun" if run.id else "importing"


@dataclass
class Life:
    """How long an undisturbed run takes from its start to its end (s): the shortest seen so far, since on a machine
    whose speed changes the moments that are cut from too long a life lie behind the end of the next run.
    """

    seconds: float = float("inf")

    def lasted(self, seconds: float) -> None:
        self.seconds = min(self.seconds, seconds)


@pytest.fixture(scope="module")
def life(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Timed twice, as the first may still have files to read that are in memory afterwards."""
    life = Life()
    for attempt in "ab":
        began = time.monotonic()
        run = start_of(PLAIN, tmp_path_factory.mktemp("life") / attempt, kind)
        code, out, err = run.end(120)
        assert code in (0, 4), (out, err)  # a busy host may make it invalid, which is no matter here
        life.lasted(time.monotonic() - began)
    return life


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_killed_run_leaves_nothing(kind: str, life: Life, moment: int, tmp_path: Path) -> None:
    began = time.monotonic()
    run = start_of(PLAIN, tmp_path / "run", kind)
    with nothing_left(run):
        try:
            run.process.wait(life.seconds * (moment + 0.5) / MOMENTS)
            life.lasted(time.monotonic() - began)
        except subprocess.TimeoutExpired:
            run.note_spaces()
        seen.setdefault(kind, []).append(stage(run))


@pytest.mark.slow
def test_the_moments_were_all_over_its_life(kind: str) -> None:
    """Else twenty kills at one and the same place would prove nothing."""
    stages = seen.get(kind, [])
    if len(stages) < MOMENTS:
        pytest.skip("only some of the moments were tested")
    assert stages.count("over") <= LATE, stages
    assert {"importing", "probing", "running"} <= set(stages), stages
    assert len(set(stages)) >= 5, stages


def holding_back(run: Run) -> bool:
    return bool(run.processes("rig.fabric.delayline"))


def probing(run: Run) -> bool:
    return holding_back(run) and bool(run.processes("rig.node.probe"))


def running(run: Run) -> bool:
    return holding_back(run) and bool(run.processes("RANK=0"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [holding_back, probing, running])
def test_nor_do_its_switches_and_its_delay_line(kind: str, moment: Callable[[Run], bool], tmp_path: Path) -> None:
    if not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("/dev/net/tun cannot be opened by this user")
    run = start_of(FAR, tmp_path / "run", kind)
    with nothing_left(run):
        until(lambda: moment(run) or run.process.poll() is not None, 60)
        assert run.process.poll() is None, run.end()
        run.note_spaces()


@pytest.mark.slow
def test_two_rigs_at_once_are_no_matter_to_each_other(kind: str, tmp_path: Path) -> None:
    """The same scenario, so the same names and addresses, each in a network of its own."""
    one, other = (start_of(FAR, tmp_path / name, kind) for name in ("one", "other"))
    with nothing_left(one), nothing_left(other):
        until(lambda: holding_back(one) and holding_back(other), 90)
        for run in (one, other):
            code, out, err = run.end(180)
            assert code == 0, (out, err)
            assert run.cases() == ["pass"]
            assert run.descendants() == []
