"""A case's network as the fabric is told it: which shaper, which document, and whether the kernel agrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from rig import topology
from rig.errors import LackError
from rig.fabric import NODE_END, shape
from rig.fabric.shape import Way
from rig.lab import SUBNET, Lab
from rig.model import WAYS, Cable, Case, Direction, Link

PREFIX = SUBNET.partition("/")[2]

Ways = Mapping[Direction, Way]


def wire(lab: Lab, case: Case) -> None:
    """Build the case's network in a lab, read it back, compare, and open it. Raises FabricError, LackError."""
    asked = build(lab, case)
    held = lab.fabric.read_back()
    for name, both in asked.items():
        for way, wanted in both.items():
            shape.compare(f"link {name} {way}", wanted, held[name][way])
    lab.fabric.open()


def build(lab: Lab, case: Case) -> dict[str, Ways]:
    """Have the fabric make everything, shaped and closed; returns what it should hold by now."""
    asked = ways(case, _shaper(lab, case))
    lab.fabric.build(_document(lab, case, asked))
    return asked


def _shaper(lab: Lab, case: Case) -> str:
    """netem or delayline, for the links that a token bucket is not enough for."""
    if case.shaper == "delayline" or not any(_kind(case, cable, "netem") == "netem" for cable in case.cables):
        return "delayline"
    has_netem = lab.fabric.offers()["netem"]
    if case.shaper == "netem" and not has_netem:
        raise LackError(
            "shaper: netem: look for it in this kernel: there is none; load it (modprobe sch_netem; on some systems it "
            "is in kernel-modules-extra), or write shaper: auto, which uses the rig's own delay line where it must"
        )
    return "netem" if has_netem else "delayline"


def needs_shaper(case: Case, cable: Cable) -> bool:
    """Whether a token bucket cannot do all that the cable does, from the start or later."""
    links = [cable.link, *(change.link for change in case.changes if change.cable == cable.name)]
    return any(link.way(way).in_transit for link in links for way in WAYS)


def ways(case: Case, shaper: str) -> dict[str, Ways]:
    """What each direction of each cable is asked to be, before any change."""
    return {cable.name: link_ways(case, cable.name, cable.link, _kind(case, cable, shaper)) for cable in case.cables}


def _kind(case: Case, cable: Cable, shaper: str) -> str:
    """A scenario that names a shaper has it on every link; `auto` only where it is needed."""
    return shaper if case.shaper != "auto" or needs_shaper(case, cable) else "tbf"


def link_ways(case: Case, name: str, link: Link, kind: str) -> Ways:
    """Both directions of a link, for a shaper of that kind."""
    return {
        way: Way(
            kind, link.mtu, shape.tbf(link.way(way), link, case.dilation),
            None if kind == "tbf" else shape.transit(link.way(way), case.dilation),
        )
        for way in WAYS
    }  # fmt: skip


def _document(lab: Lab, case: Case, asked: Mapping[str, Ways]) -> dict[str, Any]:
    return {
        "switches": [
            {
                "name": switch.name, "pid": lab.pids.get(switch.name), "address": f"{switch.address}/{PREFIX}",
                "neighbours": _beyond(case, switch.name),
                "reach": {
                    case.address(place): cable.name
                    for place, cable in topology.next_hops(case, switch.name).items() if cable in case.wans
                },
            }
            for switch in case.switches
        ],
        "nodes": [
            {"name": node.name, "pid": lab.pids[node.name], "address": f"{node.address}/{PREFIX}",
             "neighbours": _beyond(case, node.switch)}
            for node in case.nodes
        ],
        "cables": [_cable(case, cable, asked[cable.name]) for cable in case.cables],
        "tcp": {
            "subnet": SUBNET,
            "congestion": case.tcp.congestion,
            "rto_min": int(case.tcp.rto_min) * case.dilation // 10**6,
        },
        "whole": not any(link.way(way).acts_on_packets for link in case.links for way in WAYS),
        "seed": case.seed,
    }  # fmt: skip


def _cable(case: Case, cable: Cable, both: Ways) -> dict[str, Any]:
    start, end = interfaces(case, cable)
    document: dict[str, Any] = {
        "name": cable.name,
        "shaper": both["up"].shaper,
        "mtu": cable.link.mtu,
        "start": [cable.start, start],
        "end": [cable.end, end],
    }
    for way in WAYS:
        seed = crc32(f"{case.seed} {cable.name} {way}".encode())
        document[way] = both[way].document() | {"seed": seed}
    return document


def interfaces(case: Case, cable: Cable) -> tuple[str, str]:
    """What a cable's two ends are called: eth0 and the node's name, or w0, w1, … at both between switches."""
    return (f"w{case.wans.index(cable)}",) * 2 if cable in case.wans else (NODE_END, cable.name)


def _beyond(case: Case, switch: str) -> list[str]:
    """Addresses of all that is on other switches: nobody there would be asked, as switches do not flood one another."""
    nodes = [node.address for node in case.nodes if node.switch != switch]
    return nodes + [one.address for one in case.switches if one.name != switch]
