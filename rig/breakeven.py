"""Where a case breaks even: the bandwidth, the accumulation and the number of nodes at which things turn. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import sqrt

from rig import whatif
from rig.formulas import timing
from rig.formulas.predict import predict
from rig.formulas.scaling import breakeven_bandwidth
from rig.model import Case
from rig.units import Rate

TARGET = 0.9  # efficiency that counts as scaling
SLOWEST, FASTEST = 1e6, 1e12  # bit/s, between which a rate is looked for
CLOSE = 1.005  # and how near, as a factor
MOST_ACCUMULATED = 1024
MOST_NODES = 256
NEARLY = 1.05


@dataclass(frozen=True)
class BreakEven:
    """What one thing would have to be, everything else as it is; None where nothing within reach does it."""

    hidden: float  # bit/s of every cable: the bytes of a step take as long as the backward pass
    rate: float | None  # bit/s of every node's cable, for TARGET
    accumulate: int | None  # micro-batches a step, for TARGET
    nodes: int  # that share the global batch of now and are done first: more of them take longer for a step
    nodes_bound: bool  # more could not be looked at: each has one sample, or there are MOST_NODES
    nodes_enough: int  # the fewest that are done within NEARLY of those


def break_even(case: Case) -> BreakEven | None:
    """The figures of a case whose times can be predicted, of two nodes or more; None for others."""
    if case.size == 1 or "step_time" not in predict(case):
        return None
    return BreakEven(_hidden(case), _rate(case), _accumulated(case), *_fastest(case))


def _efficiency(case: Case) -> float:
    return predict(case)["efficiency"].value


def _hidden(case: Case) -> float:
    """As `breakeven_bandwidth` has it, behind the slowest node's backward pass of one micro-batch. Necessary and not
    sufficient: the last bucket has nothing left to hide behind.
    """
    backward = max(node.pace.backward for node in case.nodes if node.pace)
    size = sum(tensor.nbytes for tensor in whatif.training(case).table.parameters)
    link = case.nodes[0].link
    return breakeven_bandwidth(size, case.size, backward, timing.goodput(1.0, link.mtu, link.framing))


def _rate(case: Case) -> float | None:
    """By halving a span of rates; efficiency never falls when links get faster."""

    def enough(rate: float) -> bool:
        return _efficiency(whatif.at_rate(case, Rate(rate))) >= TARGET

    low, high = SLOWEST, FASTEST
    if not enough(high):
        return None
    while high / low > CLOSE:
        middle = sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _accumulated(case: Case) -> int | None:
    """The least number of micro-batches, by halving; efficiency never falls when there are more."""

    def enough(count: int) -> bool:
        return _efficiency(whatif.accumulate(case, count)) >= TARGET

    low, high = 0, MOST_ACCUMULATED
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _fastest(case: Case) -> tuple[int, bool, int]:
    """The last three of BreakEven. Computing is taken to divide evenly, down to a sample.

    A node's share of it falls as 1/N and what is sent grows towards 2S, so from two nodes on there is one best:
    doubling finds its neighbourhood, thirds the place. One node, which sends nothing, stands apart.
    """
    most = min(MOST_NODES, whatif.samples(case))

    @cache
    def step(count: int) -> float:
        return predict(whatif.spread(case, count))["step_time"].value

    near = min((2**power for power in range(1, most.bit_length())), key=step, default=1)
    best = min((1, _least(step, max(1, near // 2), min(most, 2 * near))), key=step)
    if step(1) <= NEARLY * step(best):
        return best, best == most, 1
    enough = bisect_left(range(2, best), True, key=lambda count: step(count) <= NEARLY * step(best))
    return best, best == most, 2 + enough


def _least(of: Callable[[int], float], low: int, high: int) -> int:
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if of(left) <= of(right) else (left, high)
    return min(range(low, high + 1), key=of)
