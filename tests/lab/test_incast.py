"""Three senders and one receiver, all on 1 Gb/s: the receiver's own cable bounds what it gets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from rig.formulas.timing import goodput
from rig.lab import open_lab
from rig.lab.talk import Talk
from tests.cases import case
from tests.lab.conftest import new_run, order

RATE = 1e9
SENDERS = ("n0", "n1", "n2")


ROUND_TRIP = {"mode": "rtt", "count": 5, "gap": 0.01, "patience": 1.0}
STREAM = {"mode": "tcp", "way": "up", "skip": 0.5, "seconds": 3.0, "steady": False, "window": 0}


def together(senders: Talk, order: dict[str, Any]) -> list[dict[str, Any]]:
    """Give all the same order; the answers of all."""
    for name in SENDERS:
        senders.say(name, [order | {"cable": name}])
    heard = senders.hear(time.monotonic() + 20)
    return [next(heard)[1] for _ in SENDERS]


@pytest.mark.slow
def test_incast_is_bounded_by_the_receivers_cable(kind: str) -> None:
    wanted = replace(order(new_run()), case=case(4))
    receiver = wanted.case.nodes[3]
    with (
        open_lab(kind, wanted) as lab,
        Talk(lab, {"n3": ["rig.node.probe", "serve", receiver.address]}, wanted.run) as there,
    ):
        assert next(there.hear(time.monotonic() + 15))[1]["event"] == "serving"
        with Talk(lab, {name: ["rig.node.probe", "ask"] for name in SENDERS}, wanted.run) as senders:
            together(senders, ROUND_TRIP | {"to": receiver.address})  # all are up, and begin at the same time
            rates = [said["bit_s"] for said in together(senders, STREAM | {"to": receiver.address})]
    print(f"incast: {[round(rate / 1e6) for rate in rates]} Mb/s")
    assert sum(rates) == pytest.approx(goodput(RATE, 1500, "ethernet"), rel=0.02)
    assert min(rates) > 0
