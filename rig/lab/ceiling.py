"""What this host can carry in all: measured through the rig's own links, and kept for `dilation: auto`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from rig.errors import LabError
from rig.lab import Order, kept, open_lab
from rig.lab.talk import Talk
from rig.model import Case, Impairment, Link, Node, Tcp
from rig.units import Duration, Rate, Size
from rig.work import Allreduce, Pace, Workload

NAME = "ceiling"  # of its file in the cache folder
RATE = "10gbit"
SECONDS = 2.0  # of sending
MOST_PAIRS = 8  # of nodes, each with a stream of its own; a pair occupies two cores
ANSWER_WITHIN = 20.0
# The plan's rule, so much per core, was found on a host of two cores whose ceiling was 14 to 20 Gb/s (docs/facts.md,
# Timing). A host that reads as low as that one did at worst is as good; one that reads lower counts for less.
PER_CORE = 7e9  # bit/s


@dataclass(frozen=True)
class Ceiling:
    """One measurement: TCP payload of all nodes together, through 10 Gb/s token buckets, and what it costs."""

    bit_s: float
    cpu_s_per_gbit: float  # of all cores, both ends and the kernel's work
    streams: int


def known_ceiling() -> float | None:
    """What was measured on this very machine, in bit/s; None where nothing was."""
    try:
        return float((kept.known(NAME).found or {})["bit_s"])
    except (KeyError, TypeError, ValueError):
        return None


def worth(cores: int) -> float:
    """This host in cores as the plan's rule counts them: all there are, or fewer where the measured ceiling is low."""
    known = known_ceiling()
    return min(float(cores), known / PER_CORE) if known else float(cores)


def here() -> tuple[int, float]:
    """This host for plan.expand: the CPUs this process may use, and how many of them it is worth."""
    cores = len(os.sched_getaffinity(0))
    return cores, worth(cores)


def keep(ceiling: Ceiling) -> Path:
    """Write it where `known_ceiling` looks. Raises OSError."""
    return kept.keep(NAME, asdict(ceiling))


def measure(run: str) -> Ceiling:
    """Open a small lab (netns) and flood it, about four seconds. Raises LabError where there is none to be had."""
    pairs = max(2, min(MOST_PAIRS, len(os.sched_getaffinity(0))))
    case = bare(2 * pairs, Allreduce(steps=1, warmup=1, size=Size(2**20)))  # what it would train does not matter
    with open_lab("netns", Order(run, case, lambda _: None)) as lab, Talk(lab, _modules(case), run) as talk:
        until = time.monotonic() + ANSWER_WITHIN
        senders = [said["place"] for said in _wait(talk, "ready", pairs, until)]
        before = _busy()
        for place in senders:
            talk.say(place, "go")
        took = list(_wait(talk, "took", pairs, until))
        busy = _busy() - before
    gbit = sum(one["bytes"] for one in took) * 8 / 1e9
    rate = sum(one["bytes"] * 8 / one["seconds"] for one in took)
    return Ceiling(rate, busy / gbit, pairs)


def _modules(case: Case) -> dict[str, list[str]]:
    """The first of each pair takes what the second sends."""
    takers, senders = case.nodes[::2], case.nodes[1::2]
    return {node.name: ["rig.node.flood", "take"] for node in takers} | {
        node.name: ["rig.node.flood", "send", taker.address, str(SECONDS)]
        for taker, node in zip(takers, senders, strict=True)
    }


def _wait(talk: Talk, event: str, count: int, until: float) -> Iterator[dict[str, Any]]:
    for place, said in talk.hear(until):
        if said["event"] == "closed" and said["code"] != 0:
            raise LabError(f"node {place}: measure the ceiling: exit status {said['code']}: {said['words']}")
        if said["event"] == event:
            yield {**said, "place": place}
            count -= 1
        if not count:
            return
    raise LabError(f"measure the ceiling: wait for the nodes: no answer within {ANSWER_WITHIN:.0f} s")


def _busy() -> float:
    """CPU-seconds this machine has worked so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def bare(nodes: int, workload: Workload, rate: str = RATE, pace: Pace | None = None) -> Case:
    """A case to measure this host with: nodes on one switch, whose links have a rate and nothing else to them."""
    speed = Rate.parse(rate)
    way = Impairment(speed, Size(max(2**20, speed // 8 // 1000)), Size(max(2**24, speed // 8 // 50)))
    link = Link(way, way)
    return Case(
        id="host", params={"nodes": nodes}, role="case", baseline="host",
        nodes=tuple(Node(f"n{i}", f"198.18.0.{10 + i}", link, 1, 1, pace) for i in range(nodes)),
        workload=workload, tcp=Tcp(), dilation=1, repeats=1, expect={}, gpu="none", env={},
        timeout=Duration.parse("60s"),
    )  # fmt: skip
