"""Cases for tests, built without the scenario loader: `case(nodes=2, rate="1gbit")`."""

from __future__ import annotations

from typing import Any

from rig.model import Case, Impairment, Link, Node, Tcp
from rig.units import Duration, Rate, Size
from rig.work import Allreduce


def impairment(rate: str = "1gbit") -> Impairment:
    """One direction of a link: a bucket above the largest super-packet, and a queue of 20 ms."""
    speed = Rate.parse(rate)
    return Impairment(speed, Size(256 * 1024), Size(max(256 * 1024, int(speed) // 8 // 50)))


def node(number: int, rate: str = "1gbit") -> Node:
    """Node n<number> with one thread, no batch and real compute."""
    link = Link(up=impairment(rate), down=impairment(rate))
    return Node(name=f"n{number}", address=f"198.18.0.{number + 1}", link=link, threads=1, batch=0, pace=None)


def case(nodes: int = 2, rate: str = "1gbit", **changes: Any) -> Case:
    """A case that all-reduces 1 MiB over equal links; `changes` replace any of its other fields."""
    fields: dict[str, Any] = {
        "id": "test",
        "params": {"nodes": nodes},
        "role": "case",
        "baseline": "test-baseline",
        "nodes": tuple(node(number, rate) for number in range(nodes)),
        "workload": Allreduce(steps=2, warmup=1, size=Size(2**20)),
        "tcp": Tcp(),
        "dilation": 1,
        "repeats": 1,
        "expect": {},
        "gpu": "none",
        "env": {},
        "timeout": Duration(60 * 10**9),
    }
    return Case(**(fields | changes))
