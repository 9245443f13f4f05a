"""Jitter as netem draws it: one entry of a table of quantiles, drawn uniformly, times the jitter.

The tables are the definitions of iproute2's generators (netem/normal.c, pareto.c, paretonormal.c, from NIST Net),
computed. Both shapers use them: netem is sent the table, the delay line draws from it.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

SCALE = 8192  # NETEM_DIST_SCALE: an entry of 8192 moves a packet by one jitter
SIZE = 4096
_LEAST, _MOST = -(2**15), 2**15 - 1  # an entry is a signed 16-bit number
_SHAPE = 3  # of the Pareto distribution


@cache
def table(distribution: str) -> tuple[int, ...]:
    """The quantiles of `normal`, `pareto` or `paretonormal`, ascending, scaled; mean 0.

    Normal has a standard deviation of one jitter, Pareto of 1.15 less what its cut-off tail takes. Raises KeyError
    for any other name, `uniform` too, which needs no table.
    """
    quantile = {"normal": _normal, "pareto": _pareto, "paretonormal": _paretonormal}[distribution]
    return tuple(_clipped(quantile(rank)) for rank in range(SIZE))


def _normal(rank: int) -> float:
    """The middle of each of SIZE equal shares of probability, so that the table is symmetric."""
    return NormalDist().inv_cdf((rank + 0.5) / SIZE)


def _pareto(rank: int) -> float:
    """(1 − p)^(−1/3), less its mean 3/2, times 4/3, as in pareto.c."""
    value: float = (1 - rank / SIZE) ** (-1 / _SHAPE)
    return (value - 1.5) * 4 / 3


def _paretonormal(rank: int) -> float:
    """A quarter normal, three quarters Pareto, quantile by quantile; each is cut to 16 bits first."""
    return (_clipped(_normal(rank)) + 3 * _clipped(_pareto(rank))) / 4 / SCALE


def _clipped(value: float) -> int:
    return max(_LEAST, min(_MOST, round(value * SCALE)))
