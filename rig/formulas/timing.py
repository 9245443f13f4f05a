"""How long one collective takes over a link, or over a path of several, with its round trip."""

from __future__ import annotations

from dataclasses import dataclass

from rig.formulas.collectives import ring_payload
from rig.formulas.traffic import gloo_allreduce_payload, gloo_broadcast_payload, segments_per_chunk
from rig.model import ETHERNET_HEADER, ETHERNET_WIRE, Framing

IP_TCP_HEADERS = 52  # IPv4 20, TCP 20, timestamps option 12 (on by default in Linux) (bytes)


def goodput(rate: float, mtu: int, framing: Framing) -> float:
    """TCP payload a cable carries one way, in bit/s, from its rate in bit/s.

    Every full frame carries mtu − 52 bytes of payload and occupies mtu + 38 on Ethernet (preamble 8, header 14,
    FCS 4, gap 12): 1448/1538 = 0.9415 at MTU 1500, 8948/9038 at 9000. `framing: none` counts as tc does, mtu + 14.
    Assumes one long stream; acknowledgements go the other way (about 1 % of it).
    """
    overhead = ETHERNET_WIRE if framing == "ethernet" else ETHERNET_HEADER
    return rate * (mtu - IP_TCP_HEADERS) / (mtu + overhead)


@dataclass(frozen=True)
class Edge:
    """What lies between a rank and the one it sends to, as one stream of TCP meets it (emulated units)."""

    goodput: float  # bit/s
    rtt: float = 0.0  # s
    credit: float = 0.0  # s: how long the slowest hop's token bucket takes to fill
    queued: bool = False  # whether what goes the other way has to wait behind other data of the ring


def ring_time(size: int, nodes: int, edge: Edge) -> float:
    """Seconds of one ring all-reduce of `size` bytes over `nodes` ranks whose edges are alike; 0 for one node. Over
    edges that differ the slowest sets the pace: take the largest.

    The ring keeps every edge busy in both directions, so time = what one rank sends ÷ goodput + ring_wait. The
    hosts' own time is left out: right where a bucket takes longer than that, above about 1 MB at 1 Gb/s.
    """
    return ring_busy(size, nodes, edge) + ring_wait(size, nodes, edge)


def ring_busy(size: int, nodes: int, edge: Edge) -> float:
    """Seconds in which the edge carries bytes of that all-reduce: what one rank sends ÷ goodput."""
    return gloo_allreduce_payload(size, nodes) * 8 / edge.goodput


def ring_wait(size: int, nodes: int, edge: Edge) -> float:
    """Seconds in which that all-reduce waits for the edge's round trip.

    A rank tells its neighbour that it is ready for a segment, and only then is the segment sent: one round trip.
    Two segments are under way at a time, of 2(N−1)·K in all: (N−1)·K pairs, each waiting for one round trip less
    what passes meanwhile. That is one segment; but where the word has to wait behind other data (at N = 2, in the
    one connection there is; at a line that two edges cross, one each way, in its queue), it is only what the token
    bucket saved up while nothing was sent. Each half (reduce-scatter, all-gather) begins with a full round trip.
    Within 8 % of what was measured (docs/facts.md, Latency); 2(N−1) round trips for a small all-reduce.
    """
    pairs = (nodes - 1) * segments_per_chunk(size, nodes)
    if pairs == 0:
        return 0.0
    segment = ring_busy(size, nodes, edge) / (2 * pairs)
    passes = min(edge.credit, 2 * segment) if edge.queued else segment
    return max(2 * edge.rtt, pairs * max(0.0, edge.rtt - passes))


def broadcast_time(size: int, nodes: int, edge: Edge) -> float:
    """Seconds until gloo's broadcast of `size` bytes has left the root, which sends every copy down one link."""
    return gloo_broadcast_payload(size, nodes)[0] * 8 / edge.goodput


def broadcast_wait(nodes: int, rtt: float) -> float:
    """Seconds that a broadcast is under way besides: a round trip to the root's own children, whose word that they are
    ready comes first, and one way for every further level of the binomial tree, which has given its word by then.
    """
    levels = (nodes - 1).bit_length()
    return (levels + 1) / 2 * rtt if levels else 0.0


# ── without the library's details: for what is not gloo, and for rules of thumb ──────────────────────────
@dataclass(frozen=True)
class Level:
    """Ranks that reduce among themselves over links alike: how many, at what goodput (bit/s), and α, what one message
    takes besides its bytes (s).
    """

    ranks: int
    goodput: float
    alpha: float = 0.0


def alpha_beta_time(size: float, level: Level) -> float:
    """Seconds of a ring all-reduce of S bytes: 2(N−1)·α + 2(N−1)/N·S·8/B; 0 for one rank.

    2(N−1) steps one after another, each a message of S/N: α and its bytes (Hockney's model; Thakur et al., 2005).
    An upper bound where messages are cut into segments, whose α then passes under other segments' bytes.
    """
    return 2 * (level.ranks - 1) * level.alpha + ring_payload(size, level.ranks) * 8 / level.goodput


def alpha_bound_size(level: Level) -> float:
    """The size below which an all-reduce takes longer for its messages than for its bytes: S* = N·α·B/8 (bytes).

    Where both terms of alpha_beta_time are equal: 2(N−1)·α = 2(N−1)/N·S*·8/B. Below it, fewer and larger buckets help
    and a faster link does not.
    """
    return level.ranks * level.alpha * level.goodput / 8


def two_level_time(size: float, inside: Level, between: Level) -> float:
    """Seconds of an all-reduce in two levels: `inside` each node its ranks, `between` so many nodes.

    Reduce-scatter inside, an all-reduce of S/g by each of a node's g ranks at once, all-gather inside. The outer
    two take what an all-reduce inside takes; the g rings between nodes share the node's link and move S together. So
    the sum of both levels' alpha_beta_time. Assumes that stages do not overlap.
    """
    return alpha_beta_time(size, inside) + alpha_beta_time(size, between)
