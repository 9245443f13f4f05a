"""What a drawing of a topology shows: nodes whose cables are alike as one, switches, and the cables between switches.

Made from a case, or from the plain data that a record keeps of one, which is the same but for its types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rig.model import Case, Loss
from rig.units import Duration, Fraction, Rate

Plain = Mapping[str, Any]
MOST_RUNS = 4  # of node numbers in a group's name; more are counted


@dataclass(frozen=True)
class Wire:
    """One cable, or several that are alike: what each way does, in words. `up` goes from `start` to `end`."""

    start: str
    end: str
    up: str
    down: str

    def label(self, there: str = "→ ", back: str = "← ") -> tuple[str, ...]:
        """One line where both ways do the same, else one for each."""
        return (self.up,) if self.up == self.down else (there + self.up, back + self.down)


@dataclass(frozen=True)
class Group:
    """Nodes of one switch whose cables are alike."""

    nodes: tuple[str, ...]
    wire: Wire

    @property
    def name(self) -> str:
        """Such as `n0…n3`, or `n0, n2…n5`."""
        return self.wire.start


@dataclass(frozen=True)
class Sketch:
    """All there is to draw."""

    switches: tuple[str, ...]
    groups: tuple[Group, ...]
    wans: tuple[Wire, ...]

    @property
    def title(self) -> str:
        """In a few words."""
        nodes = sum(len(group.nodes) for group in self.groups)
        return f"{_count(nodes, 'node')} on {_count(len(self.switches), 'switch', 'switches')}"

    def at(self, switch: str) -> tuple[Group, ...]:
        """The groups of one switch."""
        return tuple(group for group in self.groups if group.wire.end == switch)


def of_case(case: Case) -> Sketch:
    """What to draw of a case."""
    names = ("nodes", "switches", "wans", "background", "changes")
    return of_plain({name: [asdict(one) for one in getattr(case, name)] for name in names})


def of_plain(case: Plain) -> Sketch:
    """What to draw of a resolved case as a record keeps it; raises LookupError, TypeError or ValueError where it is not
    one.
    """
    notes = _notes(case)
    switches = tuple(str(switch["name"]) for switch in case["switches"])
    together: dict[tuple[str, str, str], list[str]] = {}
    for node in case["nodes"]:
        ways = _ways(node["link"], notes.get(node["name"], ("", "")))
        together.setdefault((str(node["switch"]), *ways), []).append(str(node["name"]))
    groups = tuple(Group(tuple(names), Wire(_run(names), *key)) for key, names in together.items())
    wans = tuple(
        Wire(str(wan["start"]), str(wan["end"]), *_ways(wan["link"], notes.get(wan["name"], ("", ""))))
        for wan in case["wans"]
    )
    ends = {group.wire.end for group in groups} | {end for wan in wans for end in (wan.start, wan.end)}
    if not ends <= set(switches):
        raise ValueError(f"cables end at {', '.join(sorted(ends - set(switches)))}, where no switch is")
    return Sketch(switches, groups, wans)


def _notes(case: Plain) -> dict[str, tuple[str, str]]:
    """What else there is on a cable, each way: other people's traffic, and that it changes."""
    found: dict[str, tuple[str, str]] = {}
    for stream in case.get("background", ()):
        up, down = found.get(stream["cable"], ("", ""))
        taken = f", {Rate(stream['rate'])} of it others'"
        found[stream["cable"]] = (up + taken, down) if stream["direction"] == "up" else (up, down + taken)
    for name in dict.fromkeys(change["cable"] for change in case.get("changes", ())):
        up, down = found.get(name, ("", ""))
        found[name] = (f"{up}, changing", f"{down}, changing")
    return found


def _ways(link: Plain, notes: tuple[str, str]) -> tuple[str, str]:
    return _words(link["up"]) + notes[0], _words(link["down"]) + notes[1]


def _words(way: Plain) -> str:
    """What one direction does: `200mbit, 10ms ±1ms, loss 1%`."""
    parts = [str(Rate(way["rate"]))]
    delay = str(Duration(way["delay"])) if way["delay"] else ""
    jitter = f"±{Duration(way['jitter'])}" if way["jitter"] else ""
    parts.append(f"{delay} {jitter}".strip())
    mean = Loss(**{name: Fraction(share) for name, share in way["loss"].items()}).mean
    bursts = " in bursts" if way["loss"]["enter"] else ""
    parts.append(f"loss {mean * 100:.3g}%{bursts}" if mean else "")
    parts += [f"{fate} {Fraction(way[fate])}" for fate in ("duplicate", "corrupt", "reorder") if way[fate]]
    return ", ".join(part for part in parts if part)


def _run(names: Sequence[str]) -> str:
    """Names as runs of consecutive numbers."""
    runs: list[list[int]] = []
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"n(\d{1,9})", name))]
    if len(numbers) != len(names):
        return _count(len(names), "node")
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    written = [f"n{run[0]}" if len(run) == 1 else f"n{run[0]}{'…' if len(run) > 2 else ', '}n{run[-1]}" for run in runs]
    return ", ".join(written) if len(runs) <= MOST_RUNS else f"n{runs[0][0]} … n{runs[-1][-1]} ({len(names)} nodes)"


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
