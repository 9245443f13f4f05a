"""What is wrong with a scenario file: each fault with its place and key, and all of them told together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rig.scenario.reading import Place, Spot, shown
from rig.scenario.workloads import KEY, Loc

MAX_FAULTS = 25  # told in full; a hundred more help nobody


@dataclass(frozen=True, order=True)
class Fault:
    """One line of an error text."""

    place: Place
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.text}" if self.key else f"{self.place}: {self.text}"


def fault(tree: Spot, loc: Loc, text: str) -> Fault:
    """A complaint with its place: the value's, or the key's, or the nearest there is above a missing one."""
    place, spot = tree.place, tree
    words = loc[:-1] if loc[-1:] == (KEY,) else loc
    for depth, word in enumerate(words):
        children = spot.value
        if isinstance(children, list) and word.isdecimal() and int(word) < len(children):
            spot, place = children[int(word)], children[int(word)].place
        elif isinstance(children, dict) and word in children:
            last = depth == len(words) - 1 and words == loc
            spot, key_place = children[word], spot.keys[word]
            place = spot.place if last else key_place
        else:
            break
    return Fault(place, ".".join(shown(word) for word in words), text)


def told(faults: Sequence[Fault]) -> str:
    """A line for each, in the order of the file."""
    ordered = sorted(faults)
    more = len(ordered) - MAX_FAULTS
    lines = [str(fault) for fault in ordered[:MAX_FAULTS]]
    return "\n".join([*lines, f"… and {more} more"] if more > 0 else lines)
