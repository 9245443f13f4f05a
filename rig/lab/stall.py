"""Ranks that only wait, for one that has ended or for one another: noticed long before a time-out, as nothing moves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUIET = 1.0  # seconds without a word after which it is worth asking what else moves
GRACE = 10.0  # seconds in which nothing moves after which one that has ended is believed to be waited for in vain
LOCKED = 30.0  # the same where none has ended
IDLE = 0.05  # CPUs that a waiting process may use
TRICKLE = 1000.0  # bytes/s on all cables that may be no more than signs of life


@dataclass
class Signs:
    """When a sign of life was last seen: a word, a CPU at work, bytes on a cable."""

    _last: float = field(default_factory=time.monotonic)
    _counted: dict[str, tuple[float, float]] = field(default_factory=dict)  # what → how much of it there was, and when

    def seen(self) -> None:
        """A rank has said something, or one has ended."""
        self._last = time.monotonic()

    def used(self, rank: int, cpu: float) -> None:
        """A rank has used so much CPU time by now (s): one that computes, evaluates or saves uses some."""
        self._grown(f"rank {rank}", cpu, IDLE)

    def carried(self, counters: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """What cables have carried by now, as the fabric counts: a long exchange on a slow one takes no CPU."""
        self._grown("cables", sum(way["bytes"] for ways in counters.values() for way in ways.values()), TRICKLE)

    def _grown(self, what: str, much: float, rate: float) -> None:
        now = time.monotonic()
        before, then = self._counted.get(what, (float("-inf"), now))
        if much - before > rate * (now - then):
            self._last = now
        self._counted[what] = much, now

    @property
    def quiet(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._last
