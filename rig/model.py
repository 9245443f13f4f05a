"""The frozen dataclasses that flow from scenario to record. No I/O, no clock, no defaults left to guess.

Everything here is *resolved*: optional things were decided by `plan`. Rates are bit/s, sizes bytes, spans
`Duration` (ns) in what a person wrote and float seconds in what was measured or computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rig.units import Duration, Fraction, Rate, Size
from rig.work import Devices, Pace, Script, Workload

Framing = Literal["ethernet", "none"]
Direction = Literal["up", "down"]  # up: from a cable's start to its end, node → switch; down: back
WAYS: tuple[Direction, Direction] = ("up", "down")
Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]  # netem's, of jitter
Shaper = Literal["auto", "netem", "delayline"]

ETHERNET_HEADER = 14  # what tc counts per frame besides the IP packet (bytes)
ETHERNET_WIRE = 38  # what a cable carries per frame besides it: preamble 8, header 14, FCS 4, gap 12


# ── the network ──────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Loss:
    """Packets lost by a two-state chain (Gilbert–Elliott): from packet to packet it goes from the good state to the
    bad one with probability `enter`, back with `leave`, and loses a packet with `good` or `bad`.

    Plain random loss never enters the bad state: `Loss(good=p)`.
    """

    good: Fraction = Fraction(0)
    bad: Fraction = Fraction(0)
    enter: Fraction = Fraction(0)
    leave: Fraction = Fraction(10**9)

    @property
    def mean(self) -> float:
        """The share of packets lost in the long run, 0 to 1: the states weighted by how long the chain is in each."""
        if not self.enter:
            return self.good.ratio
        in_bad = self.enter / (self.enter + self.leave)
        return self.good.ratio * (1 - in_bad) + self.bad.ratio * in_bad


@dataclass(frozen=True)
class Impairment:
    """What one direction of a link does, in emulated units: the rate first, then what happens on the way."""

    rate: Rate  # bit/s on the wire
    burst: Size  # token bucket depth, bytes
    queue: Size  # drop-tail queue behind the bucket, bytes
    delay: Duration = Duration(0)  # one way
    jitter: Duration = Duration(0)  # the distribution's spread: half the width of uniform, else one sigma
    distribution: Distribution = "normal"
    loss: Loss = Loss()
    duplicate: Fraction = Fraction(0)
    corrupt: Fraction = Fraction(0)  # packets of which one bit is flipped
    reorder: Fraction = Fraction(0)  # packets that are not delayed, and so overtake those that are

    @property
    def acts_on_packets(self) -> bool:
        """Whether single packets have a fate of their own, so that none may travel inside a 64 KiB super-packet."""
        return bool(self.loss.mean or self.duplicate or self.corrupt or self.reorder)

    @property
    def in_transit(self) -> bool:
        """Whether it does anything that a token bucket alone cannot."""
        return bool(self.delay or self.jitter) or self.acts_on_packets


@dataclass(frozen=True)
class Link:
    """A full-duplex cable between a node and its switch, or between two switches."""

    up: Impairment
    down: Impairment
    mtu: int = 1500
    framing: Framing = "ethernet"

    def way(self, direction: Direction) -> Impairment:
        """What one direction does."""
        return self.up if direction == "up" else self.down


@dataclass(frozen=True)
class Switch:
    """A place that cables meet in; a lab has one, or one for each of its clusters."""

    name: str = "switch"  # or switch-CLUSTER; the first one's namespace is the fabric's own
    address: str = "198.19.0.1"  # the far end of link probes
    cluster: str = ""


@dataclass(frozen=True)
class Cable:
    """A link and the two places it joins, by name: `up` goes from `start` (a node, or a switch) to `end` (a switch)."""

    name: str  # a node's name, or CLUSTER-CLUSTER
    start: str
    end: str
    link: Link


@dataclass(frozen=True)
class Change:
    """What a cable becomes at a moment of a repeat; moments count from the end of the warm-up."""

    cable: str
    at: Duration | None  # emulated time; where a step is given, since then, and None is at once
    step: int | None  # so many measured steps are done
    link: Link  # as it is from then on, whole
    plugged: bool = True  # False: an outage, as when somebody pulls the cable out


@dataclass(frozen=True)
class Background:
    """Other people's traffic on a cable: UDP at a constant rate on the wire, as long as ranks run."""

    cable: str
    direction: Direction
    rate: Rate


@dataclass(frozen=True)
class ProbeLimits:
    """How far a probed link may be off before its case is invalid."""

    goodput: Fraction = Fraction(20_000_000)  # against the wire arithmetic
    rtt: Fraction = Fraction(50_000_000)  # against what was asked, beyond `slack`
    slack: Duration = Duration(1_000_000)  # real time that the hosts' own work may add to an RTT
    confidence: Fraction = Fraction(999_900_000)  # of the binomial interval that counted losses must lie in


