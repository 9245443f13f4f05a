"""How commands of a person's own may end: in time, with a clear sentence, and with nobody left."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.errors import LackError
from tests.lab.runs import machine, now, start_of, until
from tests.lab.scripts import SPEAKER, Stage, opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """In lab netns; where the system forbids it, test_netns.py says so."""
    try:
        with opened("netns", tmp_path_factory.mktemp("own")) as stage:
            yield stage
    except LackError as error:
        pytest.skip(str(error))


# ── how it may end ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("joined(); steps(10 - 9 * RANK)", r"^rank 1 \(node n1\): .* ended with exit code 0 after 1 steps, and"),
        ("joined()", r"^all ranks: run script: it ended with exit code 0 and made no step; a step is seen when"),
        ("steps(23); time.sleep(60)", r"never called torch.distributed.init_process_group for its 2 ranks: not"),
        ("import not_there", r"^rank [01] \(node n[01]\): run script: the node lacks the package not_there: "),
        ("open('a.pt', 'w')", r"it wrote into its folder, which is read-only on the nodes: write to .*RIG_OUT"),
        (
            "joined(); steps(10); RANK == 0 and (time.sleep(0.5), sys.exit('RuntimeError: Connection closed by peer'))",
            r"^rank 1 \(node n1\): .* ended after 10 steps, with exit code 0, while rank 0 \(node n0\) wanted to go",
        ),
    ],
)  # fmt: skip
def test_it_ends_with_a_clear_sentence(stage: Stage, code: str, told: str) -> None:
    began = time.monotonic()
    assert re.search(told, stage.refused(code)), told
    assert time.monotonic() - began < 15


def test_one_that_waits_for_another_that_has_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rig.lab.stall.GRACE", 2.0)
    began = time.monotonic()
    told = stage.refused("joined(); steps(10); RANK == 0 and time.sleep(600)")
    assert "rank 1 (node n1): run script: it ended after 10 steps, with exit code 0, while rank 0 (node n0)" in told
    assert time.monotonic() - began < 20


def test_ranks_that_wait_for_one_another(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rig.lab.stall.LOCKED", 3.0)
    told = stage.refused("joined(); steps(10 - RANK); time.sleep(600)")
    assert told.startswith("all ranks: run script: each waits for another, and nothing has moved for 3 s")
    assert "(rank 0 after 10, rank 1 after 9 steps)" in told


def test_one_that_still_computes_is_left_to_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation of rank 0's, say, when the others are done."""
    monkeypatch.setattr("rig.lab.stall.GRACE", 2.5)
    busy = """
        joined(), steps(10)
        until = time.monotonic() + 5 * (RANK == 0)
        while time.monotonic() < until:
            pass
    """
    assert len(stage.run(busy).steps) == 20


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("python", "trian.py"), "there is no "),
        (("no-such-program",), "the node has no program no-such-program"),
    ],
)
def test_a_command_that_is_not_there(stage: Stage, command: tuple[str, ...], told: str) -> None:
    assert told in stage.refused("", command=command)


def test_megabytes_of_words_do_not_hold_it_up(stage: Stage) -> None:
    babbling = """
        joined()
        for _ in range(100):
            print("x" * 80, "y" * 60, sep="\\n" * 5)
            sys.stdout.write("z" * 100_000 + "\\r")
            sys.stderr.write("w" * 10_000 + "\\n")
        steps(4)
    """
    outcome = stage.run(babbling)
    assert len(outcome.steps) == 8
    assert sum(map(len, outcome.log)) < 1_500_000


def test_children_that_hide_are_ended(stage: Stage) -> None:
    """Twice forked and in a session of its own, as a daemon is."""
    daemon = """
        import subprocess
        joined(), steps(4)
        subprocess.run(["sh", "-c", "setsid sleep 600 & setsid sleep 600 &"], check=True)
    """
    stage.run(daemon)
    stage.assert_gone()


@pytest.mark.slow
def test_torchrun_starts_ranks_that_are_ended_with_it(stage: Stage) -> None:
    outcome = stage.run("joined(), steps(4)", 1, 2, torchrun=True, command=("train.py",))
    assert sorted(step["rank"] for step in outcome.steps if step["step"] == 3) == [0, 1, 2]
    told = stage.refused("joined(), steps(4); RANK == 2 and sys.exit(5); time.sleep(600)", 1, 2, torchrun=True)
    assert "(node n1): run script: exit code 1" in told


# ── killed ───────────────────────────────────────────────────────────────────────────────────────────
OWN = """\
name: small
link: {rate: 200mbit}
nodes: 2
workload: {kind: script, command: [python, train.py], files: copied}
timeout: 60s
"""


def test_a_killed_rig_leaves_nothing_of_its_copies(shared: Stage, tmp_path: Path) -> None:
    before = machine()
    waits = 'open("made.txt", "w").write("here"); joined(), steps(4); time.sleep(600)'
    (tmp_path / "train.py").write_text(SPEAKER + waits, encoding="utf-8")
    run = start_of(OWN, tmp_path)
    try:
        until(lambda: len([pid for pid in run.processes("RIG_EVENTS=")]) == 2, 60)
        run.note_spaces()
    finally:
        run.kill()
    run.assert_gone(now())
    assert machine()["mounts"] == before["mounts"]
    assert not (tmp_path / "made.txt").exists()
