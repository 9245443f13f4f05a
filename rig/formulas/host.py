"""What a machine itself adds to communication, from its calibration (`rig calibrate`); real seconds, undilated."""

from __future__ import annotations

from rig.model import Host


def alpha(host: Host, nodes: int) -> float:
    """Seconds of an all-reduce over so many ranks on that machine whose bytes do not matter.

    A straight line in N − 1 from one measured N to the next, from nothing at N = 1 on; beyond the last the line goes
    on, and never falls. Why N − 1: gloo's ring sends 2(N−1) messages a rank, one waiting for the other; where ranks
    share cores each of these waits for others' too, so that the line becomes steeper from point to point.
    Fit for interpolation; twice the largest measured N is as far as it has been looked at.
    """
    points = [(1, 0.0), *sorted((ranks, seconds) for ranks, seconds in host.alpha.items() if ranks > 1)]
    if len(points) == 1 or nodes == 1:
        return 0.0
    upper = next((place for place in range(1, len(points)) if points[place][0] >= nodes), len(points) - 1)
    (left, low), (right, high) = points[upper - 1], points[upper]
    slope = (high - low) / (right - left)
    if nodes > right:
        return high + max(0.0, slope) * (nodes - right)
    return low + slope * (nodes - left)


def host_time(host: Host, payload: float, nodes: int) -> float:
    """Seconds that machine needs for what `nodes` ranks send, `payload` bytes each, were the links no limit.

    All ranks' bytes pass through the same cores, so N times one rank's, at the measured seconds a byte. A bound from
    below on the step's time, not a part of it: the host works while bytes are on the links.
    """
    return host.reduce * payload * nodes if nodes > 1 else 0.0
