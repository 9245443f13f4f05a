"""Silent siblings: further nodes that compute what a one-node case computes, each by itself, and report nothing.

A baseline of real compute that had the machine to itself would be faster than any node of the cases it is compared
with, whose nodes share caches, memory and cores. So that many are there from before its first step until its end.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

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
