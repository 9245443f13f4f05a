"""How much later than the others' one rank's last gradient is, from the moments that the ranks' clocks saw. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

Step = Mapping[str, Any]  # one row of raw["steps"]: one rank, one step, real seconds on the orchestrator's clock


@dataclass(frozen=True)
class Lag:
    """Of the rank that is latest, mean over steps (real seconds)."""

    rank: int
    node: str
    seconds: float
    waited: float  # from the others' last gradient to their last bucket's end


def latest(steps: Sequence[Step]) -> Lag | None:
    """The lag of the rank that is latest on average, over steps after warm-up that every rank has; None without any,
    or with one rank. It counts from the median of the others: two slow ones of four do not excuse each other.
    """
    moments: dict[tuple[int, int], dict[int, Step]] = defaultdict(dict)
    counted = [step for step in steps if not step["warmup"]]
    for step in counted:
        moments[step["repeat"], step["step"]][step["rank"]] = step
    nodes = {step["rank"]: str(step["node"]) for step in counted}
    whole = [ranks for ranks in moments.values() if len(ranks) == len(nodes) > 1]
    if not whole:
        return None
    lags = {rank: fmean(_later(ranks, rank) for ranks in whole) for rank in nodes}
    rank = max(lags, key=lambda rank: lags[rank])
    return Lag(rank, nodes[rank], lags[rank], fmean(_waited(ranks, rank) for ranks in whole))


def _later(ranks: Mapping[int, Step], rank: int) -> float:
    others = median(step["backward_end"] for other, step in ranks.items() if other != rank)
    return float(ranks[rank]["backward_end"] - others)


def _waited(ranks: Mapping[int, Step], rank: int) -> float:
    """What the others wait after their last gradient: the median of them."""
    return float(median(_waits(step) for other, step in ranks.items() if other != rank))


def _waits(step: Step) -> float:
    last = max((bucket["end"] for bucket in step["buckets"]), default=step["backward_end"])
    return float(last - step["backward_end"])
