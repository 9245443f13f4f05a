"""Are the nodes fit to run on? Asked of each before anything is launched, and refused in one sentence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rig.errors import LabError, LackError
from rig.lab import Lab
from rig.lab.talk import Talk
from rig.model import Case

ANSWER_WITHIN = 30.0


def preflight(lab: Lab, case: Case, run: str) -> dict[str, dict[str, Any]]:
    """Each node's facts, by name. Raises LackError (no torch), LabError (a name resolves wrongly, versions differ)."""
    names = [node.name for node in case.nodes]
    found: dict[str, dict[str, Any]] = {}
    with Talk(lab, {name: ["rig.node.facts", *names] for name in names}, run) as talk:
        for place, said in talk.hear(time.monotonic() + ANSWER_WITHIN):
            if said["event"] == "facts":
                found[place] = said
            elif said["event"] == "closed" and place not in found:
                raise LabError(
                    f"node {place}: ask for its facts: exit status {said['code']}: {said['words'] or 'silence'}"
                )
    if missing := [name for name in names if name not in found]:
        raise LabError(f"node {missing[0]}: ask for its facts: no answer within {ANSWER_WITHIN:.0f} s")
    found = {name: found[name] for name in names}  # they answered in any order
    check(found, {node.name: node.address for node in case.nodes})
    return found


def check(found: Mapping[str, Mapping[str, Any]], addresses: Mapping[str, str]) -> None:
    """Refuse nodes without torch, with differing versions, or that cannot find one another. Pure."""
    for name, facts in found.items():
        if facts["torch"] is None:
            raise LackError(
                f"node {name}: look for PyTorch: there is none; install torch where the node's Python finds it"
            )
        if facts["loopback_line"]:
            raise LabError(
                f"node {name}: {facts['loopback_line']}: its own name has a loopback address there, so gloo would wait "
                "for peers where none can come; remove the name from that line"
            )
        for peer, address in addresses.items():
            if facts["resolved"].get(peer) != address:
                got = facts["resolved"].get(peer) or "nothing"
                raise LabError(f"node {name}: resolve {peer}: got {got} instead of {address}; mend its /etc/hosts")
    for what in ("python", "torch"):
        if len({_minor(facts[what]) for facts in found.values()}) > 1:
            table = "\n".join(f"  {name:<6} {facts[what]}" for name, facts in found.items())
            raise LabError(
                f"nodes: compare {what} versions: they differ, and mixed versions hang; install one:\n{table}"
            )


def _minor(version: str) -> str:
    """Patch releases speak the same protocol; minor ones need not."""
    return ".".join(version.split("+")[0].split(".")[:2])
