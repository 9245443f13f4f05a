"""What one repeat gave, as it is filed while ranks run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rig.lab import nccl_log

LOG_KEPT = 400  # lines of log per repeat in the record


@dataclass
class Clock:
    """A node's CLOCK_MONOTONIC less the orchestrator's, and half the round trip it was read in (s)."""

    offset: float = 0.0
    uncertainty: float = float("inf")
    rounds: int = 0


@dataclass
class Outcome:
    """What one repeat gave: every event of every rank, times on the orchestrator's clock since the launch."""

    repeat: int
    began: float
    steps: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)  # hello, layout, done
    log: list[str] = field(default_factory=list)
    nccl: dict[str, list[str]] = field(default_factory=dict)  # node → what NCCL said of its doings; not in the log
    clocks: dict[str, Clock] = field(default_factory=dict)
    exits: list[dict[str, Any]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)  # ranks that have said they are done, or ended well, in that order
    stalled: bool = False  # whether those that were left only waited

    def take(self, place: str, said: Mapping[str, Any]) -> bool:
        """File an event; True when it means that the repeat has failed."""
        event = {**said, "node": place}
        match said["event"]:
            case "step":
                self.steps.append(event)
            case "exit":
                self.exits.append(event)
                return not self._leaves(event)
            case "closed":
                if said["code"] != 0:
                    self.exits.append({**event, "rank": None, "at": time.monotonic(), "tail": [said["words"]]})
                    return True
            case "log" | "text":
                self._keep(place, said)
            case _:
                self.notes.append(event)
                if said["event"] == "done":
                    self._leaves({**event, "code": 0})
        return False

    def _keep(self, place: str, said: Mapping[str, Any]) -> None:
        if said["event"] == "log" and nccl_log.is_told(said["text"]):
            self.nccl.setdefault(place, []).append(said["text"])
        elif len(self.log) < LOG_KEPT:
            self.log.append(f"{place}: {said['text']}")

    def _leaves(self, event: Mapping[str, Any]) -> bool:
        """Whether a rank that ends does so well."""
        if event["code"] == 0 and event["rank"] not in self.gone:
            self.gone.append(event["rank"])
        return bool(event["code"] == 0)

    def offset(self, node: str) -> float:
        """What a node's clock is ahead of the orchestrator's by (s)."""
        return self.clocks[node].offset if node in self.clocks else 0.0

    def align(self) -> None:
        """Put every time on the orchestrator's clock, counted from the launch."""
        for step in self.steps:
            del step["event"]
            step["repeat"] = self.repeat
            shift = self.offset(step["node"]) + self.began
            for name in ("start", "forward_start", "forward_end", "backward_end", "end"):
                step[name] -= shift
            step["buckets"] = [
                {"start": begin - shift, "end": end - shift, "bytes": count} for begin, end, count in step["buckets"]
            ]
