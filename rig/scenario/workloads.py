"""What all kinds of workload have in common as written: who computes what, what is wrong, what it resolves to.

A new workload is one file here with a class like this one, one member of `kinds.AnyWorkload`, and its module in
`workloads/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rig.scenario.fields import Keys
from rig.work import Pace, Workload

if TYPE_CHECKING:
    from rig.scenario.written import Written

Loc = tuple[str, ...]
Complaint = tuple[Loc, str]  # where, and what is wrong there
KEY = "[key]"  # last word of a Loc that means the key itself, not its value; pydantic's own notation


@dataclass(frozen=True)
class Surroundings:
    """What a check may look at besides the case itself."""

    folder: Path  # of the scenario file
    most_nodes: int  # the largest node count of the sweep
    swept: tuple[str, ...] = ()  # dotted paths


class WorkloadKeys(Keys):
    """What every workload has; a kind that computes nothing is complete with these two answers."""

    speeds_up: ClassVar[bool] = True  # whether more nodes do more work, so that a one-node case is its baseline

    def batch_on(self, written: Written, node: str) -> int:
        """Samples per step on that node; 0 where the workload has none."""
        return 0

    def ranks_on(self, written: Written, node: str) -> int:
        """Training processes on that node."""
        return 1

    def pace_on(self, written: Written, node: str, folder: Path) -> Pace | None:
        """How long that node computes on a micro-batch; None where nothing is paced. `folder`: the scenario file's."""
        return None

    @property
    def computes_real(self) -> bool:
        return False

    def complaints(self, written: Written, around: Surroundings) -> Iterator[Complaint]:
        """What the keys' types cannot say is wrong."""
        raise NotImplementedError

    def resolve(self, folder: Path) -> Workload:
        """The workload with nothing left to guess; relative paths are the scenario file's."""
        raise NotImplementedError
