"""`rig status`: labs that are up with their links and counters, and runs under way on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rig import held
from rig.errors import LabError
from rig.lab import lock
from rig.model import WAYS
from rig.report import figures

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def take() -> dict[str, Any]:
    """What there is now, as plain data; only what this user may see."""
    labs = [_lab(one) for one in held.every()]
    mine = {one["run"] for one in labs}
    runs = [{"run": run, "processes": pids} for run, pids in marked().items() if run not in mine]
    return {"labs": labs, "runs": runs, "measuring": lock.holder()}


def _lab(one: held.Held) -> dict[str, Any]:
    counters, trouble = _counters(one)
    links = [
        {"name": name, "direction": way, "asked": link[way]} | counters.get(name, {}).get(way, {})
        for name, link in one.links.items()
        for way in WAYS
    ]
    return {
        "run": one.run, "lives": one.lives, "trouble": trouble, "lab": one.lab, "scenario": one.scenario,
        "case": one.case, "since": one.since, "keeper": one.pid, "places": list(one.places), "links": links,
    }  # fmt: skip


def _counters(one: held.Held) -> tuple[Mapping[str, Any], str]:
    try:
        return one.ask("status")["counters"], ""
    except LabError as error:
        return {}, str(error)


def marked() -> dict[str, list[int]]:
    """Every process whose environment names a run, by that run: all of a run's processes have RIG_RUN."""
    found: dict[str, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it has just ended, or is another user's
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(b"RIG_RUN="):
                found.setdefault(entry[8:].decode(errors="replace"), []).append(int(folder.name))
    return dict(sorted(found.items()))


# ── for a terminal ───────────────────────────────────────────────────────────────────────────────────
def tables(found: Mapping[str, Any]) -> Group | str:
    """The same for a terminal of 80 columns."""
    from rich.console import Group

    shown: list[Any] = [_table(lab) if lab["lives"] else _stale(lab) for lab in found["labs"]]
    shown += [f"run {one['run']} is under way: {len(one['processes'])} processes" for one in found["runs"]]
    shown += [f"measuring now: {found['measuring']}"] if found["measuring"] else []
    return Group(*shown) if shown else "no lab is up, and no run under way; `rig up FILE` opens a lab"


def _stale(lab: Mapping[str, Any]) -> str:
    return f"{lab['run']} (stale): {lab['scenario']}: its keeper is gone; `rig clean` removes what it left"


def _table(lab: Mapping[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"{lab['run']} ({lab['lab']}), {lab['scenario']}: {lab['case']}"
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_style="bold")
    for heading, side in (("link", "left"), ("asked", "left"), ("bytes", "right"), ("packets", "right"),
                          ("drops", "right"), ("queued", "right")):  # fmt: skip
        shown.add_column(heading, justify=side, no_wrap=heading != "asked")  # type: ignore[arg-type]
    for link in lab["links"]:
        counted = (str(link.get(name, figures.MISSING)) for name in ("packets", "drops"))
        sizes = [figures.size(figures.number(link.get(name))) for name in ("bytes", "backlog")]
        shown.add_row(f"{link['name']} {link['direction']}", _asked(link["asked"]), sizes[0], *counted, sizes[1])
    shown.caption = lab["trouble"] or f"up since {lab['since']}, keeper {lab['keeper']}; bytes as tc counts them"
    shown.caption_justify, shown.caption_style = "left", "dim"
    return shown


def _asked(way: Mapping[str, str]) -> str:
    """The rate and delay speak for themselves; the rest is named."""
    return ", ".join(text if name in ("rate", "delay") else f"{name} {text}" for name, text in way.items())
