"""The measurement lock, between processes: one holds it, another waits and says for whom, a killed one frees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rig.lab import lock
from rig.lab.lock import holder, measuring

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from rig.lab import lock
lock.NAME = "\\0" + sys.argv[1]
with lock.measuring(lambda text: print("told", text, flush=True), sys.argv[2] == "locked"):
    print("held", flush=True)
    sys.stdin.read()
print("freed", flush=True)
"""


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A lock of this test's own: a rig may be measuring on this machine."""
    mine = f"\0rig-measure-{os.getpid()}"
    monkeypatch.setattr(lock, "NAME", mine)
    return mine


@contextmanager
def other(name: str, locked: str = "locked") -> Iterator[subprocess.Popen[str]]:
    """Another process that takes the lock, or waits for it, and holds it until its stdin ends."""
    argv = [sys.executable, "-c", HOLD, name.strip("\0"), locked]
    process = subprocess.Popen(argv, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_it_is_free_again_afterwards() -> None:
    told: list[str] = []
    for _ in range(2):
        with measuring(told.append):
            assert holder().startswith(f"process {os.getpid()}: ")
        assert holder() == ""
    assert told == []


def test_another_waits_and_says_once_for_whom(name: str) -> None:
    with ExitStack() as held:
        held.enter_context(measuring(print))
        with other(name) as waiting:
            assert said(waiting).startswith(f"told wait: another rig measures here (process {os.getpid()}: ")
            time.sleep(3 * lock.GLANCE)
            held.close()
            assert said(waiting) == "held"


def test_a_killed_holder_frees_it(name: str) -> None:
    told: list[str] = []
    with other(name) as holding:
        assert said(holding) == "held"
        assert holder().startswith(f"process {holding.pid}: python")
        began = time.monotonic()

        def tell(text: str) -> None:
            told.append(text)
            os.kill(holding.pid, signal.SIGKILL)

        with measuring(tell):
            assert time.monotonic() - began < 10
    assert len(told) == 1
    assert f"process {holding.pid}" in told[0]


def test_the_wait_can_be_interrupted(name: str) -> None:
    with other(name) as holding:
        assert said(holding) == "held"
        with other(name) as waiting:
            assert said(waiting).startswith("told wait: ")
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(10) != 0
        assert holder().startswith(f"process {holding.pid}: ")


def test_without_the_lock_nobody_waits(name: str) -> None:
    with measuring(print), other(name, "unlocked") as free:
        assert said(free) == "held"
        assert holder().startswith(f"process {os.getpid()}: ")


def test_an_error_inside_frees_it() -> None:
    with pytest.raises(ValueError, match="inside"), measuring(print):
        raise ValueError("inside")
    assert holder() == ""
