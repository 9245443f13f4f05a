"""Links that change while ranks run, and other people's traffic beside theirs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from rig.errors import FabricError
from rig.lab import Lab, open_lab
from rig.lab.background import background
from rig.lab.ranks import Outcome, run_ranks
from rig.lab.schedule import Schedule
from rig.model import WAYS, Background, Case, Change, Link
from rig.units import Duration, Rate, Size
from rig.work import Allreduce
from tests.cases import case, impairment
from tests.lab.conftest import new_run, order, ran

FAST, SLOW = (Link(impairment(rate), impairment(rate)) for rate in ("200mbit", "50mbit"))
TALK = "import socket; socket.create_connection(('n1', 9), 0.7)"


def changing(*changes: Change, steps: int = 6) -> Case:
    """Two nodes on 200 Mb/s that reduce 1 MiB a step: 44 ms, and 178 ms on a quarter of the rate."""
    work = Allreduce(steps=steps, warmup=1, size=Size(2**20))
    return case(2, "200mbit", changes=changes, workload=work)


def at(seconds: float, link: Link = SLOW, plugged: bool = True) -> Change:
    return Change("n1", Duration(int(seconds * 1e9)), None, link, plugged)


def rates(lab: Lab, cable: str) -> list[int]:
    """Bit/s that the kernel holds for each direction."""
    held = lab.fabric.read_back()[cable]
    return [round(held[way]["tbf"]["rate"] * 8 / 1e6) for way in WAYS]


def spent(steps: Sequence[dict[str, Any]], wanted: range) -> float:
    """Median seconds of rank 0's steps with these numbers, warm-up counted."""
    return median(float(step["end"] - step["start"]) for step in steps if step["rank"] == 0 and step["step"] in wanted)


def test_a_change_is_made_read_back_noted_and_undone(kind: str) -> None:
    wanted = replace(order(new_run()), case=changing(at(0.0), at(3600.0)))
    with open_lab(kind, wanted) as lab:
        schedule = Schedule(lab, wanted.case, [])
        schedule.apply()
        assert rates(lab, "n1") == [197, 197]  # nothing is due before the warm-up has ended
        schedule.began = time.monotonic()
        schedule.apply()
        assert (rates(lab, "n0"), rates(lab, "n1")) == ([197, 197], [49, 49])
        (note,) = schedule.notes
        assert (note["cable"], note["asked_at"], note["plugged"]) == ("n1", 0.0, True)
        assert note["applied"]["up"]["tbf"]["rate"] == pytest.approx(50e6 * 1514 / 1538 / 8, rel=1e-3)
        assert schedule.wake() == pytest.approx(schedule.began + 3600)
        schedule.restore()
        assert rates(lab, "n1") == [197, 197]


def test_an_outage_stops_all_and_ends(kind: str) -> None:
    wanted = replace(order(new_run()), case=changing(at(0.0, FAST, plugged=False)))
    with open_lab(kind, wanted) as lab:
        schedule = Schedule(lab, wanted.case, [], began=time.monotonic())
        assert "refused" in ran(lab, "n0", [*lab.python, "-c", TALK]).stderr
        schedule.apply()
        assert "refused" not in ran(lab, "n0", [*lab.python, "-c", TALK]).stderr
        schedule.restore()
        assert "refused" in ran(lab, "n0", [*lab.python, "-c", TALK]).stderr


def test_a_delay_line_changes_too() -> None:
    delayed = replace(impairment("200mbit"), delay=Duration(20 * 10**6))
    wanted = replace(order(new_run()), case=changing(at(0.0, Link(delayed, delayed))))
    with open_lab("netns", wanted) as lab:
        assert {name: both["up"]["kind"] for name, both in lab.fabric.read_back().items()}["n0"] == "tbf"
        schedule = Schedule(lab, wanted.case, [], began=time.monotonic())
        schedule.apply()
        held = lab.fabric.read_back()["n1"]
        assert held["up"]["kind"] in ("delayline", "netem")
        assert held["down"]["transit"]["delay"] == 20 * 10**6


def test_a_change_that_the_kernel_does_not_hold_is_an_error() -> None:
    wanted = replace(order(new_run()), case=changing(at(0.0, replace(SLOW, mtu=1400))))
    with open_lab("netns", wanted) as lab, pytest.raises(FabricError, match="link n1 up: set the mtu to 1400"):
        Schedule(lab, wanted.case, [], began=time.monotonic()).apply()


def test_steps_are_slower_after_a_change_at_a_step(kind: str) -> None:
    """Three measured steps at 200 Mb/s, then four at a quarter; the first after the change is partly either."""
    wanted = replace(order(new_run()), case=changing(Change("n1", None, 3, SLOW), steps=7))
    outcome = Outcome(0, time.monotonic())
    with open_lab(kind, wanted) as lab:
        run_ranks(lab, wanted.case, wanted.run, outcome)
        assert rates(lab, "n1") == [197, 197]
    before, after = spent(outcome.steps, range(1, 4)), spent(outcome.steps, range(5, 8))
    assert 3.0 < after / before < 5.0
    (note,) = [note for note in outcome.notes if note["event"] == "change"]
    assert note["asked_step"] == 3
    assert 0 < note["at"] < 5


@pytest.mark.parametrize("direction", WAYS)
def test_background_traffic_has_its_rate_on_the_wire(kind: str, direction: Any) -> None:
    flow = Background("n1", direction, Rate.parse("80mbit"))
    wanted = replace(order(new_run()), case=replace(changing(), background=(flow,)))
    with open_lab(kind, wanted) as lab, background(lab, wanted.case, wanted.run):
        first, begin = lab.fabric.counters(), time.monotonic()
        time.sleep(1.5)
        last, end = lab.fabric.counters(), time.monotonic()
    counted = {way: last["n1"][way]["bytes"] - first["n1"][way]["bytes"] for way in WAYS}
    wire = counted[direction] * 1538 / 1514 * 8 / (end - begin)
    assert wire == pytest.approx(80e6, rel=0.05)
    assert sum(counted.values()) == pytest.approx(counted[direction], rel=0.01)
    assert last["n0"]["up"]["bytes"] - first["n0"]["up"]["bytes"] < 10_000
