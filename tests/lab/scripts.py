"""A lab in which one script runs after the other, and a script's way to speak without PyTorch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rig.errors import WorkloadError
from rig.lab import Lab, Order, open_lab, outputs
from rig.lab.ranks import Outcome, run_ranks
from rig.model import Case
from rig.units import Duration
from rig.work import Script
from tests.cases import case
from tests.lab.conftest import new_run, processes_of
from tests.lab.runs import until

# What an instrumented rank says, without PyTorch: tell(event, …), joined() and steps(count).
SPEAKER = """
import json, os, socket, sys, time
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
door = socket.socket(socket.AF_UNIX)
door.connect("\\\\0" + os.environ["RIG_EVENTS"][1:])
def tell(event, **fields):
    door.sendall(json.dumps({"event": event, "rank": RANK, **fields}).encode() + b"\\\\n")
def joined():
    tell("group", size=SIZE, backend="gloo")
def steps(count, first=0):
    for step in range(first, first + count):
        moment = time.monotonic()
        moments = dict.fromkeys(("start", "forward_start", "forward_end", "backward_end", "end"), moment)
        tell("step", step=step, warmup=step < 3, buckets=[], payload=0, wire=0, run_delay=0.0, late=0.0, **moments)
""".replace("\\\\", "\\")


@dataclass
class Stage:
    """A lab of two nodes that see a folder, and one run of a script there after the other."""

    lab: Lab
    order: Order
    folder: Path
    told: list[str] = field(default_factory=list)  # warnings

    def run(self, code: str, *nodes: int, repeat: int = 0, **changes: Any) -> Outcome:
        """Run Python on the two nodes, with so many ranks on each."""
        (self.folder / "train.py").write_text(SPEAKER + dedent(code), encoding="utf-8")
        one = self.scripted(*nodes, **changes)
        outcome = Outcome(repeat, time.monotonic())
        with outputs.collected(self.lab, replace(self.order, case=one), repeat):
            run_ranks(self.lab, one, self.order.run, outcome)
        return outcome

    def scripted(self, *nodes: int, **changes: Any) -> Case:
        own = {name: changes.pop(name) for name in ("repeats", "timeout", "env") if name in changes}
        fields: dict[str, Any] = {
            "steps": 0, "warmup": 3, "command": ("python", "train.py"), "folder": str(self.folder), "files": "mounted",
            "torchrun": False,
        }  # fmt: skip
        two = tuple(
            replace(node, ranks=ranks) for node, ranks in zip(self.order.case.nodes, nodes or (1, 1), strict=True)
        )
        return replace(self.order.case, nodes=two, workload=Script(**(fields | changes)), **own)

    def refused(self, code: str, *nodes: int, **changes: Any) -> str:
        """Why a run was worth nothing; nobody of it is left."""
        with pytest.raises(WorkloadError) as error:
            self.run(code, *nodes, **changes)
        self.assert_gone()
        return str(error.value)

    def assert_gone(self) -> None:
        """No process of any script's is left."""
        until(lambda: not [pid for pid in processes_of(f"RIG_RUN={self.order.run}") if _is_script(pid)], 5)

    @property
    def out(self) -> Path:
        assert self.order.out
        return self.order.out / "outputs" / "test"


def _is_script(pid: int) -> bool:
    try:
        return b"RIG_EVENTS=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Stage]:
    """A stage in a lab of that kind, of two nodes that see the folder."""
    order = Order(new_run(), case(2, timeout=Duration.parse("60s")), lambda _: None, (folder,))
    with open_lab(kind, order) as lab:
        yield Stage(lab, order, folder)


@contextmanager
def cleared(stage: Stage, out: Path) -> Iterator[Stage]:
    """The same for one test: outputs go to a folder of its own, and the nodes' folder is empty again afterwards."""
    told: list[str] = []
    yield Stage(stage.lab, replace(stage.order, out=out, warn=told.append), stage.folder, told)
    for path in stage.folder.iterdir():
        path.unlink()
