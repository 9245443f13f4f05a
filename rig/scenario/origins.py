"""Where a scenario's measured times come from, when it is another machine than this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rig import models
from rig.scenario.ddp import DdpKeys
from rig.work import LayerTable

if TYPE_CHECKING:
    from rig.scenario import Scenario


def origins(scenario: Scenario, machine: str | None = None) -> tuple[str, ...]:
    """A sentence for each profile in use that `rig profile` made elsewhere, to be printed and to stand in the record.

    `machine`: what this one is called; as models.machine() says if None.
    """
    here = machine or models.machine()
    sentences: dict[str, None] = {}
    for name, table in _used(scenario):
        profile = table.profiles[name]
        if profile.get("machine", here) != here:
            when = str(profile.get("date", ""))[:10] or "a day unknown"
            sentences[
                f"profile {name}: its times are those of another machine, {profile['machine']}, measured {when}; "
                f"this one is {here}"
            ] = None
    return tuple(sentences)


def _used(scenario: Scenario) -> Iterator[tuple[str, LayerTable]]:
    for cell in scenario.cells:
        written = cell.written
        if not isinstance(written.workload, DdpKeys):
            continue
        table = written.workload.resolve(scenario.path.parent).table
        for node in ("", *written.machines):
            if name := written.workload.compute_on(written, node).profile:
                yield name, table
