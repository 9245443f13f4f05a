"""What `rig probe` shows: every direction of every cable, asked, applied and measured, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rig.report import figures

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_HEADINGS = ("rate", "goodput", "all busy", "RTT", "jitter", "loss")
_ASCII = str.maketrans({"−": "-", "–": "-", "µ": "u"})
_LEGEND = (
    "emulated units; applied: what the kernel holds, its delay of this way alone; all busy: goodput with all links "
    "busy; RTT: median, 5-95 %; jitter: half the span of the middle 68 % of times on the way"
)


def table(document: Mapping[str, Any]) -> Group:
    """One table per distinct network of a scenario, as `inspection.run_probe` documents them."""
    from rich.console import Group

    return Group(*(_network(network) for network in document["networks"]))


def _network(network: Mapping[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = f"{', '.join(network['cases'])} (k = {network['dilation']})"
    shown = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=title, title_style="bold")
    shown.add_column("link", overflow="fold", min_width=7)
    shown.add_column("", no_wrap=True)
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right", no_wrap=True)
    for link in network["links"]:
        name = f"{link['name']} {link['direction']}"
        shown.add_row(name, "asked", *map(_plain, _asked(link)))
        shown.add_row("", link["shaper"], *map(_plain, _applied(link, network["dilation"])))
        missed = f"link {name}:" in network["wrong"]
        shown.add_row("", "measured", *map(_plain, _measured(link)), style="red" if missed else "", end_section=True)
    udp = "; udp: payload of UDP, where TCP does not measure the rate"
    legend = Text(_LEGEND + (udp if any("udp" in link["asked"] for link in network["links"]) else ""), style="dim")
    if network["wrong"]:
        legend.append(f"\n{network['wrong']}", style="not dim red")
    shown.caption, shown.caption_justify, shown.caption_style = legend, "left", ""
    return shown


def _plain(text: str) -> str:
    return text.translate(_ASCII)


def _asked(link: Mapping[str, Any]) -> tuple[str, ...]:
    asked = link["asked"]
    return (
        figures.rate(asked["rate"]), _goodput(asked), "", figures.seconds(asked.get("rtt")),
        figures.seconds(asked["jitter"]), figures.percent(asked["loss"], signed=False),
    )  # fmt: skip


def _applied(link: Mapping[str, Any], dilation: int) -> tuple[str, ...]:
    transit = link["applied"].get("transit")
    rate = figures.rate(link["applied"]["emulates"])
    if not transit:
        return rate, "", "", "", "", ""
    delay, jitter = (transit[name] / 1e9 / dilation for name in ("delay", "jitter"))
    return rate, "", "", figures.seconds(delay), figures.seconds(jitter), figures.percent(_loss(transit), signed=False)


def _loss(transit: Mapping[str, Any]) -> float:
    """The long-run share lost by the chain that the shaper holds, or damaged, which comes to the same."""
    good, bad, enter, leave, corrupt = (
        float(transit[name]) / 1e9 for name in ("good", "bad", "enter", "leave", "corrupt")
    )
    in_bad = enter / (enter + leave) if enter else 0.0
    return 1 - (1 - good * (1 - in_bad) - bad * in_bad) * (1 - corrupt)


def _measured(link: Mapping[str, Any]) -> tuple[str, ...]:
    seen = link["measured"]
    span = f"{_number(seen['rtt_low'], seen['rtt'])}–{_number(seen['rtt_high'], seen['rtt'])}"
    return (
        "", _goodput(seen), figures.rate(seen["goodput_all"]), f"{figures.seconds(seen['rtt'])}\n{span}",
        figures.seconds(seen["jitter"]), figures.percent(seen["loss"], signed=False),
    )  # fmt: skip


def _number(seconds: float, beside: float) -> str:
    """A span without its unit, which is that of the figure beside it."""
    factor = next((factor for factor in (1.0, 1e-3, 1e-6) if beside >= factor), 1e-9)
    return f"{seconds / factor:.{0 if seconds >= 100 * factor else 1 if seconds >= 10 * factor else 2}f}"


def _goodput(of: Mapping[str, Any]) -> str:
    if "udp" in of:
        return f"{figures.rate(of['udp'])}\nudp"
    return figures.rate(of["goodput"])
