"""Links that change while ranks run: each change made at its moment, read back, compared, and noted with its time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rig.fabric import shape
from rig.lab import Lab
from rig.lab.wiring import link_ways
from rig.model import WAYS, Case, Change, Impairment, Link

NEVER = float("inf")


@dataclass
class Schedule:
    """One repeat's changes. Moments count from the end of the warm-up, in emulated time, or in measured steps."""

    lab: Lab
    case: Case
    notes: list[dict[str, Any]]  # one is added for each change
    began: float | None = None  # on time.monotonic(), when the first rank's warm-up ended
    changed: set[str] = field(default_factory=set)  # cables that are not what they were
    _left: dict[str, list[Change]] = field(default_factory=dict)  # by cable, the next one last
    _reached: dict[int, float] = field(default_factory=dict)  # measured steps done → when
    _kinds: dict[str, str] = field(default_factory=dict)  # cable → its shaper

    def __post_init__(self) -> None:
        for change in reversed(self.case.changes):
            self._left.setdefault(change.cable, []).append(change)

    def heard(self, step: Mapping[str, Any]) -> bool:
        """Take note of a step that is done, and say whether a change is due; rank 0's count."""
        done = step["step"] + 1 - self.case.workload.warmup
        if step["rank"] != 0 or done < 0:
            return False
        now = time.monotonic()
        self.began = self.began or now
        self._reached[done] = now
        return self.wake() <= now

    def wake(self) -> float:
        """When the next change is due, on time.monotonic(); infinity where none is known to be."""
        return min((self._due(changes[-1]) for changes in self._left.values() if changes), default=NEVER)

    def apply(self) -> None:
        """Make every change that is due, in order. Raises FabricError when the kernel holds something else."""
        for changes in self._left.values():
            while changes and self._due(changes[-1]) <= time.monotonic():
                self._make(changes.pop())

    def restore(self) -> None:
        """Make every changed link again what it was, for the next repeat."""
        for name in sorted(self.changed):
            self._set(name, self.case.cable(name).link, plugged=True)
        self.changed.clear()

    def _due(self, change: Change) -> float:
        start = self.began if change.step is None else self._reached.get(change.step)
        after = change.at.seconds * self.case.dilation if change.at else 0.0
        return NEVER if start is None else start + after

    def _make(self, change: Change) -> None:
        begin = time.monotonic()
        self.changed.add(change.cable)
        held = self._set(change.cable, change.link, change.plugged)
        end = time.monotonic()
        self.notes.append(
            {
                "event": "change", "cable": change.cable, "plugged": change.plugged,
                "asked": {way: _figures(change.link.way(way)) for way in WAYS}, "applied": held,
                "asked_at": change.at.seconds if change.at is not None else None, "asked_step": change.step,
                "at": (end - (self.began or end)) / self.case.dilation, "took": end - begin,
            }
        )  # fmt: skip

    def _set(self, name: str, link: Link, plugged: bool) -> dict[str, dict[str, Any]]:
        if not self._kinds:
            self._kinds = {cable: both["up"]["kind"] for cable, both in self.lab.fabric.read_back().items()}
        asked = link_ways(self.case, name, link, self._kinds[name])
        held = self.lab.fabric.change(name, plugged, {way: asked[way].document() for way in WAYS})
        for way in WAYS:
            shape.compare(f"link {name} {way}", asked[way], held[way])
        return held


def _figures(does: Impairment) -> dict[str, float]:
    """Emulated: bit/s, seconds, and the share of packets lost in the long run."""
    return {"rate": int(does.rate), "delay": does.delay.seconds, "jitter": does.jitter.seconds, "loss": does.loss.mean}
