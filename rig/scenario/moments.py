"""A timeline's entries, cable by cable and in order: what each cable is from when on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rig.errors import ScenarioError
from rig.model import Change
from rig.scenario.links import WayKeys, WaysKeys
from rig.scenario.network import Source, sources
from rig.scenario.timeline import EntryKeys, concerns
from rig.scenario.traces import Line
from rig.scenario.workloads import Loc
from rig.units import Duration

if TYPE_CHECKING:
    from rig.model import Link
    from rig.scenario.written import Written


@dataclass(frozen=True)
class Event:
    """What one entry does at one moment."""

    at: Duration | None
    step: int | None
    entry: int
    loc: Loc
    keys: WaysKeys | None  # None leaves the link's keys as they are
    cut: bool  # from now on, as far as this entry is concerned

    @property
    def moment(self) -> tuple[int, int]:
        """What events are ordered by; a cable has only times or only steps, and no step ends while it is cut."""
        return (self.step or 0, int(self.at or 0))


@dataclass(frozen=True)
class State:
    """What a cable is after all that happened at one moment."""

    event: Event  # the last of them
    source: Source
    plugged: bool


def changes(written: Written, folder: Path) -> tuple[Change, ...]:
    """Every change of every cable in order; burst and queue of its links are 0 where they are to be derived.

    Raises ScenarioError when a trace cannot be read.
    """
    found = []
    for source in sources(written).values() if written.timeline else ():
        links: dict[tuple[int, ...], Link] = {}
        for state in states(source, events(written, source.name, folder, whole=True)):
            layers = tuple(id(keys) for _, keys in state.source.groups)  # a trace comes back to a rate it had
            if layers not in links:
                links[layers] = state.source.link()
            event = state.event
            found.append((event.moment, Change(source.name, event.at, event.step, links[layers], state.plugged)))
    return tuple(change for _, change in sorted(found, key=lambda each: each[0]))


def altered(written: Written, folder: Path) -> Iterator[Source]:
    """What each cable becomes, for complaints: of a trace the slowest and the fastest line stand for all."""
    for source in sources(written).values() if written.timeline else ():
        for state in states(source, events(written, source.name, folder, whole=False)):
            yield state.source


def states(source: Source, happening: Sequence[Event]) -> Iterator[State]:
    """The cable after each moment: what an entry says later stands before what was said earlier."""
    layers: dict[int, tuple[Loc, WaysKeys]] = {}
    cuts: set[int] = set()
    for _, together in groupby(happening, key=lambda event: event.moment):
        for event in together:
            if event.keys is not None:
                layers.pop(event.entry, None)  # so that it moves to the front
                layers[event.entry] = (event.loc, event.keys)
            (cuts.add if event.cut else cuts.discard)(event.entry)
        groups = (*reversed(layers.values()), *source.groups)
        yield State(event, replace(source, groups=groups), not cuts)


def events(written: Written, cable: str, folder: Path, whole: bool) -> list[Event]:
    """All that happens to a cable, in order."""
    found: list[Event] = []
    for index, entry in enumerate(written.timeline):
        if concerns(entry, cable):
            found += _events(index, entry, folder, whole)
    return sorted(found, key=lambda event: (event.moment, event.entry))


def _events(index: int, entry: EntryKeys, folder: Path, whole: bool) -> Iterator[Event]:
    loc = ("timeline", str(index))
    if entry.trace is not None:
        yield from _traced(index, entry, folder, whole)
    elif entry.outage is not None:
        if entry.outage:
            yield Event(entry.at, entry.step, index, loc, None, cut=True)
            yield Event(Duration((entry.at or 0) + entry.outage), entry.step, index, loc, None, cut=False)
    else:
        yield Event(entry.at, entry.step, index, loc, entry, cut=False)


def _traced(index: int, entry: EntryKeys, folder: Path, whole: bool) -> Iterator[Event]:
    try:
        lines = entry.lines(folder)
    except ScenarioError:
        if whole:
            raise
        return  # told as a complaint of its own
    start = entry.at or Duration(0)
    loc = ("timeline", str(index), "trace")
    known: dict[int, WaysKeys] = {}
    for line in lines if whole else _extremes(lines):
        keys = known.setdefault(line.rate, _rate_keys(entry, line)) if line.rate else None
        yield Event(Duration(start + line.at), None, index, loc, keys, cut=line.rate == 0)


def _extremes(lines: Sequence[Line]) -> list[Line]:
    rates = sorted((line for line in lines if line.rate), key=lambda line: line.rate)
    return sorted({rates[0], rates[-1]}, key=lambda line: line.at)


def _rate_keys(entry: EntryKeys, line: Line) -> WaysKeys:
    if entry.direction in ("up", "down"):
        return WaysKeys.model_validate({entry.direction: WayKeys(rate=line.rate)})
    return WaysKeys(rate=line.rate)
