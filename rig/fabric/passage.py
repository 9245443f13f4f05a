"""One direction of a link in the delay line: takes frames from one TAP, holds them, gives them to the other."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from random import Random
from time import monotonic_ns
from typing import Any

from rig.fabric.alarm import Alarm
from rig.fabric.fates import Fate, Fates
from rig.fabric.frames import HEADER, corrupted
from rig.fabric.shape import Transit

LARGEST = 2**16 + 64  # bytes of one read: the largest super-packet, its Ethernet header, and the header before that
BATCH = 16  # frames read from one line before what is due elsewhere has its turn
NEVER = 2**63 - 1
Waiting = tuple[int, bytes]  # when it may go (CLOCK_MONOTONIC, ns), and the packet


class Passage:
    """Packets on their way, in the order in which they may go.

    Kept as netem keeps them: those that go after all before them in a queue, which is every one as long as the delay
    is constant; the others in a heap. A packet has its HEADER in front; sizes and limits are those of its frame.
    """

    def __init__(self, document: Mapping[str, Any], seed: int, alarm: Alarm) -> None:
        self.name, self.way = str(document["name"]), str(document["way"])
        self.source, self._target = int(document["from"]), int(document["to"])
        self._random = Random(f"{seed} {self.name} {self.way}")
        self._alarm = alarm
        self._queue: deque[Waiting] = deque()
        self._heap: list[tuple[int, int, bytes]] = []  # the number keeps equals in order
        self._octets = 0  # held
        self._taken = self._taken_bytes = self._given = self._given_bytes = 0
        self._lost = self._duplicated = self._corrupted = self._reordered = self._overflowed = 0
        self._delayed = self._late = self._late_worst = 0
        self.become(document["transit"])

    def become(self, transit: Mapping[str, Any]) -> None:
        """Do this to packets taken from now on. Raises TypeError, ValueError or KeyError where it is no Transit."""
        wrong = [name for name, value in transit.items() if name != "distribution" and type(value) is not int]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: not an integer")
        self._fates = Fates(Transit.of(transit), self._random)
        self._transit = Transit.of(transit)
        self._steady = self._fates.steady

    @property
    def held(self) -> int:
        """Packets on their way."""
        return len(self._queue) + len(self._heap)

    def take(self) -> bool:
        """Take what the source has sent, up to BATCH packets; False when the source is gone for good."""
        taken, there = _read(self.source)
        self._taken += len(taken)
        self._taken_bytes += sum([len(packet) for _, packet in taken]) - HEADER * len(taken)
        if self._steady is None:
            for moment, packet in taken:
                self._meet(moment, packet)
        elif self._steady:
            for moment, packet in taken:
                self._keep(moment + self._steady, packet)
        else:
            self._send([packet for _, packet in taken])
        return there

    def _meet(self, moment: int, packet: bytes) -> None:
        """Let chance decide."""
        fates = self._fates.draw()
        self._duplicated += len(fates) - 1
        for fate in fates:
            self._follow(fate, moment, packet)

    def _follow(self, fate: Fate, moment: int, packet: bytes) -> None:
        if fate.lost:
            self._lost += 1
            return
        if fate.corrupt:
            self._corrupted += 1
            packet = corrupted(packet, self._random)
        self._reordered += fate.reorder
        if fate.hold:
            self._keep(moment + fate.hold, packet)
        else:
            self._send([packet])

    def _keep(self, moment: int, packet: bytes) -> None:
        """Hold a packet until this moment, or drop it where there is no room.

        It was seen a little after it had arrived, and will go a little after it is due, for the same reason: this
        process must first be woken. Both times are foreseen here.
        """
        octets = self._octets + len(packet) - HEADER
        if octets > self._transit.octets:
            self._overflowed += 1
            return
        self._octets = octets
        due = moment - 2 * self._alarm.lateness
        if not self._queue or due >= self._queue[-1][0]:
            self._queue.append((due, packet))
        else:
            heappush(self._heap, (due, self._taken, packet))

    def give(self) -> int:
        """Write every packet that is due; returns when the next one is (CLOCK_MONOTONIC, ns), or NEVER."""
        now = monotonic_ns()
        if going := self._due(now):
            late = [now - due - self._alarm.lateness for due, _ in going]
            self._delayed += len(late)
            self._late += sum(late)
            self._late_worst = max(self._late_worst, late[0])
            if len(going) == 1:  # of many, most had to wait for this process to have time, not to be woken
                self._alarm.note(now - going[0][0])
            packets = [packet for _, packet in going]
            self._octets -= sum(map(len, packets)) - HEADER * len(packets)
            self._send(packets)
        queued = self._queue[0][0] if self._queue else NEVER
        return min(queued, self._heap[0][0]) if self._heap else queued

    def _due(self, now: int) -> list[Waiting]:
        queue, heap = self._queue, self._heap
        going = []
        while queue and queue[0][0] <= now:
            going.append(queue.popleft())
        if heap and heap[0][0] <= now:
            while heap and heap[0][0] <= now:
                due, _, packet = heappop(heap)
                going.append((due, packet))
            going.sort(key=_moment)
        return going

    def _send(self, packets: list[bytes]) -> None:
        write, target, size = os.write, self._target, 0
        lost = 0
        for packet in packets:
            try:
                size += write(target, packet)
            except OSError:  # the interface is down (EIO) or gone (EBADFD), or has no memory left: so is the packet
                lost += 1
        given = len(packets) - lost
        self._lost += lost
        self._given += given
        self._given_bytes += size - HEADER * given

    def in_force(self) -> dict[str, Any]:
        """What it does to packets now."""
        return {"name": self.name, "way": self.way, "transit": self._transit.document()}

    def counters(self) -> dict[str, Any]:
        """Since the start, in packets, bytes of their frames, and seconds beside the delay that was asked for."""
        return {
            "name": self.name,
            "way": self.way,
            "taken": self._taken,
            "taken_bytes": self._taken_bytes,
            "given": self._given,
            "given_bytes": self._given_bytes,
            "lost": self._lost,
            "duplicated": self._duplicated,
            "corrupted": self._corrupted,
            "reordered": self._reordered,
            "overflowed": self._overflowed,
            "held": self.held,
            "late_mean": self._late / max(1, self._delayed) / 1e9,
            "late_worst": self._late_worst / 1e9,
        }


def _read(source: int) -> tuple[list[Waiting], bool]:
    """Up to BATCH packets, each with the moment it was taken; False when there will be no more, ever."""
    read, clock = os.read, monotonic_ns
    taken: list[Waiting] = []
    try:
        for _ in range(BATCH):
            taken.append((clock(), read(source, LARGEST)))
    except BlockingIOError:
        pass
    except OSError:
        return taken, False
    return taken, True


def _moment(waiting: Waiting) -> int:
    return waiting[0]
