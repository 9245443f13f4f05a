"""Links as a record tells of them: asked, applied and measured, the ways from node to node, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from rig import topology
from rig.errors import LabError
from rig.fabric import shape
from rig.lab import Lab
from rig.lab.due import SHARES, misses
from rig.lab.probing import Probed
from rig.model import WAYS, Cable, Case, Direction
from rig.results import LinkReport

BUSY = "; if other programs kept this host busy, close them, or use a larger dilation (--set dilation=…)"


def link_reports(case: Case, lab: Lab, probed: Mapping[str, Probed]) -> tuple[LinkReport, ...]:
    """Asked, applied and measured of every direction of every cable; times and rates emulated, `applied` as held.

    Raises LabError where a link is no longer shaped.
    """
    held = lab.fabric.read_back()
    return tuple(
        _report(cable, way, held[cable.name][way], probed[cable.name]) for cable in case.cables for way in WAYS
    )


def _report(cable: Cable, way: Direction, held: Mapping[str, Any], probed: Probed) -> LinkReport:
    bucket = held["tbf"]
    if bucket["kind"] != "tbf":
        raise LabError(f"link {cable.name} {way}: probe: the kernel holds {bucket['kind']} by now, not tbf; "
                       "see what else changes this machine's links")  # fmt: skip
    emulates = shape.emulated(shape.Tbf.of(bucket), cable.link, probed.dilation)
    rest = {name: value for name, value in held.items() if name not in ("tbf", "kind")}
    applied = {**bucket, "rate": bucket["rate"] * 8, "emulates": emulates, **rest}
    return LinkReport(cable.name, way, probed.asked[way], applied, probed.emulated(way), held["kind"])


def paths(case: Case) -> tuple[dict[str, Any], ...]:
    """Node to node, what was asked: the slowest hop's rate (bit/s), and the round trip's time on the way (s)."""
    names, ways = [node.name for node in case.nodes], topology.Ways(case)
    return tuple(
        {
            "from": one, "to": other,
            "rate": min(int(hop.rate) for hop in topology.way(ways.route(one, other))),
            "rtt": ways.rtt(one, other),
        }
        for one, other in permutations(names, 2)
    )  # fmt: skip


def bad_links(case: Case, links: Sequence[LinkReport]) -> str:
    """Why the links are not what was asked, or nothing: each figure with asked, applied and measured."""
    wrong = [
        f"link {link.name} {link.direction}: {_told(name, link, case.dilation)}"
        for link in links
        for name in misses(link.asked, link.measured, case.limits, case.dilation)
        if not (name == "rtt" and link.direction == "down")  # one figure of both ways
    ]
    return "; ".join(wrong) + (BUSY if wrong else "")


def _told(name: str, link: LinkReport, dilation: int) -> str:
    how = _share if name in SHARES else _span if name in SPANS else _rate
    return how(name, link, dilation)


def _rate(name: str, link: LinkReport, _: int) -> str:
    asked, measured = link.asked[name.removesuffix("_all")], link.measured[name]
    when = "with all links busy" if name == "goodput_all" else "alone"
    cable = link.applied.get("emulates", link.asked["rate"])
    return (
        f"{when}: asked {asked / 1e6:.1f} Mb/s of {'UDP payload' if name == 'udp' else 'goodput'}, applied a cable of "
        f"{cable / 1e6:.1f} Mb/s, measured {measured / 1e6:.1f} ({measured / asked - 1:+.1%})"
    )


SPANS = {"rtt": ("RTT", "delay"), "jitter": ("jitter", "jitter")}  # what it is called, and what makes it


def _span(name: str, link: LinkReport, dilation: int) -> str:
    called, part = SPANS[name]
    held = _in_force(link).get(part, 0) / 1e9 / dilation
    return (
        f"{called}: asked {link.asked[name] * 1e3:.3f} ms, applied a {part} of {held * 1e3:.3f} ms {link.direction}, "
        f"measured {link.measured[name] * 1e3:.3f} ms"
    )


def _share(name: str, link: LinkReport, _: int) -> str:
    held = _in_force(link)
    chain = ("bad", "enter", "leave") if held.get("enter") else ()
    parts = ("good", *chain, "corrupt") if name == "loss" else (name,)
    applied = ", ".join(f"{part} {held[part] / 1e9:.4%}" for part in parts if held.get(part)) or "none"
    return (
        f"{name}: asked {link.asked[name]:.4%}, applied {applied}, measured {link.measured[name]:.4%} of "
        f"{link.measured['packets']:.0f} packets"
    )


Counters = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by cable and direction: wiring.Fabric.counters


def held_back(before: Counters, after: Counters) -> dict[str, dict[str, float]]:
    """What the delay line made of packets between two looks at its counters, by "cable way": their mean lateness
    (real seconds) and how many it had no room for. Empty where there is none.
    """
    found = {}
    for name, ways in after.items():
        for way, now in ways.items():
            if "late_mean" in now:
                then = before[name][way]
                given = max(1, now["given"] - then["given"])
                late = (now["late_mean"] * now["given"] - then["late_mean"] * then["given"]) / given
                found[f"{name} {way}"] = {"late": late, "overflowed": now["overflowed"] - then["overflowed"]}
    return found


def bad_lines(case: Case, held: Mapping[str, Mapping[str, float]]) -> str:
    """Why the delay line was not what the links should be while ranks ran, or nothing. `held`: see held_back.

    Its lateness may be what an RTT may be off, by half for each way.
    """
    for cable in case.cables:
        for way in WAYS:
            seen = held.get(f"{cable.name} {way}", {"late": 0.0, "overflowed": 0})
            delay = cable.link.way(way).delay.seconds * case.dilation
            most = max(case.limits.rtt.ratio * delay, case.limits.slack.seconds / 2)
            if seen["overflowed"] or seen["late"] > most:
                return (
                    f"link {cable.name} {way}: while ranks ran, the delay line gave packets {seen['late'] * 1e3:.2f} "
                    f"ms late on average ({most * 1e3:.2f} ms allowed) and dropped {seen['overflowed']:.0f}: the host "
                    f"could not keep up; use a larger dilation (--set dilation={2 * case.dilation}), or close other "
                    "programs"
                )
    return ""


def _in_force(link: LinkReport) -> Mapping[str, Any]:
    """What the shaper was told of delay and loss, real; nothing where there is but a token bucket."""
    return link.applied.get("transit") or {}
