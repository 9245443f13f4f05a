"""What becomes of each packet of one direction: drawn at random, as netem draws it. No I/O, no clock.

The order of the draws and what they mean are those of the kernel's net/sched/sch_netem.c (netem_enqueue,
loss_gilb_ell, tabledist), so that both shapers mean the same by the same figures.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from rig.fabric.quantiles import SCALE, table
from rig.fabric.shape import Transit

BILLION = 10**9  # probabilities are parts per billion


class Fate(NamedTuple):
    """What becomes of one copy of a packet."""

    hold: int = 0  # ns until it may go
    lost: bool = False
    corrupt: bool = False
    reorder: bool = False  # goes at once, past those that wait


LOST = Fate(lost=True)


class Fates:
    """The fates of one direction's packets, one after another."""

    def __init__(self, transit: Transit, random: Random) -> None:
        self._transit = transit
        self._random = random
        self._bad = False  # the state of the Gilbert–Elliott chain
        self._table = table(transit.distribution) if transit.jitter and transit.distribution != "uniform" else None

    @property
    def steady(self) -> int | None:
        """How long every packet is held (ns), if all have the same fate; else None."""
        asked = self._transit
        chancy = asked.jitter or asked.duplicate or asked.corrupt or asked.reorder or asked.good or asked.enter
        return None if chancy else asked.delay

    def draw(self) -> tuple[Fate, ...]:
        """One fate for each copy that there is of the next packet: one, or two of a duplicated packet.

        The copy is drawn for as if it were a packet of its own, except that it is not duplicated again. Where a
        packet is duplicated and lost, one of the two goes on, without a second draw.
        """
        duplicated = self._happens(self._transit.duplicate)
        lost = self._loss()
        first = LOST if lost else self._journey()
        if not duplicated:
            return (first,)
        copy_lost = not lost and self._loss()
        return first, LOST if copy_lost else self._journey()

    def _journey(self) -> Fate:
        """What becomes of a copy that is not lost."""
        corrupt = self._happens(self._transit.corrupt)
        if self._happens(self._transit.reorder):
            return Fate(corrupt=corrupt, reorder=True)
        return Fate(self._hold(), corrupt=corrupt)

    def _loss(self) -> bool:
        """One step of the Gilbert–Elliott chain, and then whether its state loses the packet."""
        asked = self._transit
        if self._happens(asked.leave if self._bad else asked.enter):
            self._bad = not self._bad
        return self._happens(asked.bad if self._bad else asked.good)

    def _hold(self) -> int:
        asked = self._transit
        if not asked.jitter:
            return asked.delay
        if self._table is None:
            return max(0, asked.delay + int((2 * self._random.random() - 1) * asked.jitter))
        drawn = self._table[int(self._random.random() * len(self._table))]
        return max(0, asked.delay + asked.jitter * drawn // SCALE)

    def _happens(self, probability: int) -> bool:
        return probability > 0 and self._random.random() * BILLION < probability
