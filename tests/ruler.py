"""Readings of one cable as they come, one at a time, by the rig's own probe: no second try, nothing judged."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rig.errors import LabError
from rig.lab import LABS, Lab, orders
from rig.lab.due import due
from rig.lab.orders import Order
from rig.lab.talk import Talk
from rig.model import Cable, Case, Direction

PATIENCE = 30.0  # seconds for an answer, beside the time that the reading itself takes


@dataclass(frozen=True)
class Ruler:
    """Reads one cable of a case in an open lab; real bit/s and seconds."""

    case: Case
    cable: Cable
    shaper: str
    talk: Talk

    def rtt(self, count: int = 0, gap: float = 0.0) -> list[float]:
        """So many round trips of small packets, one each `gap` s; 0: as the rig's probe does. Those that came back."""
        order = orders.rtt(self.case, self.cable)
        order |= {"count": count or order["count"], "gap": gap or order["gap"]}
        return list(self._ask(order, order["count"] * order["gap"] + order["patience"])["samples"])

    def goodput(self, way: Direction) -> float:
        """TCP payload of one long stream, past slow start and the bucket's credit."""
        order = orders.tcp(self.case, self.cable, way, self.shaper)
        return float(self._ask(order, order["skip"] + order["seconds"])["bit_s"])

    def counted(self, way: Direction, count: int) -> Mapping[str, Any]:
        """The fate of so many full packets at 80 % of the rate: see rig.node.datagrams.tally."""
        order, _ = orders.counted(self.case, self.cable, way, due(self.cable.link, way, self.shaper))
        within = 2 * count / order["pace"] + PATIENCE / 2
        return self._ask(order | {"count": count, "within": within}, within)

    def _ask(self, order: Order, seconds: float) -> dict[str, Any]:
        where = f"link {self.cable.name}: read {order['mode']}"
        self.talk.say(self.cable.start, [order])
        for _, said in self.talk.hear(time.monotonic() + seconds + PATIENCE):
            if said["event"] == order["mode"]:
                return said
            raise LabError(f"{where}: {said}")
        raise LabError(f"{where}: no answer within {seconds + PATIENCE:.0f} s")


@contextmanager
def rulers(lab: Lab, case: Case, run: str) -> Iterator[dict[str, Ruler]]:
    """A ruler for each cable of an open lab, by its name."""
    shaped = lab.fabric.read_back() if lab.kind in LABS else {}
    switches = {orders.end(case, cable) for cable in case.cables}
    starts = {cable.start for cable in case.cables}
    with (
        Talk(lab, {one.name: ["rig.node.probe", "serve", one.address] for one in switches}, run) as far,
        Talk(lab, {start: ["rig.node.probe", "ask"] for start in starts}, run) as near,
    ):
        for _, (place, said) in zip(switches, far.hear(time.monotonic() + PATIENCE), strict=False):
            if said["event"] != "serving":
                raise LabError(f"{place}: start the probe: {said}")
        yield {
            cable.name: Ruler(case, cable, shaped[cable.name]["up"]["kind"] if shaped else "tbf", near)
            for cable in case.cables
        }
