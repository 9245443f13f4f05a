"""How long broadcasts take, and what is not gloo's; gloo's all-reduces are in rings.py."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rig.formulas.collectives import ring_payload
from rig.formulas.rings import Edge
from rig.formulas.traffic import gloo_broadcast_payload
from rig.model import ETHERNET_HEADER, ETHERNET_WIRE, Framing

INITIAL_WINDOW = 10  # packets (RFC 6928)
SEGMENT = 1448  # bytes of payload in a full packet of 1500 bytes
IP_TCP_HEADERS = 52  # IPv4 20, TCP 20, timestamps option 12 (on by default in Linux) (bytes)


def goodput(rate: float, mtu: int, framing: Framing) -> float:
    """TCP payload a cable carries one way, in bit/s, from its rate in bit/s.

    Every full frame carries mtu − 52 bytes of payload and occupies mtu + 38 on Ethernet (preamble 8, header 14,
    FCS 4, gap 12): 1448/1538 = 0.9415 at MTU 1500, 8948/9038 at 9000. `framing: none` counts as tc does, mtu + 14.
    Assumes one long stream; acknowledgements go the other way (about 1 % of it).
    """
    overhead = ETHERNET_WIRE if framing == "ethernet" else ETHERNET_HEADER
    return rate * (mtu - IP_TCP_HEADERS) / (mtu + overhead)


def broadcast_time(size: int, nodes: int, edge: Edge) -> float:
    """Seconds until gloo's broadcast of `size` bytes has left the root, which sends every copy down one link."""
    return gloo_broadcast_payload(size, nodes)[0] * 8 / edge.goodput


def broadcast_wait(nodes: int, rtt: float) -> float:
    """Seconds that a broadcast is under way besides: a round trip to the root's own children, whose word that they are
    ready comes first, and one way for every further level of the binomial tree, which has given its word by then.
    """
    levels = (nodes - 1).bit_length()
    return (levels + 1) / 2 * rtt if levels else 0.0


def slow_start_wait(size: int, edge: Edge, silent: float, rto_min: float) -> float:
    """Seconds that a message of `size` bytes waits for acknowledgements on a connection that was silent for `silent` s.

    Linux halves the congestion window for every retransmission time-out of silence (tcp_cwnd_restart; RTO = rto_min +
    round trip), to 10 packets at least (RFC 6928). It was as large as the last such message made it, 10 and one for
    each packet acknowledged. A window of w packets then goes out at once, and doubles a round trip later: R less the
    time of w packets is lost each time (Cardwell, Savage and Anderson, 2000).
    """
    packets = ceil(size / SEGMENT)
    window = max(INITIAL_WINDOW, (INITIAL_WINDOW + packets) >> int(silent / (rto_min + edge.rtt)))
    waits = 0.0
    while packets > window:
        packets -= window
        waits += max(0.0, edge.rtt - window * SEGMENT * 8 / edge.goodput)
        window *= 2
    return waits


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
