"""How long gloo's ring all-reduces take over an edge: at once without delay, segment by segment where there is some.

A rank gives its neighbour its word that it is ready for a segment (at most 1 MiB); only then the segment is sent. Two
of an all-reduce are under way at a time: the word for one follows the arrival of the one two before it, in each half
(reduce-scatter, all-gather) by itself (gloo/allreduce.cc). A process group has two threads, so two all-reduces at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from statistics import fmean

from rig.formulas.traffic import gloo_allreduce_payload, segments_per_chunk

WORKERS = 2  # threads of a gloo process group, so collectives under way at once (torch, ProcessGroupGloo)
MOST_SEGMENTS = 20_000  # of one step that are followed one by one, in a tenth of a second or so
PERIODIC = 32  # segments of one half after which a ring by itself only repeats
_WORD, _SEGMENT, _READY = range(3)  # at one moment, in this order: see ring_ends


@dataclass(frozen=True)
class Edge:
    """What lies between a rank and the one it sends to, as one stream of TCP meets it (emulated units)."""

    goodput: float  # bit/s
    rtt: float = 0.0  # s
    credit: float = 0.0  # s: how long the slowest hop's token bucket takes to fill
    queued: bool = False  # whether what goes the other way has to wait behind other data of the ring


def ring_busy(size: int, nodes: int, edge: Edge) -> float:
    """Seconds in which the edge carries bytes of that all-reduce: what one rank sends ÷ goodput."""
    return gloo_allreduce_payload(size, nodes) * 8 / edge.goodput


def ring_wait(size: int, nodes: int, edge: Edge) -> float:
    """Seconds of that all-reduce in which the edge carries nothing: ring_time − ring_busy."""
    return ring_time(size, nodes, edge) - ring_busy(size, nodes, edge)


@lru_cache(maxsize=4096)
def ring_time(size: int, nodes: int, edge: Edge) -> float:
    """Seconds of one ring all-reduce of `size` bytes over `nodes` ranks whose edges are alike; 0 for one node. Over
    edges that differ the slowest sets the pace: take the largest.

    Without delay every edge is busy in both directions all the time: ring_busy. With a round trip R, n = (N−1)·K
    segments of s seconds in each half come two by two, each pair R + s after the one before: ⌈n/2⌉·(R + s), and one s
    more for an even n, whose last is the second of a pair; R + n·s where R < s. What a token bucket saves up
    meanwhile makes it shorter, words that wait behind data longer: see ring_ends. The hosts' own time is left out.
    """
    busy = ring_busy(size, nodes, edge)
    half = (nodes - 1) * segments_per_chunk(size, nodes)
    return _alone(busy / (2 * half), half, edge) if half and edge.rtt else busy


def _alone(segment: float, half: int, edge: Edge) -> float:
    """An all-reduce of so many segments a half, each of so many seconds; from PERIODIC on the time is linear."""
    if half <= PERIODIC:
        return _Rings((0.0,), (segment,), (half,), edge).run()[0]
    near, far = PERIODIC // 2 - half % 2, PERIODIC - half % 2  # of its own parity
    times = [_Rings((0.0,), (segment,), (count,), edge).run()[0] for count in (near, far)]
    return times[1] + (half - far) * (times[1] - times[0]) / (far - near)


@lru_cache(maxsize=256)
def ring_ends(ready: tuple[float, ...], sizes: tuple[int, ...], nodes: int, edge: Edge) -> tuple[float, ...]:
    """When each of a step's all-reduces is done, from when each is ready (s); sizes in bytes. A discrete-event model of
    what the module's text says, in the order of DDP's buckets, two at once.

    Words wait behind data where both are in one queue (`queued`): on the one connection that two ranks have, on a
    line that two edges cross, one each way. There the thread that reads a socket answers a word before the thread
    that waits for the segment just ahead of it gives the next word, which then stands behind a whole segment. So two
    ranks fall into taking turns, each sending while the other waits (docs/facts.md, Latency). All ranks of a ring
    are alike, so one stands for all; of two that share a queue, the second begins half a round trip after the first.
    """
    halves = tuple((nodes - 1) * segments_per_chunk(size, nodes) for size in sizes)
    segments = tuple(ring_busy(size, nodes, edge) / (2 * half) for size, half in zip(sizes, halves, strict=True))
    return _Rings(ready, segments, halves, edge).run()


def followed(sizes: Sequence[int], nodes: int) -> bool:
    """Whether a step of these all-reduces (bytes) has few enough segments for ring_ends."""
    return sum(2 * (nodes - 1) * segments_per_chunk(size, nodes) for size in sizes) <= MOST_SEGMENTS


class _Rank:
    """One rank: its line out, and of each of `count` all-reduces the words it has, and the segments it may send, has
    sent and has.
    """

    __slots__ = ("ends", "first", "late", "line", "posted", "received", "sent", "under_way", "words")

    def __init__(self, late: float, count: int) -> None:
        self.late = late  # s after the first rank
        self.words, self.posted, self.sent, self.received = ([0] * count for _ in range(4))
        self.ends = [0.0] * count
        self.line = -inf  # moment to which the line's tokens are spent
        self.first = 0  # all-reduce that is next
        self.under_way = 0


class _Rings:
    """All-reduces of so many segments a half (`halves`), each of so many seconds (`segments`)."""

    def __init__(self, ready: Sequence[float], segments: Sequence[float], halves: Sequence[int], edge: Edge) -> None:
        self.ready, self.segments, self.halves = ready, segments, halves
        self.queued, self.credit, self.way = edge.queued, edge.credit, edge.rtt / 2
        lates = (0.0, self.way) if edge.queued else (0.0,)
        self.ranks = [_Rank(late, len(ready)) for late in lates]
        self.events: list[tuple[float, int, int, int]] = []  # moment, what, rank, all-reduce

    def run(self) -> tuple[float, ...]:
        """When each is done, as the mean rank sees it (s)."""
        for number in range(len(self.ranks)):
            self._start(-inf, number)
        while self.events:
            now, what, number, index = heappop(self.events)
            if what == _WORD:
                self.ranks[number].words[index] += 1
                self._send(now, self.ranks[number], number, index)
            elif what == _SEGMENT:
                self._receive(now, number, index)
            else:
                self._start(now, number)
        return tuple(map(fmean, zip(*(rank.ends for rank in self.ranks), strict=True)))

    def _start(self, now: float, number: int) -> None:
        """Begin what is ready, while there is a thread for it."""
        rank = self.ranks[number]
        while rank.first < len(self.ready) and rank.under_way < WORKERS:
            at = self.ready[rank.first] + rank.late
            if at > now:
                heappush(self.events, (at, _READY, number, rank.first))
                return
            rank.first += 1
            rank.under_way += 1
            self._post(now, number, rank.first - 1, 2)

    def _post(self, now: float, number: int, index: int, count: int) -> None:
        """Give the word for so many segments, and be ready to send as many."""
        rank = self.ranks[number]
        rank.posted[index] += count
        leaves = max(now, rank.line) if self.queued else now
        word = leaves + self.way, _WORD, (number + 1) % len(self.ranks), index
        for _ in range(count):
            heappush(self.events, word)
        self._send(now, rank, number, index)

    def _send(self, now: float, rank: _Rank, number: int, index: int) -> None:
        """Send what may be sent: there was word for it, and what is to be sent is there."""
        for _ in range(min(rank.words[index], rank.posted[index]) - rank.sent[index]):
            rank.sent[index] += 1
            rank.line = max(rank.line, now - self.credit) + self.segments[index]
            arrives = max(now, rank.line) + self.way
            heappush(self.events, (arrives, _SEGMENT, (number + 1) % len(self.ranks), index))

    def _receive(self, now: float, number: int, index: int) -> None:
        """Go on with the next but one; with two at once where the second half begins."""
        rank, half = self.ranks[number], self.halves[index]
        rank.received[index] += 1
        got = rank.received[index]
        if got == half:
            self._post(now, number, index, 2)
        elif got == 2 * half:
            rank.ends[index] = now - rank.late
            rank.under_way -= 1
            self._start(now, number)
        elif (got + 1) % half:
            self._post(now, number, index, 1)
