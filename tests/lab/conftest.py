"""Labs for tests: one that is up, and what can be seen of a run from outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from rig.errors import LackError
from rig.lab import LABS, Lab, Order, open_lab
from tests.cases import case
from tests.conftest import docker_lack

if TYPE_CHECKING:
    from tests.lab.scripts import Stage

PATIENCE = 5.0  # seconds for something that was told to end


def order(run: str, nodes: int = 2) -> Order:
    return Order(run, case(nodes), print)


def new_run() -> str:
    return f"test-{uuid4().hex[:8]}"


def ran(
    lab: Lab, place: str, argv: Sequence[str], env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a place to its end."""
    command = lab.command(place, argv, env or {})
    return subprocess.run(command, check=False, input=stdin, capture_output=True, encoding="utf-8", timeout=30)


def processes_of(mark: str) -> list[int]:
    """Processes on this machine, in containers too, with this text in their environment."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _bytes(path)]


def network_namespaces() -> set[str]:
    """Every network namespace that some process is in."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(path))
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="session", params=list(LABS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every lab there is, one after the other; those that cannot be had here are skipped with the reason."""
    name: str = request.param
    if name == "docker" and (reason := docker_lack()):
        pytest.skip(reason)
    try:
        with open_lab(name, order(new_run(), nodes=1)):
            return name
    except LackError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def lab(kind: str) -> Iterator[Lab]:
    """A lab of two nodes, open for all tests that leave it as it is."""
    with open_lab(kind, order(new_run())) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lab of each kind in which one script runs after the other."""
    from tests.lab.scripts import opened  # which takes its pieces from here

    with opened(kind, tmp_path_factory.mktemp("own")) as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage, tmp_path: Path) -> Iterator[Stage]:
    """The same for one test."""
    from tests.lab.scripts import cleared

    with cleared(shared, tmp_path) as mine:
        yield mine
