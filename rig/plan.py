"""Scenario → cases: everything left open is decided here, once. Pure and deterministic; no clock, no network.

Nothing downstream asks whether a thing was given: a case carries its burst, queue, dilation, threads and baseline.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

from rig import models
from rig.errors import UsageError
from rig.model import WAYS, Background, Cable, Case, Change, Link, Node, ProbeLimits
from rig.provision import dilation, needs, provided, tcp
from rig.scenario import Cell, Scenario
from rig.scenario.links import ClusterKeys
from rig.scenario.moments import changes
from rig.scenario.network import cables, switches
from rig.scenario.timeline import concerns, ways
from rig.scenario.written import Written
from rig.topology import at_most
from rig.units import Fraction

FIRST_ADDRESS = IPv4Address("198.18.0.10")  # RFC 2544's benchmarking network, nobody's LAN
AROUND = ("clusters", "wan", "timeline", "background")  # what no node has when it is alone
METRICS = {"traffic": "payload_tx"}  # what an expectation judges, where the name differs

MOST_BUILT = 256  # nodes of a lab: what has been tried, and answers in time

Role = Literal["case", "baseline"]


@dataclass(frozen=True)
class _Draft:
    """A cell with its name and its part."""

    id: str
    cell: Cell
    role: Role


def expand(scenario: Scenario, cores: int, worth: float | None = None) -> tuple[Case, ...]:
    """The cases of a scenario on a host with that many cores, each after the one-node case it is compared with.

    `worth`: how many cores `dilation: auto` may count on, where the host was found to carry less than they promise.
    """
    drafts = _drafts(scenario)
    baselines = _baselines(drafts)
    threads = max(1, cores // max(_ranks(cell.written) for cell in scenario.cells))
    by_id = {draft.id: draft for draft in drafts}
    # A dict keeps the first of each: a baseline moves up to where it is first needed, all else stays in order.
    order = dict.fromkeys(name for draft in drafts for name in (baselines[draft.id], draft.id))
    return _crowded([_case(scenario, by_id[name], baselines[name], threads, worth or float(cores)) for name in order])


def _ranks(written: Written) -> int:
    """How many training processes a cell has."""
    return sum(written.workload.ranks_on(written, f"n{number}") for number in range(written.size))


def _crowded(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Where real compute on one node is what others are compared with, it shares the host as the most of them do."""
    most: dict[str, int] = {}
    for case in cases:
        most[case.baseline] = max(most.get(case.baseline, 1), case.size)
    return tuple(
        replace(case, siblings=most.get(case.id, 1) - 1) if case.size == 1 and case.computes_real else case
        for case in cases
    )


