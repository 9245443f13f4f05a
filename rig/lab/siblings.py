"""Silent siblings: further nodes that compute what a one-node case computes, each by itself, and report nothing.

A baseline of real compute that had the machine to itself would be faster than any node of the cases it is compared
with, whose nodes share caches, memory and cores. So that many are there from before its first step until its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

from rig.errors import WorkloadError
from rig.lab.talk import Talk, quoted
from rig.model import Case, Node

ENDLESS = 10**9  # steps; they are ended with the one that is measured


def siblings(case: Case) -> tuple[Node, ...]:
    """The case's silent siblings: like its last node, on the names and addresses that follow."""
    last, size = case.nodes[-1], case.size
    return tuple(
        replace(last, name=f"n{size + number}", address=str(IPv4Address(last.address) + number + 1))
        for number in range(case.siblings)
    )


def crowded(case: Case) -> Case:
    """The case as a lab is to be built for it: with its siblings among the nodes."""
    return replace(case, nodes=(*case.nodes, *siblings(case))) if case.siblings else case


def start(talk: Talk, case: Case, orders: Mapping[str, Mapping[str, Any]], until: float) -> None:
    """Start them, and wait until each has done a step. Raises WorkloadError where one does not."""
    for name, order in orders.items():
        talk.say(name, order)
    waiting = set(orders)
    for place, said in talk.hear(until) if waiting else ():
        if said["event"] in ("exit", "closed"):
            last = said.get("tail") or [said.get("words", "")]
            raise WorkloadError(f"{_where(case, place)}: exit code {said['code']}; its last lines:\n{quoted(last)}")
        if said["event"] == "step":
            waiting.discard(place)
        if not waiting:
            return
    if waiting:
        where = _where(case, ", ".join(sorted(waiting)))
        raise WorkloadError(f"{where}: not one step within {case.timeout}; give a longer timeout")


def _where(case: Case, place: str) -> str:
    return f"node {place}: run {case.workload.kind} beside the one-node case {case.id}"
