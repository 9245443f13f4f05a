"""The topology of a case as a picture: `rig graph` prints it, the report shows it.

sketch.py   what there is to draw     words.py   for a terminal, and for Mermaid     drawing.py   SVG
"""

from __future__ import annotations

from rig.graph import drawing, sketch, words
from rig.model import Case


def text(case: Case) -> str:
    """For a terminal of 80 columns: a line per group of equal nodes, and per cable between switches."""
    return "\n".join(words.lines(sketch.of_case(case)))


def mermaid(case: Case) -> str:
    """A Mermaid flowchart."""
    return "\n".join(words.mermaid(sketch.of_case(case)))


def svg(case: Case) -> str:
    """An <svg> element that stands by itself."""
    return drawing.svg(sketch.of_case(case))
