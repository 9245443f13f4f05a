"""What happens to links while a lab is up: the keys of `timeline:` and `background:`, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rig.errors import ScenarioError
from rig.model import WAYS, Direction
from rig.scenario.fields import Keys, hint
from rig.scenario.links import WaysKeys
from rig.scenario.network import sources, wan_sources
from rig.scenario.reading import shown
from rig.scenario.traces import Line, trace
from rig.scenario.workloads import KEY, Complaint, Loc, Surroundings
from rig.units import Duration, Rate

if TYPE_CHECKING:
    from rig.scenario.written import Written

Which = Literal["up", "down", "both"]
ALL = "all"  # every cable there is
MOST_CHANGES = 100_000  # in one case


class EntryKeys(WaysKeys):
    """One entry of a timeline: when, which link, and what of it changes, or that it is cut for a while."""

    link: str
    at: Duration | None = None
    step: int | None = Field(None, ge=0)
    outage: Duration | None = None
    trace: str | None = None
    direction: Which | None = None

    def lines(self, folder: Path) -> tuple[Line, ...]:
        """The trace file's; none where it names no trace. Raises ScenarioError when it cannot be read."""
        return () if self.trace is None else trace(folder / self.trace)


class BackgroundKeys(Keys):
    """Other traffic on a link, at a constant rate."""

    link: str
    direction: Which = "both"
    rate: Rate


def ways(which: Which | None) -> tuple[Direction, ...]:
    """The directions a word stands for."""
    return WAYS if which in ("both", None) else tuple(way for way in WAYS if way == which)


def concerns(keys: EntryKeys | BackgroundKeys, cable: str) -> bool:
    """Whether it is about that cable."""
    return keys.link in (ALL, cable)


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────
def timeline_complaints(written: Written, around: Surroundings) -> Iterator[Complaint]:
    """Each entry by itself, then what they make together."""
    for index, entry in enumerate(written.timeline):
        loc = ("timeline", str(index))
        yield from _name_complaints(written, around, (*loc, "link"), entry.link)
        yield from _moment_complaints(written, loc, entry)
        yield from _kind_complaints(loc, entry)
        yield from _trace_complaints(around.folder, loc, entry)
    yield from _order_complaints(written)
    count = sum(_count(written, around.folder, entry) for entry in written.timeline)
    if count > MOST_CHANGES:
        text = f"makes {count} changes, and more than {MOST_CHANGES} are refused; name fewer links or a shorter trace"
        yield ("timeline",), text


def _name_complaints(written: Written, around: Surroundings, loc: Loc, name: str) -> Iterator[Complaint]:
    known = [f"n{number}" for number in range(around.most_nodes)]
    others = (*wan_sources(written), ALL)
    if name not in known and name not in others:
        nodes = (known[0], f"… {known[-1]}") if len(known) > 2 else known
        yield loc, f"{shown(name)} is no link{shown(hint(name, (*nodes, *others)), 300)}"


def _moment_complaints(written: Written, loc: Loc, entry: EntryKeys) -> Iterator[Complaint]:
    if entry.at is not None and entry.step is not None:
        yield (*loc, "step"), f"{entry.step} stands beside at: {entry.at}; write one of the two"
    elif entry.step is not None and entry.step >= (written.workload.steps or entry.step + 1):  # a script may tell none
        text = f"{entry.step} never comes to matter: the workload has {written.workload.steps} steps, counted from 0"
        yield (*loc, "step"), text
    elif entry.step is not None and entry.trace is not None:
        yield (*loc, "step"), "a trace counts in seconds, which cannot start at a step; write at: 10s"
    elif entry.at is None and entry.step is None and entry.trace is None:
        yield loc, "says not when; write at: 10s after the warm-up, or step: 3"


def _kind_complaints(loc: Loc, entry: EntryKeys) -> Iterator[Complaint]:
    """A change of keys, an outage, or a trace: exactly one."""
    keys = [key for key in WaysKeys.model_fields if getattr(entry, key) is not None]
    kinds = [*keys[:1], *(key for key in ("outage", "trace") if getattr(entry, key) is not None)]
    if not kinds:
        yield loc, "changes nothing; write a link's key such as rate: 10mbit, or outage: 2s, or trace: FILE.csv"
    elif len(kinds) > 1:
        yield (*loc, kinds[-1], KEY), f"does not go with {kinds[0]} in one entry; write two entries"
    if entry.direction is not None and entry.trace is None:
        yield (*loc, "direction"), "belongs to a trace; write up: {…} or down: {…} for one direction"


def _trace_complaints(folder: Path, loc: Loc, entry: EntryKeys) -> Iterator[Complaint]:
    try:
        lines = entry.lines(folder)
    except ScenarioError as error:
        yield (*loc, "trace"), str(error)
        return
    cut = next((line for line in lines if line.rate == 0), None)
    if cut is not None and len(ways(entry.direction)) == 1:
        text = f"has a rate of 0 in line {cut.number}, and an outage cuts both directions; write direction: both"
        yield (*loc, "direction"), text


def _order_complaints(written: Written) -> Iterator[Complaint]:
    """Where one entry says a time and another a step, nobody knows which comes first."""
    for cable in sources(written) if written.timeline else ():
        mine = [(index, entry) for index, entry in enumerate(written.timeline) if concerns(entry, cable)]
        by_step = [index for index, entry in mine if entry.step is not None]
        if by_step and len(by_step) < len(mine):
            text = f"{cable} changes by step here and by time elsewhere, so their order is unknown; write at in both"
            yield ("timeline", str(by_step[0]), "step"), text


def _count(written: Written, folder: Path, entry: EntryKeys) -> int:
    try:
        each = len(entry.lines(folder)) or 2
    except ScenarioError:
        return 0
    return each * (len(sources(written)) if entry.link == ALL else 1)


def background_complaints(written: Written, around: Surroundings) -> Iterator[Complaint]:
    """Known links, and less than each of them carries."""
    for index, keys in enumerate(written.background):
        yield from _name_complaints(written, around, ("background", str(index), "link"), keys.link)
    for name, source in sources(written).items() if written.background else ():
        for way in WAYS:
            mine = [
                (index, keys.rate)
                for index, keys in enumerate(written.background)
                if concerns(keys, name) and way in ways(keys.direction)
            ]
            total, rate = sum(share for _, share in mine), source.find("rate", way)[1]
            if mine and rate is not None and total >= rate:
                text = f"{Rate(total)} in all leave nothing of {name}'s {rate} {way}; write less"
                yield ("background", str(mine[-1][0]), "rate"), text
