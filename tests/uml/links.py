"""What a guest runs for test_links.py: the same links by both shapers, read with the same ruler, a JSON line for each.

By hand, on any kernel with netem: python -m tests.uml.links
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import hypot
from pathlib import Path
from typing import Any

from rig import plan, scenario
from rig.lab import Lab, Order, open_lab
from rig.lab.probing import probe
from rig.model import WAYS, Case
from rig.node.datagrams import spread
from rig.node.stream import Stream
from tests.ruler import Ruler, rulers

HERE = Path(__file__).parent
SHAPERS = ("netem", "delayline")
SCENARIOS = ("delay", "fates")
PACKETS = 2000
PINGS, GAP = 300, 0.01  # round trips, and s between them: more at once and the guest's one CPU would add to them
TRIES, NEAR = 3, 0.25  # a spread that is off by more is read again: a busy host only ever widens it


def case(name: str, shaper: str) -> Case:
    """The one case of a scenario beside this file."""
    return plan.expand(scenario.load(HERE / f"{name}.yaml", [f"shaper={shaper}"]), cores=1)[-1]


def fares(ruler: Ruler) -> dict[str, Any]:
    """Round trips where they vary, else the fate of counted packets."""
    up, down = ruler.cable.link.up, ruler.cable.link.down
    if not up.jitter:
        return {"counted": ruler.counted("up", PACKETS)}
    asked = hypot(up.jitter.seconds, down.jitter.seconds)
    readings: list[list[float]] = []
    while len(readings) < TRIES and (not readings or abs(spread(readings[-1]) / asked - 1) > NEAR):
        readings.append(ruler.rtt(PINGS, GAP))
    return {"rtt": min(readings, key=lambda trips: abs(spread(trips) / asked - 1))}


def readings(name: str, lab: Lab, this: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each cable's name and what was seen on it. Where TCP measures the links, that is the rig's own probe."""
    if name == "delay":
        for cable, seen in probe(lab, this, "uml", print).items():
            yield cable, {way: seen.emulated(way) for way in WAYS}
    else:
        with rulers(lab, this, "uml") as by_name:
            for cable, ruler in by_name.items():
                yield cable, fares(ruler)


def main() -> None:
    """Every link by every shaper."""
    stream = Stream()
    for name, shaper in product(SCENARIOS, SHAPERS):
        this = case(name, shaper)
        with open_lab("netns", Order("uml", this, print)) as lab:
            held = lab.fabric.read_back()
            for cable, seen in readings(name, lab, this):
                stream.emit("link", of=name, cable=cable, shaper=shaper, held=held[cable], **seen)


if __name__ == "__main__":
    main()
