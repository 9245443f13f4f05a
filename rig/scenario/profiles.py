"""Public measurements of long-distance links, by name, for `profile:` of a `wan:`."""

from __future__ import annotations

from collections.abc import Mapping

from rig.units import Duration, Rate

Figures = tuple[Rate, Duration]  # one stream's throughput, and the round trip there and back


def _figures(rate: str, rtt: str) -> Figures:
    return Rate.parse(rate), Duration.parse(rtt)


# Isenko, Mayer, Jacobsen: How Can We Train Deep Learning Models Across Clouds and Continents? (arXiv 2306.03163):
# virtual machines in one public cloud, iperf and ping between its regions on four continents, and inside one.
PAIRS: Mapping[str, Figures] = {
    "us-eu": _figures("0.21gbit", "103ms"),
    "us-asia": _figures("0.13gbit", "157ms"),
    "us-australia": _figures("0.12gbit", "176ms"),
    "eu-asia": _figures("0.08gbit", "253ms"),
    "eu-australia": _figures("0.07gbit", "272ms"),
    "asia-australia": _figures("0.16gbit", "131ms"),
    "in-region": _figures("6.9gbit", "0.7ms"),
}
MATRIX = "arxiv-2306.03163"  # all of it: each pair is looked up by its clusters' names
NAMES = (MATRIX, *PAIRS)


def figures(profile: str, one: str, other: str) -> Figures | None:
    """What a profile says of the link between two clusters; None where it says nothing."""
    if profile != MATRIX:
        return PAIRS.get(profile)
    return PAIRS.get(f"{one}-{other}") or PAIRS.get(f"{other}-{one}")
