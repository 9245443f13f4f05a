"""Matplotlib figures as inline SVG that takes its colours from the page, so that light and dark both fit.

Colours are drawn as placeholders and swapped for CSS variables afterwards; ids get a prefix, since several
pictures share one page. No pyplot, no global state, text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH_IN = 9.0  # of a picture on a line of its own; 648 units in its viewBox
SERIES = 8  # curves that can be told apart by colour; more of them share

# CSS variable → the placeholder drawn by matplotlib. Any colours do that occur nowhere else.
_PLACEHOLDERS = {
    name: f"#01{index:02x}f3"
    for index, name in enumerate(
        (
            *("ink", "muted", "line", "paper", "compute", "comm"),
            *("earlier", "forward", "backward", "waiting", "optimizer", "bucket-a", "bucket-b", "bucket-ink"),
            *(f"s{number}" for number in range(SERIES)),
        )
    )
}
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rig",
    "font.size": 9.0,
    "axes.linewidth": 0.8,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
}


def colour(name: str) -> str:
    """What to hand to matplotlib for the page's colour `--name`."""
    return _PLACEHOLDERS[name]


def blank(height_in: float, width_in: float = WIDTH_IN) -> tuple[Figure, Axes]:
    """A picture with one pair of axes: no box, a quiet grid on top of nothing."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):  # type: ignore[arg-type]  # its keys are typed as a list of literals
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colour("line"))
    axes.tick_params(colors=colour("muted"), labelcolor=colour("muted"))
    axes.set_axisbelow(True)
    return figure, axes


def logarithmic(axis: Axis) -> None:
    """Ticks of a log axis as plain numbers, 1, 2 and 5 of each decade (only 1 where there are more than three)."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    steps = (1.0,) if high > 1e3 * low else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def literal(text: str, most: int = 48) -> str:
    """A text that matplotlib shows as it is ($ would start a formula), cut to `most` characters."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return " ".join(cut.split()).replace("$", r"\$")


def inline(figure: Figure, prefix: str, title: str, hovers: Mapping[str, str] | None = None) -> str:
    """The figure as an <svg> element with `title` as its accessible name and `prefix` before every id.

    `hovers`: what is shown where the pointer rests on an artist, by the id that was set on it (set_gid).
    """
    from matplotlib import rc_context

    page = io.StringIO()
    with rc_context(_SETTINGS), warnings.catch_warnings():  # type: ignore[arg-type]  # as above
        warnings.filterwarnings("ignore", message="Glyph")  # the browser's fonts draw the text, not matplotlib's
        figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    drawing = page.getvalue()
    drawing = drawing[drawing.index("<svg") :].strip()
    drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", drawing, count=5)
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", drawing)
    for name, text in (hovers or {}).items():
        opened = f'<g id="{prefix}-{name}">'
        drawing = drawing.replace(opened, f"{opened}<title>{escape(text)}</title>", 1)
    for name, placeholder in _PLACEHOLDERS.items():
        drawing = drawing.replace(placeholder, f"var(--{name})")
    return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
