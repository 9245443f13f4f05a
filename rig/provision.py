"""What is derived for a case's cables: how far to slow time down, buckets, queues and socket buffers. Pure.

A derived figure is where nothing was written: a burst or a queue of 0 in what the scenario resolved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil

from rig.fabric.shape import framing_factor
from rig.model import BUFFER_OVERHEAD, Cable, Case, Impairment, Link, Shaper, Tcp
from rig.scenario.checks import MAX_DILATION, MOST_BUFFER
from rig.scenario.links import KERNEL_RATE, MOST_BYTES
from rig.scenario.written import Written
from rig.topology import extremes
from rig.units import Size

HOST_RATE = 1_250_000_000  # bit/s that one core carries with step times still within 0.3 % (docs: dilation)
TRANSIT_RATE = 1_000_000_000  # the same where packets are held back: one process of the host's touches each of them
PACKET_RATE = 300_000_000  # the same where each travels alone, since in a super-packet none has a fate of its own
MOST_CORES = 2.0  # that count where the delay line may carry all: it is one process, and another core does the rest

LEAST_BURST = 128 * 2**10  # below the largest GSO super-packet (64 KiB) a token bucket loses packets
BURST_TIME = 0.5e-3  # s of the applied rate, so that timer ticks cost no throughput
LEAST_QUEUE = 256 * 2**10
QUEUE_TIME = 20e-3  # s of the emulated rate, what a small switch port holds
LEAST_BUFFER = 16 * 2**20


def dilation(written: Written, links: Collection[Link], worth: float) -> int:
    """k as written, or for `auto` the least power of two that the host can carry and the kernel can count.

    N · rate ÷ k ≤ what the host's cores carry: above it the ranks' own work disturbs what is measured. `links`:
    all that any cable ever is; `worth`: how many cores the host counts for.
    """
    if written.dilation != "auto":
        return written.dilation
    if written.workload.computes_real:
        return 1  # real computing cannot be slowed down to match
    fastest = max(way.rate for way in _ways(links))
    host = fastest * written.size / capacity(links, written.shaper, worth)
    kernel = max(way.rate * framing_factor(link.mtu, link.framing) for link in links for way in (link.up, link.down))
    k = 1
    while k < max(host, kernel / KERNEL_RATE) and k < MAX_DILATION:
        k *= 2
    return k


def capacity(links: Collection[Link], shaper: Shaper, worth: float) -> float:
    """What a host worth so many cores carries in all, bit/s, by what its most laborious link does to packets."""
    if any(way.acts_on_packets for way in _ways(links)):
        return PACKET_RATE * min(worth, MOST_CORES)
    if shaper != "auto" or any(way.in_transit for way in _ways(links)):
        return TRANSIT_RATE * min(worth, MOST_CORES)
    return HOST_RATE * worth


def load(case: Case, worth: float) -> float:
    """What all nodes send at full rate, slowed down, over what a host worth so many cores carries; 1 is all of it."""
    links = {id(node.link): node.link for node in case.nodes} | {id(wan.link): wan.link for wan in case.wans}
    fastest = max(way.rate for way in _ways(links.values()))
    return fastest * case.size / case.dilation / capacity(list(links.values()), case.shaper, worth)


def _ways(links: Iterable[Link]) -> list[Impairment]:
    return list(chain.from_iterable((link.up, link.down) for link in links))


def needs(cables: Sequence[Cable]) -> tuple[float, float]:
    """The longest RTT of any path (s), and the largest bandwidth-delay product (bits)."""
    found = extremes(cables)
    rate, rtt = found.fullest
    return found.rtt, rate * rtt


def provided(links: Iterable[Link], dilation: int, need: tuple[float, float]) -> dict[Link, Link]:
    """Each link with a bucket and a queue where it has none; `need` as `needs` has it."""
    rtt, product = need

    def whole(way: Impairment) -> Impairment:
        return _provided(way, dilation, min(product, way.rate * rtt))

    return {link: replace(link, up=whole(link.up), down=whole(link.down)) for link in links}


def _provided(way: Impairment, dilation: int, in_flight: float) -> Impairment:
    """One TCP stream fills a path when the queue of its slowest link holds what is in flight (bits)."""
    burst = way.burst or max(LEAST_BURST, ceil(way.rate / dilation * BURST_TIME / 8))
    queue = way.queue or max(LEAST_QUEUE, 2 * burst, ceil(way.rate * QUEUE_TIME / 8), ceil(in_flight / 8))
    return replace(way, burst=Size(burst), queue=Size(min(queue, MOST_BYTES)))


def tcp(written: Written, links: Iterable[Link], product: float) -> Tcp:
    """Socket buffers that hold what the longest path (`product` bits) and the deepest queue do, and their overhead."""
    held = BUFFER_OVERHEAD * (ceil(product / 8) + max(way.queue for way in _ways(links)))
    buffer = written.tcp.buffer or Size(min(MOST_BUFFER, max(LEAST_BUFFER, held)))
    return Tcp(written.tcp.congestion, buffer, written.tcp.rto_min)
