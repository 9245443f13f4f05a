"""`rig probe`: open each distinct network of a scenario, measure its links, and judge nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rig import links, record
from rig.lab import Order, choose, open_lab
from rig.lab.ceiling import here
from rig.lab.lock import measuring
from rig.lab.probing import probe
from rig.model import Case
from rig.pipeline import Watch
from rig.plan import buildable, expand
from rig.report import links as drawn
from rig.scenario import Scenario

if TYPE_CHECKING:
    from rich.console import Group

MISSED = 4  # exit code: as of a run with invalid cases


def run_probe(scenario: Scenario, lab: str, watch: Watch, locked: bool = True) -> tuple[dict[str, Any], Group, int]:
    """Probe the links of every network the scenario's cases need, equal ones once.

    Returns the findings as JSON data, as a table, and the exit code. Raises UsageError, LabError, LackError.
    """
    groups = distinct(buildable(expand(scenario, *here())))
    kind, why = choose(lab, watch.stage)
    if why:
        watch.warn(why)
    watch.planned(len(groups), kind)
    networks = []
    for cases in groups:
        watch.began(cases[0])
        networks.append(_inspect(cases, kind, watch, locked))
    document = {"scenario": scenario.name, "lab": kind, "environment": record.environment(), "networks": networks}
    return document, drawn.table(document), MISSED if any(network["wrong"] for network in networks) else 0


def distinct(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases in groups of those whose networks are alike, in order."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        alike = (case.cables, case.switches, case.dilation, case.shaper, case.seed, case.tcp, case.limits, case.changes)
        groups.setdefault(alike, []).append(case)
    return list(groups.values())


def _inspect(cases: Sequence[Case], kind: str, watch: Watch, locked: bool) -> Mapping[str, Any]:
    case = cases[0]
    order = Order(record.new_run_id(), case, watch.stage, warn=watch.warn)
    with open_lab(kind, order) as lab, measuring(watch.warn, locked):
        probed = probe(lab, case, order.run, watch.stage)
        reports = links.link_reports(case, lab, probed)
    return {
        "cases": [one.id for one in cases],
        "dilation": case.dilation,
        "links": [asdict(report) for report in reports],
        "wrong": links.bad_links(case, reports),
        "probe": {name: seen.said for name, seen in probed.items()},
    }
