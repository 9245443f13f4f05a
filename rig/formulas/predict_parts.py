"""What predictions of every kind of workload have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rig.formulas.host import alpha
from rig.model import Case, Host
from rig.results import Predicted

Predictions = dict[str, Predicted]


def unknown(case: Case) -> str:
    """Why no time of this case is predicted, in a word, or nothing: what TCP makes of a cable that loses packets, or
    lets them overtake one another, is not modelled, nor is a cable that changes, nor NCCL but for its ring without
    delay. What is sent is known all the same.
    """
    if case.size == 1:
        return ""
    ways = [way for cable in case.cables for way in (cable.link.up, cable.link.down)]
    carried_by_nccl = case.devices.backend == "nccl"
    reasons = {
        "timeline": bool(case.changes),
        "loss": any(way.loss.mean for way in ways),
        "corrupt": any(way.corrupt for way in ways),
        "reorder": any(way.reorder for way in ways),
        "jitter": any(way.jitter for way in ways),
        "NCCL's choice": carried_by_nccl and case.devices.algorithm == "auto",
        "NCCL's tree": carried_by_nccl and case.devices.algorithm == "tree",
        "NCCL over a delay": carried_by_nccl and any(way.delay for way in ways),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def added(case: Case, host: Host | None) -> dict[str, Any]:
    """What the host itself adds: no all-reduce is shorter than `least` (s, emulated), which is the host's `alpha`
    (s, real) over the dilation. Beside the bytes' time, not on top of it: it works while they are on the links.
    """
    if host is None or case.size == 1:
        return {"least": 0.0}
    seconds = alpha(host, case.size)
    return {"least": seconds / case.dilation, "alpha": seconds, "dilation": case.dilation, "host": host.cpu}


def told(adds: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as inputs of a prediction."""
    return {"host": dict(adds)} if "alpha" in adds else {}