def buildable(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The same cases. Raises UsageError where one has more nodes than a lab builds."""
    for case in cases:
        if case.size > MOST_BUILT:
            raise UsageError(
                f"case {case.id}: build its lab: it has {case.size} nodes, and a lab has at most {MOST_BUILT}; "
                "`rig plan` alone tells of larger ones, or leave it out with --only"
            )
    return tuple(cases)


def select(cases: Sequence[Case], only: str) -> tuple[Case, ...]:
    """The cases a glob names, and the one-node cases they refer to. Raises UsageError when it names none."""
    wanted = {case.id for case in cases if fnmatch.fnmatchcase(case.id, only)}
    if not wanted:
        raise UsageError(
            f"--only {only!r}: select cases: none matches; there are {', '.join(case.id for case in cases)}"
        )
    wanted |= {case.baseline for case in cases if case.id in wanted}
    return tuple(case for case in cases if case.id in wanted)


def first(cases: Sequence[Case], only: str) -> Case:
    """The first case that the glob itself names; one-node cases that only come along if nothing else is named.

    Raises UsageError when it names none.
    """
    named = [case for case in select(cases, only) if fnmatch.fnmatchcase(case.id, only)]
    return next((case for case in named if case.role == "case"), named[0])


def resolved(case: Case) -> dict[str, Any]:
    """A case with all that was decided for it, as plain data; a layer table of the rig's own by name.

    Of a change only what the cable then has unlike at first, since a trace may make a hundred thousand of them.
    """
    table = getattr(case.workload, "table", None)
    told = {id(table): table.name} if table and table.name in models.names() else {}
    document: dict[str, Any] = _data(replace(case, changes=()), told)
    links = {cable.name: cable.link for cable in case.cables} if case.changes else {}
    document["changes"] = [_told(change, links[change.cable]) for change in case.changes]
    return document


def _data(value: Any, told: dict[int, Any]) -> Any:
    """Plain data of a dataclass; what many share (`told`, by identity) is made once, and is not to be altered."""
    if is_dataclass(value):
        if id(value) not in told:
            told[id(value)] = {field.name: _data(getattr(value, field.name), told) for field in fields(value)}
        return told[id(value)]
    if isinstance(value, Mapping):
        return {key: _data(each, told) for key, each in value.items()}
    return [_data(each, told) for each in value] if isinstance(value, tuple | list) else value


def _told(change: Change, first: Link) -> dict[str, Any]:
    told: dict[str, Any] = {"cable": change.cable, "at": change.at, "step": change.step, "plugged": change.plugged}
    for way in WAYS:
        then, before = change.link.way(way), first.way(way)
        unlike = [key.name for key in fields(then) if getattr(then, key.name) != getattr(before, key.name)]
        told[way] = {name: getattr(then, name) for name in unlike}
        if "loss" in told[way]:
            told[way]["loss"] = _data(then.loss, {})
    return told


# ── names and baselines ──────────────────────────────────────────────────────────────────────────────
def _drafts(scenario: Scenario) -> list[_Draft]:
    cells: list[tuple[Cell, Role]] = [(_with_nodes(cell), "case") for cell in scenario.cells]
    have = {_work(cell.written) for cell, _ in cells if cell.written.size == 1}
    for cell in scenario.cells:
        if cell.written.workload.speeds_up and (work := _work(cell.written)) not in have:
            have.add(work)
            cells.append((_on_one_node(cell), "baseline"))
    names = _ids([cell.params for cell, _ in cells])
    return [_Draft(name, cell, role) for name, (cell, role) in zip(names, cells, strict=True)]


def _with_nodes(cell: Cell) -> Cell:
    return Cell({"nodes": cell.written.size, **cell.params}, cell.written)


def _on_one_node(cell: Cell) -> Cell:
    """The first node by itself: no other cluster, nothing between clusters, nothing that happens to links."""
    written = cell.written
    params = {path: value for path, value in cell.params.items() if path.partition(".")[0] not in AROUND}
    alone: dict[str, Any] = {"nodes": 1, "wan": None, "timeline": [], "background": []}
    if written.clusters:
        first = next(iter(written.clusters))
        alone |= {"nodes": None, "clusters": {first: ClusterKeys(nodes=1, link=written.clusters[first].link)}}
    return Cell({**params, "nodes": 1}, written.model_copy(update=alone))


def _work(written: Written) -> str:
    """What two cases share when one may be the other's baseline: the workload, and what the first node makes of it."""
    first = written.machines.get("n0")
    own = first.model_dump_json(include={"batch", "compute", "ranks"}) if first else ""
    shared = f"{written.threads} {sorted(written.env.items())}" if written.workload.computes_real else ""
    return written.workload.model_dump_json(exclude={"train"}) + own + shared


def _baselines(drafts: Sequence[_Draft]) -> dict[str, str]:
    """Case → the one-node case with the same workload that shares most of its swept values; the first of equals."""
    works = {draft.id: _work(draft.cell.written) for draft in drafts}
    one_node: dict[str, list[_Draft]] = {}
    for draft in drafts:
        if draft.cell.written.size == 1:
            one_node.setdefault(works[draft.id], []).append(draft)

    def nearest(draft: _Draft) -> str:
        if draft.cell.written.size == 1 or not draft.cell.written.workload.speeds_up:
            return draft.id
        params = draft.cell.params.items()
        same = one_node[works[draft.id]]
        return max(same, key=lambda other: sum(item in params for item in other.cell.params.items())).id

    return {draft.id: nearest(draft) for draft in drafts}


# ── names ────────────────────────────────────────────────────────────────────────────────────────────
def _ids(params: Sequence[Mapping[str, Any]]) -> list[str]:
    """Readable, unique names such as `nodes=4,rate=2.5gbit`."""
    paths = list(dict.fromkeys(path for each in params for path in each))
    labels = _labels([path for path in paths if not _follows(path, paths, params)])
    names: list[str] = []
    given: Counter[str] = Counter()
    for each in params:
        nodes_first = {"nodes": each["nodes"], **each}
        name = ",".join(f"{labels[path]}={_written(value)}" for path, value in nodes_first.items() if path in labels)
        given[name] += 1
        names.append(f"{name}~{given[name]}" if given[name] > 1 else name)
    return names


def _follows(path: str, paths: Sequence[str], params: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another swept key settles what this one is, so that a name need not tell it: one of the same group that
    stands before it, as blocks have a model and its speed; or any, where it is only what is judged.
    """
    judged = path.partition(".")[0] == "expect"
    group = path.rpartition(".")[0]
    before = paths if judged else [other for other in paths[: paths.index(path)] if other.rpartition(".")[0] == group]
    values = [repr(each.get(path)) for each in params]
    return len(set(values)) > 1 and any(
        len(set(zip(values, others, strict=True))) == len(set(others))
        for others in ([repr(each.get(other)) for each in params] for other in before if other != path)
    )


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """The last word of each path, or the whole path where two end alike."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: path if last.count(word) > 1 else word for path, word in zip(paths, last, strict=True)}


def _written(value: Any) -> str:
    """A swept value as part of a name: also a file's name and a pattern of `--only`, so no space, slash or bracket."""
    if isinstance(value, dict):
        return "+".join(f"{key}:{_written(part)}" for key, part in value.items())
    if isinstance(value, list):
        return "+".join(map(_written, value))
    return re.sub(r"[^A-Za-z0-9.:%_-]+", "_", str(value))[:60]


# ── one case ─────────────────────────────────────────────────────────────────────────────────────────
def _case(scenario: Scenario, draft: _Draft, baseline: str, threads: int, worth: float) -> Case:
    written, folder = draft.cell.written, scenario.path.parent
    bare, later = cables(written), changes(written, folder)
    every = [cable.link for cable in bare] + [change.link for change in later]
    first = {id(link): link for link in every}  # thousands of cables share a few
    links = set(first.values())
    k, need = dilation(written, links, worth), needs(at_most(bare, later))
    whole = provided(links, k, need)
    shared = {which: whole[link] for which, link in first.items()}
    built = tuple(Cable(cable.name, cable.start, cable.end, shared[id(cable.link)]) for cable in bare)
    return Case(
        id=draft.id,
        params=draft.cell.params,
        role=draft.role,
        baseline=baseline,
        nodes=_nodes(written, built[: written.size], threads, folder),
        workload=written.workload.resolve(folder),
        tcp=tcp(written, whole.values(), need[1]),
        dilation=k,
        repeats=written.repeats,
        expect=_expect(written),
        gpu=_gpu(written),
        env=dict(written.env),
        timeout=written.timeout,
        switches=switches(written),
        wans=built[written.size :],
        shaper=written.shaper,
        seed=written.seed,
        changes=tuple(replace(change, link=shared[id(change.link)]) for change in later),
        background=_background(written, built),
        limits=ProbeLimits(**dict(written.probe)),
    )


def _nodes(written: Written, built: Sequence[Cable], threads: int, folder: Path) -> tuple[Node, ...]:
    patterns: dict[str, Node] = {}
    nodes = []
    for number, cable in enumerate(built):
        group = cable.name if cable.name in written.machines else ""  # all others compute alike
        if group not in patterns:
            patterns[group] = _node(written, cable, threads, folder)
        one, address = patterns[group], str(FIRST_ADDRESS + number)
        nodes.append(Node(cable.name, address, cable.link, one.threads, one.batch, one.pace, cable.end, one.ranks))
    return tuple(nodes)


def _node(written: Written, cable: Cable, threads: int, folder: Path) -> Node:
    return Node(
        name=cable.name,
        address=str(FIRST_ADDRESS),
        link=cable.link,
        threads=written.threads or threads,
        batch=written.workload.batch_on(written, cable.name),
        pace=written.workload.pace_on(written, cable.name, folder),
        switch=cable.end,
        ranks=written.workload.ranks_on(written, cable.name),
    )


def _gpu(written: Written) -> Literal["auto", "required", "none"]:
    """A workload that says cuda cannot do without one."""
    return "required" if getattr(written.workload, "device", None) == "cuda" else written.gpu


def _expect(written: Written) -> Mapping[str, Fraction]:
    given = {name: getattr(written.expect, name) for name in type(written.expect).model_fields}
    return {METRICS.get(name, name): tolerance for name, tolerance in given.items() if tolerance is not None}


def _background(written: Written, built: Sequence[Cable]) -> tuple[Background, ...]:
    return tuple(
        Background(cable.name, way, keys.rate)
        for keys in written.background
        for cable in built
        for way in ways(keys.direction)
        if keys.rate and concerns(keys, cable.name)
    )
