"""What a probe of a cable must see if the cable is what was asked, and whether it saw it. Pure; emulated units.

Delays are those of the very table the shapers draw from, cut at zero as they cut it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, prod, sqrt
from statistics import median

from rig.fabric.quantiles import SCALE, table
from rig.formulas import chance
from rig.formulas.timing import goodput
from rig.model import ETHERNET_HEADER, ETHERNET_WIRE, Direction, Impairment, Link, ProbeLimits
from rig.node.datagrams import spread

Figures = Mapping[str, float]

IP_UDP_HEADERS = 28  # IPv4 20, UDP 8 (bytes)
UNIFORM = tuple(range(-SCALE, SCALE + 1, 16))  # as many shares of one jitter to either side
STRIDE = 1597
SIGMAS = 4.0  # that chance alone may move a median or a spread by
OF_MEDIAN = 1.2533  # the standard error of a median, against that of a mean, for a normal distribution: √(π/2)
LEAST_SLACK = 0.2e-3  # s of real time that an RTT may be too short by
LEAST_LEAD = 1e-3  # s: with less to overtake by, or with jitter, it cannot be told which packets overtook others
MOST_EARLY = 0.4  # of round trips with an overtaking packet in them: beyond it their median says nothing


def due(link: Link, way: Direction, shaper: str) -> dict[str, float]:
    """What a direction must show: rates in bit/s, spans in s, shares from 0 to 1.

    rate: on the wire. goodput: TCP payload, where that measures the rate (see steady); else udp: payload of packets
    that are sent faster than the cable takes them. netem acts before the bucket, so what arrives has the bucket's
    rate; the delay line acts behind it. rtt: the median of both ways together; rtt_jitter, jitter: half the span of
    the middle 68 % (one sigma of a normal distribution) of round trips, and of times on this way. loss: lost, or
    dropped by the receiver as damaged; a loss is drawn against a packet and its copy together. duplicate, reorder: of
    those that arrive. inflation: of the variance of counted losses.
    """
    does = link.way(way)
    lost, damaged, copied = does.loss.mean, does.corrupt.ratio, does.duplicate.ratio
    figures = {"rate": float(does.rate), "delay": does.delay.seconds, "jitter": spread(_delays(does))}
    if steady(link):
        figures["goodput"] = goodput(does.rate, link.mtu, link.framing)
    else:
        arrive = (1 - damaged) * (1.0 if shaper == "netem" else (1 - lost) * (1 + copied))
        figures["udp"] = does.rate * (link.mtu - IP_UDP_HEADERS) / (link.mtu + overhead(link)) * arrive
    figures["loss"] = 1 - (1 - lost * (1 - copied)) * (1 - damaged)
    figures["duplicate"] = copied * (1 - lost)
    if does.reorder and does.delay.seconds >= LEAST_LEAD and not does.jitter:
        figures["reorder"] = does.reorder.ratio
    if (inflation := chance.inflation(does.loss)) > 1:
        figures["inflation"] = inflation
    return figures | _round_trips(link)


def _round_trips(link: Link) -> dict[str, float]:
    ways = (link.up, link.down)
    if 1 - prod(1 - way.reorder.ratio for way in ways) > MOST_EARLY:
        return {}
    up, down = map(_delays, ways)
    figures = {"rtt": median(_sums(up, down))}
    if swing := hypot(spread(up), spread(down)):
        figures["rtt_jitter"] = swing
    return figures


def _sums(up: Sequence[float], down: Sequence[float]) -> list[float]:
    """Delays of both ways together: each of the longer list with another of the other, by a stride that is prime."""
    if len(up) < len(down):
        up, down = down, up
    return [one + down[number * STRIDE % len(down)] for number, one in enumerate(up)]


def steady(link: Link) -> bool:
    """Whether TCP goodput measures the rate: nothing is lost, damaged, doubled or out of order, either way."""
    return not any(way.jitter or way.acts_on_packets for way in (link.up, link.down))


def overhead(link: Link) -> int:
    """Bytes a packet takes on the cable beside itself."""
    return ETHERNET_WIRE if link.framing == "ethernet" else ETHERNET_HEADER


def _delays(does: Impairment) -> Sequence[float]:
    """Every time on the way that is drawn with equal probability (s)."""
    delay, jitter = does.delay.seconds, does.jitter.seconds
    if not jitter:
        return [delay]
    shares = UNIFORM if does.distribution == "uniform" else table(does.distribution)
    return [max(0.0, delay + jitter * share / SCALE) for share in shares]


# ── whether it was seen ──────────────────────────────────────────────────────────────────────────────
def misses(asked: Figures, measured: Figures, limits: ProbeLimits, dilation: int) -> list[str]:
    """The names of those measured figures that are not what was asked, within the limits. What was not measured, or
    cannot be judged on this link, is passed over.
    """
    found = [name for name in RATES if name in measured and _rate_off(name, asked, measured, limits)]
    if "rtt" in asked and "rtt" in measured and _rtt_off(asked, measured, limits, dilation):
        found.append("rtt")
    if asked.get("jitter") and "jitter" in measured and _jitter_off(asked, measured, limits, dilation):
        found.append("jitter")
    return found + [name for name in SHARES if name in measured and _share_off(name, asked, measured, limits)]


RATES = ("goodput", "goodput_all", "udp")
SHARES = ("loss", "duplicate", "reorder")


def _rate_off(name: str, asked: Figures, measured: Figures, limits: ProbeLimits) -> bool:
    against = asked.get(name.removesuffix("_all"))
    return against is not None and abs(measured[name] / against - 1) > limits.goodput.ratio


def _rtt_off(asked: Figures, measured: Figures, limits: ProbeLimits, dilation: int) -> bool:
    """The hosts' own work may add to a round trip, and hardly take from it."""
    off, share = measured["rtt"] - asked["rtt"], limits.rtt.ratio * asked["rtt"]
    by_chance = 0.0
    if swing := asked.get("rtt_jitter"):
        by_chance = SIGMAS * OF_MEDIAN * swing / sqrt(measured["round_trips"])
    above = max(share, limits.slack.seconds / dilation) + by_chance
    below = max(share, LEAST_SLACK / dilation) + by_chance
    return off > above or -off > below


def _jitter_off(asked: Figures, measured: Figures, limits: ProbeLimits, dilation: int) -> bool:
    """The middle 68 % of a normal distribution have a standard error of about 1.2 sigma/√n for half their span."""
    allowed = max(limits.rtt.ratio * asked["jitter"], limits.slack.seconds / dilation)
    by_chance = SIGMAS * 1.2 * asked["jitter"] / sqrt(measured["packets"])
    return abs(measured["jitter"] - asked["jitter"]) > allowed + by_chance


def _share_off(name: str, asked: Figures, measured: Figures, limits: ProbeLimits) -> bool:
    """Lost packets are of those sent, the others of those that arrived."""
    if name not in asked:
        return False
    trials = measured["packets"] * (1.0 if name == "loss" else 1 - measured["loss"])
    inflation = asked.get("inflation", 1.0) if name == "loss" else 1.0
    return not chance.likely(measured[name] * trials, trials, asked[name], limits.confidence.ratio, inflation)
