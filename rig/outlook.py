"""`rig plan`: the cases, what would be built for each, and what is predicted, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from rig import measure
from rig import outlook_network as network
from rig.errors import RecordError, UsageError
from rig.fabric import shape
from rig.formulas import timing
from rig.formulas.confidence import bounded
from rig.formulas.limits import limit
from rig.formulas.predict import predict
from rig.model import WAYS, Case, Direction, Host, Link, Phases
from rig.outlook_cases import Expected, text
from rig.plan import resolved
from rig.provision import load
from rig.record import plain

if TYPE_CHECKING:
    from rich.console import Group

Known = Mapping[str, Phases]  # one-node case → where its steps spent their time, from an earlier run


@dataclass(frozen=True)
class Basis:
    """What predictions rest on besides the case itself."""

    known: Known = field(default_factory=dict)
    host: Host | None = None  # its calibration, where there is one
    worth: float = inf  # how many cores this machine is worth (rig.lab.ceiling)


def expected(case: Case, basis: Basis) -> Expected:
    """Everything that is predicted for a case."""
    share = load(case, basis.worth)
    found = predict(case, basis.known.get(case.baseline), basis.host)
    return Expected(case, bounded(case, found, share), limit(case, found, share))


def known_from(record: Mapping[str, Any], cases: Sequence[Case]) -> dict[str, Phases]:
    """What a record's one-node cases tell about real compute, by the id of the case here that does the same work.

    Raises UsageError when none does, RecordError when the record is damaged.
    """
    try:
        did = {case["id"]: _work(case) for case in record["scenario"]["resolved"]["cases"]}
        told = {
            case["id"]: measure.phases(case["raw"]["steps"], case["raw"]["notes"])
            for case in record["cases"]
            if case["params"]["nodes"] == 1
            and case["status"] in ("pass", "fail")
            and case["raw"]["steps"][0]["buckets"]
        }
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"--from: read its one-node cases: {error!r}; the record is damaged") from error
    mine = {case.id: _work(plain(resolved(case))) for case in cases if case.size == 1}
    known = {name: told[other] for name, work in mine.items() for other in told if did.get(other) == work}
    if not known:
        raise UsageError("--from: look for the same work on one node: that run has none; run this scenario's own first")
    return known


def _work(case: Mapping[str, Any]) -> Any:
    node = case["nodes"][0]
    return case["workload"], node["batch"], node["threads"], node.get("ranks", 1)


def document(cases: Sequence[Case], basis: Basis) -> str:
    """The plan as JSON, a case a line: all that was resolved, what the kernel will be told, all predictions with their
    inputs. Python indents a hundred times as slowly as it writes, and ten thousand nodes are 15 MB.
    """
    entries = ",\n".join(json.dumps(entry(expected(case, basis)), allow_nan=False) for case in cases)
    return f'{{\n"cases": [\n{entries}\n]\n}}'


def entry(found: Expected) -> dict[str, Any]:
    """One case as JSON data."""
    case = found.case
    told: dict[int, dict[str, Any]] = {}
    for cable in case.cables:
        if id(cable.link) not in told:  # thousands of cables share a few links
            told[id(cable.link)] = plain(_built(cable.link, case.dilation))
    predicted = {name: asdict(figure) for name, figure in found.figures.items()}
    built = {cable.name: told[id(cable.link)] for cable in case.cables}
    return {**resolved(case), "built": built, "predicted": plain(predicted), "bottleneck": found.limit}


def _built(link: Link, dilation: int) -> dict[str, Any]:
    return {
        "kernel": {way: _told(link, way, dilation) for way in WAYS},
        "goodput": timing.goodput(link.up.rate, link.mtu, link.framing),
    }


def _told(link: Link, way: Direction, dilation: int) -> dict[str, Any]:
    """What the kernel's token bucket is told, and what netem or the delay line is, where one is needed."""
    impairment = link.way(way)
    told: dict[str, Any] = shape.tbf(impairment, link, dilation).document()
    return {**told, "transit": shape.transit(impairment, dilation).document()} if impairment.in_transit else told


def table(name: str, cases: Sequence[Case], basis: Basis) -> Group:
    """The plan for a terminal of 80 columns: the cases, then the network that would be built."""
    from rich.console import Group

    return Group(text(name, [expected(case, basis) for case in cases]), *network.tables(cases))