BUFFER_OVERHEAD = 2  # a socket's buffer over the data it holds: half may be overhead (tcp(7), tcp_adv_win_scale)


@dataclass(frozen=True)
class Tcp:
    """How every node's TCP is set; never inherited from the host silently."""

    congestion: str = "cubic"
    buffer: Size = Size(16 * 2**20)  # largest send and receive buffer of one socket
    rto_min: Duration = Duration(200 * 10**6)  # Linux: TCP_RTO_MIN; does not dilate by itself


# ── a case ───────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Node:
    """One training machine."""

    name: str  # n0, n1, …; also its hostname
    address: str  # IPv4, inside the lab only
    link: Link
    threads: int  # OMP_NUM_THREADS of its rank
    batch: int  # samples a step, of all its micro-batches; 0 where the workload has none
    pace: Pace | None  # None: real compute
    switch: str = "switch"  # the one its cable ends at
    ranks: int = 1  # training processes


@dataclass(frozen=True)
class Case:
    """One fully resolved cell of a scenario's sweep."""

    id: str
    params: Mapping[str, Any]  # the swept paths and values as written; always "nodes"
    role: Literal["case", "baseline"]
    baseline: str  # id of the one-node case its speed-up refers to; its own id when it is that case
    nodes: tuple[Node, ...]
    workload: Workload
    tcp: Tcp
    dilation: int
    repeats: int
    expect: Mapping[str, Fraction]  # metric → tolerance
    gpu: Literal["auto", "required", "none"]
    env: Mapping[str, str]
    timeout: Duration  # of one repeat, real time
    switches: tuple[Switch, ...] = (Switch(),)
    wans: tuple[Cable, ...] = ()  # between switches
    shaper: Shaper = "auto"
    seed: int = 0  # of every random fate on the links
    changes: tuple[Change, ...] = ()
    background: tuple[Background, ...] = ()
    limits: ProbeLimits = ProbeLimits()
    siblings: int = 0  # further nodes that compute the same, each alone, so that the host is shared as among many

    @property
    def cables(self) -> tuple[Cable, ...]:
        """Every link: the nodes' in node order, then those between switches."""
        return (*(Cable(node.name, node.name, node.switch, node.link) for node in self.nodes), *self.wans)

    @property
    def links(self) -> frozenset[Link]:
        """All that any cable ever is: from the start, and after each change."""
        return frozenset({cable.link for cable in self.cables} | {change.link for change in self.changes})

    def cable(self, name: str) -> Cable:
        """The cable of that name. Raises StopIteration where there is none."""
        return next(cable for cable in self.cables if cable.name == name)

    def address(self, place: str) -> str:
        """The IPv4 address of a node or a switch, by name. Raises KeyError where there is none."""
        places: tuple[Node | Switch, ...] = (*self.nodes, *self.switches)
        return {one.name: one.address for one in places}[place]

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def seats(self) -> tuple[Node, ...]:
        """Each rank's node, in the order of ranks."""
        return tuple(node for node in self.nodes for _ in range(node.ranks))

    @property
    def computes_real(self) -> bool:
        return isinstance(self.workload, Script) or getattr(self.workload, "compute", "") == "real"

    @property
    def devices(self) -> Devices:
        """Where its ranks compute and what carries their collectives; a script decides both by itself."""
        given: Devices = getattr(self.workload, "devices", Devices("auto"))
        return given


@dataclass(frozen=True)
class Phases:
    """How one step spends its time on one machine that waits for nobody (seconds, emulated): forward and backward are
    of its last micro-batch, `earlier` is all that the others take. What was measured, not paced, tells what it sends.
    """

    forward: float
    ready: tuple[float, ...]  # when each bucket's last gradient is ready, from the start of the backward pass
    backward: float
    optimizer: float
    earlier: float = 0.0
    buckets: tuple[int, ...] = ()  # bytes of each bucket, as `ready`
    broadcasts: tuple[int, ...] = ()  # bytes of the buffers of each dtype
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()  # of the tensors in each bucket, as `ready`
    maps: tuple[int, ...] = ()  # bytes of each map of used parameters that is reduced besides (find_unused_parameters)
    silent: str = ""  # why a step of several such machines does not follow from it

    @property
    def step(self) -> float:
        return self.earlier + self.forward + self.backward + self.optimizer


@dataclass(frozen=True)
class Host:
    """What a machine itself adds to communication, as `rig calibrate` measured it, in real seconds."""

    alpha: Mapping[int, float]  # ranks on it → one all-reduce so small that its bytes do not matter
    reduce: float  # a byte of payload that gloo sends, receives and adds up, all ranks' work together
    step: float  # a paced step of one rank beyond its pace: hooks, clearing gradients, timers
    cores: int
    cpu: str
    kernel: str
    date: str  # UTC
