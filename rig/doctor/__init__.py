"""`rig doctor`: what this machine can and cannot do, one function a check, each with how to mend it.

network.py   namespaces, queueing disciplines, TAPs, congestion control    containers.py   Docker and GPUs
machine.py   CPUs, clock, limits, room                                     remains.py      leftovers, others' doings
capacity.py  what the host carries in all                                  needs.py        a scenario's own wants

To add a check: one function that returns a Finding, one row in CHECKS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rig.doctor import capacity, containers, machine, needs, network, remains
from rig.doctor.finding import Finding
from rig.lab import choose
from rig.lab.ceiling import here
from rig.plan import expand

if TYPE_CHECKING:
    from rich.console import Group

    from rig.scenario import Scenario

CHECKS: tuple[Callable[[], Finding], ...] = (  # what matters most comes first
    network.user_namespaces,
    network.token_bucket,
    network.netem,
    network.tap,
    containers.docker,
    containers.image,
    containers.gpu,
    capacity.load,
    capacity.ceiling,
    machine.cpus,
    machine.governor,
    machine.kernel,
    network.congestion,
    network.other_qdiscs,
    machine.clock,
    machine.sleeping,
    machine.open_files,
    machine.processes,
    machine.memory,
    machine.shared_memory,
    machine.disk,
    remains.leftovers,
    remains.foreign_qdiscs,
    capacity.measuring,
)
_ORDER = ("lack", "warn", "ok")


def examine(scenario: Scenario | None, lab: str | None, tell: Callable[[str], None]) -> list[Finding]:
    """Every check, about six seconds in all; with a scenario also what it needs, first. Worst findings come first.

    Raises UsageError for a lab that is unknown.
    """
    if lab not in (None, "auto"):
        choose(lab, tell)
    tell("looking around, and measuring for some seconds what this host can carry …")
    found = [check() for check in CHECKS]
    if scenario is not None:
        cases = expand(scenario, *here())
        found = [*needs.of(cases, lab or scenario.lab), *found]
    return sorted(found, key=lambda one: (not one.required, _ORDER.index(one.status)))


def forbids(found: Sequence[Finding]) -> bool:
    """Whether the scenario cannot run here."""
    return any(one.required and one.status == "lack" for one in found)


def document(found: Sequence[Finding]) -> dict[str, Any]:
    """The same as JSON data."""
    return {"checks": [asdict(one) for one in found], "runs_here": not forbids(found), "summary": summary(found)}


def summary(found: Sequence[Finding]) -> str:
    """One line."""
    counts = [sum(one.status == status for one in found) for status in _ORDER]
    said = f"{counts[0]} lacking, {counts[1]} to look at, {counts[2]} in order"
    if not any(one.required for one in found):
        return said
    return f"{said}; this scenario {'cannot run here' if forbids(found) else 'can run here'}"


def table(found: Sequence[Finding]) -> Group:
    """The same for a terminal of 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("", "what", "found, and how to mend it"):
        shown.add_column(heading, overflow="fold")
    for one in found:
        what = f"scenario: {one.name}" if one.required else one.name
        shown.add_row(one.status, what, f"{one.found}\n→ {one.mend}" if one.mend else one.found)
    return Group(shown, summary(found))
