"""What is wrong with a cell's network though each key alone is right: found, allowed, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from rig.fabric.shape import framing_factor
from rig.model import ETHERNET_HEADER, WAYS, Change, Direction
from rig.scenario.fields import MISSING, hint
from rig.scenario.links import KERNEL_RATE, LEAST_RATE, MOST_BYTES, MOST_NODES
from rig.scenario.moments import altered
from rig.scenario.network import Source, cables, node_source, node_sources, wan_pairs, wan_sources
from rig.scenario.profiles import MATRIX, figures
from rig.scenario.reading import shown
from rig.scenario.timeline import background_complaints, timeline_complaints
from rig.scenario.workloads import KEY, Complaint, Surroundings
from rig.topology import at_most, extremes
from rig.units import Duration, Rate, Size

if TYPE_CHECKING:
    from rig.scenario.written import Written

MAX_DILATION = 1024
MOST_DELAY = Duration(100 * 10**9)  # real time; netem counts 32 bits of 64 ns, which is 274 s, and jitter comes on top
MOST_BUFFER = 2**31 - 1  # bytes; tcp(7): a signed 32-bit count
SUPER_PACKET = 2**16 + ETHERNET_HEADER  # the largest a sender hands down at once: GSO_LEGACY_MAX_SIZE, and its header
LEAST_DEEP, CREDIT_TIME = 256 * 2**10, 5e-3  # bytes, and s of the rate: what a bucket may hold
_TOTAL = 10**9  # parts per billion


def network_complaints(written: Written, around: Surroundings) -> Iterator[Complaint]:
    """Clusters first, then every link as it is and becomes, then the paths that all of it makes."""
    found = list(_cluster_complaints(written))
    every = [*_sources(written), *altered(written, around.folder)]
    single = any(source.impairment(way).acts_on_packets for source in every for way in WAYS)
    for source in every:
        found += _rtt_complaints(source)
        for direction in WAYS:
            found += _rate_complaints(written, source, direction)
            found += _bucket_complaints(source, direction, single)
            found += _transit_complaints(written, source, direction)
    found += _mtu_complaints(every)
    found += timeline_complaints(written, around)
    found += background_complaints(written, around)
    yield from found
    if not found:
        yield from _path_complaints(written, every)


def _sources(written: Written) -> list[Source]:
    """Each different link once: a plain node of each cluster, the machines, those between clusters."""
    machines = [node_source(written, node) for node in written.machines]
    plain = [source for node, source in node_sources(written).items() if node not in written.machines]
    every = (*plain, *machines, *wan_sources(written).values())
    return list({id(source.groups): source for source in reversed(every)}.values())[::-1]  # the first of those alike


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────────
def _cluster_complaints(written: Written) -> Iterator[Complaint]:
    if not written.clusters:
        if written.nodes is None:
            yield ("nodes",), MISSING
        if written.wan is not None:
            yield ("wan", KEY), "joins clusters, and there are none; write clusters: {us: {nodes: 2}, eu: {nodes: 2}}"
        return
    if written.nodes is not None:
        yield ("nodes", KEY), "stands beside clusters, whose own nodes are counted; leave it out"
    elif written.size > MOST_NODES:
        yield ("clusters", KEY), f"their nodes make {written.size}, and at most {MOST_NODES} are allowed"
    known = list(_wan_complaints(written))
    yield from known or _unreached(written)


def _wan_complaints(written: Written) -> Iterator[Complaint]:
    seen: dict[frozenset[str], str] = {}
    for loc, one, other, keys in wan_pairs(written):
        unknown = [name for name in (one, other) if name not in written.clusters]
        for name in unknown:
            yield (*loc, "between"), f"{shown(name)} is no cluster{hint(name, written.clusters)}"
        pair = frozenset((one, other))
        if pair in seen:
            yield (*loc, "between"), f"{one} and {other} are joined already, by {seen[pair]}; keep one of the two"
        seen[pair] = ".".join(loc)
        if keys.profile and not unknown and figures(keys.profile, one, other) is None:
            text = f"{MATRIX} says nothing of {one} and {other}; its places are us, eu, asia and australia"
            yield (*loc, "profile"), text


def _unreached(written: Written) -> Iterator[Complaint]:
    """Clusters that no way leads to from the first."""
    first, *others = written.clusters
    reached, before = {first}, 0
    pairs = [(one, other) for _, one, other, _ in wan_pairs(written)]
    while len(reached) > before:
        before = len(reached)
        reached |= {name for pair in pairs if reached & set(pair) for name in pair}
    for name in others:
        if name not in reached:
            way_out = f"such as {{between: [{first}, {name}], rate: 200mbit, rtt: 20ms}}"
            yield ("wan",), f"nothing joins {name} to {first}; write a link between them, {way_out}"


# ── one link ─────────────────────────────────────────────────────────────────────────────────────────
def _rtt_complaints(source: Source) -> Iterator[Complaint]:
    for loc, keys in source.groups:
        rtt = keys.rtt
        if rtt is None:
            continue
        if any(way is not None and way.delay is not None for way in (keys, keys.up, keys.down)):
            yield (*loc, "rtt"), f"{rtt} stands beside a delay; write one of the two"
        if rtt % source.hops:
            text = f"{rtt} does not divide into {source.hops} one-way delays of whole nanoseconds; write delay"
            yield (*loc, "rtt"), text


def _rate_complaints(written: Written, source: Source, direction: Direction) -> Iterator[Complaint]:
    loc, rate = source.find("rate", direction)
    if rate is None:
        yield loc, "missing; write it like 1gbit, for both directions or under up and down"
        return
    if rate / _least_k(written) < LEAST_RATE:
        yield loc, f"{rate}{_slowed(written.dilation)} is too slow to be probed; at least {Rate(LEAST_RATE)}"
    most = (1 if written.workload.computes_real else MAX_DILATION) if written.dilation == "auto" else written.dilation
    if rate * framing_factor(source.mtu, source.framing) / most > KERNEL_RATE:
        yield loc, f"{rate}{_slowed(most)} is beyond the kernel's token bucket, 34.3gbit{_way_out(written, most)}"


def _least_k(written: Written) -> int:
    return 1 if written.dilation == "auto" else written.dilation


def _slowed(dilation: int | str, sign: str = "÷") -> str:
    return f" {sign} {dilation}" if isinstance(dilation, int) and dilation > 1 else ""


def _way_out(written: Written, most: int) -> str:
    if written.workload.computes_real:
        return "; real compute cannot be dilated, so write a slower rate"
    return "; write dilation: auto or a larger one" if most < MAX_DILATION else "; write a slower rate"


def _bucket_complaints(source: Source, direction: Direction, single: bool) -> Iterator[Complaint]:
    """`single`: every packet is handled alone in this lab, so there are no super-packets."""
    frame = source.mtu + ETHERNET_HEADER
    for key, (loc, size) in (("burst", source.find("burst", direction)), ("queue", source.queue(direction))):
        if source.find(key, direction)[1] is None:
            continue
        if size < frame:
            text = f"no packet would pass: a full frame is {frame}B, found {size}; leave {key} out, the rig derives it"
            yield loc, text
        elif size > MOST_BYTES:
            yield loc, f"{size} is more than the kernel's token bucket can count; at most {Size(MOST_BYTES)}"
        elif size < SUPER_PACKET and key == "queue" and not single:
            text = f"{size} holds no super-packet of 64KiB, so nothing large would pass; leave it out, or write more"
            yield loc, text
    yield from _credit_complaints(source, direction)


def _credit_complaints(source: Source, direction: Direction) -> Iterator[Complaint]:
    """A deep bucket lets a whole step pass at once, and the link is no longer what its rate says."""
    (loc, burst), (_, rate) = (source.find(key, direction) for key in ("burst", "rate"))
    if burst is None or rate is None:
        return
    most = max(LEAST_DEEP, int(rate * CREDIT_TIME / 8))
    if burst > most:
        yield loc, f"{burst} would pass at once after a pause; at most {Size(most)} at {rate}; leave it out"


def _transit_complaints(written: Written, source: Source, direction: Direction) -> Iterator[Complaint]:
    way = source.impairment(direction)
    k = written.dilation
    for loc, span in (source.delay(direction), source.find("jitter", direction)):
        if (span or 0) * _least_k(written) > MOST_DELAY:
            yield loc, f"{span}{_slowed(k, '×')} is longer than the kernel holds a packet; at most {MOST_DELAY}"
    loc, shape = source.find("distribution", direction)
    if shape is not None and source.find("jitter", direction)[1] is None:
        yield loc, f"{shape} of no jitter; write jitter too, such as 1ms"
    if way.reorder and not way.delay:
        text = f"{way.reorder} needs a delay: what is reordered overtakes what still waits; write one, such as 1ms"
        yield source.find("reorder", direction)[0], text
    yield from _total_complaints(source, direction)


def _total_complaints(source: Source, direction: Direction) -> Iterator[Complaint]:
    way = source.impairment(direction)
    if way.loss.mean >= 1:
        text = "loses every packet, so nothing would arrive; write less"
        yield source.find("loss", direction)[0], text
    if way.corrupt == _TOTAL:
        yield source.find("corrupt", direction)[0], "damages every packet, so nothing would arrive whole; write less"
    if way.reorder == _TOTAL:
        yield source.find("reorder", direction)[0], "takes every packet past the delay, so it delays none; write less"


# ── all links together ───────────────────────────────────────────────────────────────────────────────
def _mtu_complaints(every: list[Source]) -> Iterator[Complaint]:
    """One layer-2 network, one MTU: a bridge takes the smallest of its ports', and every path shrinks to it."""
    shared = [source.mtu for source in every if source.find("mtu")[0] == ("link", "mtu")]
    usual = shared[0] if shared else every[0].mtu
    for source in every:
        if source.mtu != usual:
            text = f"{source.mtu} differs from the other links' {usual}; one switch has one mtu: set link.mtu"
            yield source.find("mtu")[0], text


def _path_complaints(written: Written, every: list[Source]) -> Iterator[Complaint]:
    """One TCP stream fills a path only with its bandwidth-delay product in flight, and again as much for overhead."""
    if written.tcp.buffer is not None:
        return
    becomes = [Change(source.name, None, None, source.link()) for source in every]
    slowest, rtt = extremes(at_most(cables(written), becomes)).fullest
    if 2 * slowest * rtt / 8 > MOST_BUFFER:
        loc, _ = max((source.delay(way) for source in every for way in WAYS), key=lambda delay: delay[1])
        text = f"{Rate(slowest)} over an RTT of {Duration(ceil(rtt * 1e9))} needs socket buffers"
        yield (
            loc,
            f"{text} of {slowest * rtt / 4e9:.3g} GB; the kernel's end below 2 GiB: lower the rate or the delay",
        )
