"""`show:` as written: what the page about several runs draws of this one."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator

from rig.formulas import FORMULAS
from rig.results import QUANTITIES
from rig.scenario.fields import Keys, hint
from rig.scenario.reading import shown
from rig.scenario.workloads import Complaint, Surroundings


def _quantity(name: str) -> str:
    if name not in QUANTITIES:
        raise ValueError(f"{shown(name)} is no figure that a run measures{hint(name, QUANTITIES, 'there are')}")
    return name


def _formula(name: str) -> str:
    if name not in FORMULAS:
        close = get_close_matches(name, FORMULAS, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"{shown(name)} is no formula of the rig's; {meant}docs/formulas.md lists them")
    return name


class ShowKeys(Keys):
    """A figure over a swept path, a curve for each value of another. What is absent, the page chooses."""

    x: str | None = None  # a swept path, or nodes
    y: Annotated[str, AfterValidator(_quantity)] | None = None
    by: str | None = None  # a swept path; absent: everything else that is swept
    formula: Annotated[str, AfterValidator(_formula)] | None = None  # absent: what the prediction cites

    def complaints(self, around: Surroundings) -> Iterator[Complaint]:
        """Paths that nothing sweeps, so that nothing could be drawn over them."""
        known = ["nodes", *(path for path in around.swept if path != "nodes")]
        for key in ("x", "by"):
            path = getattr(self, key)
            if path is not None and path not in known:
                yield ("show", key), f"{shown(path)} is not swept{hint(path, known, 'there are')}"
        if self.x is not None and self.x == self.by:
            yield ("show", "by"), f"{shown(self.x)} is what x is already; name another swept path, or leave it out"
