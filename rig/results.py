"""The frozen dataclasses that come out of a case: figures measured and computed, checks, links as found, its result.

QUANTITIES names the figures there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rig.model import Direction

Status = Literal["pass", "fail", "invalid", "error", "skipped"]


@dataclass(frozen=True)
class Quantity:
    """A kind of figure: what people call it, and which way is better."""

    noun: str
    better: Literal["more", "less"]
    of: str = ""  # the metric of one node's step that this is, for each of the step's samples there


QUANTITIES: Mapping[str, Quantity] = {
    "step_time": Quantity("step time", "less"),
    "throughput": Quantity("throughput", "more"),
    "speedup": Quantity("speed-up", "more"),
    "efficiency": Quantity("efficiency", "more"),
    "payload_tx": Quantity("payload of a node and step", "less"),
    "wire_tx": Quantity("bytes on a node's wire and step", "less"),
    "comm_time": Quantity("communication of a step", "less"),
    "exposed_comm": Quantity("exposed communication of a step", "less"),
    "busbw": Quantity("bus bandwidth", "more"),
    "goodput": Quantity("goodput of the links", "more"),
    "time_to_train": Quantity("time of the whole job", "less"),
    "loss": Quantity("loss", "less"),
    "held_out_loss": Quantity("held-out loss", "less"),
    "accuracy": Quantity("held-out accuracy", "more"),
    "time_to_loss": Quantity("time to the target loss", "less"),
    "steps_to_loss": Quantity("steps to the target loss", "less"),
    "payload_per_sample": Quantity("payload of a sample", "less", "payload_tx"),
    "comm_per_sample": Quantity("communication of a sample", "less", "comm_time"),
    "exposed_per_sample": Quantity("exposed communication of a sample", "less", "exposed_comm"),
}


@dataclass(frozen=True)
class Metric:
    """A measured figure: the mean, its 95 % bootstrap interval, and the samples it came from."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    samples: tuple[float, ...] = ()
    per_node: tuple[float, ...] = ()  # the same figure node by node, in node order


@dataclass(frozen=True)
class Predicted:
    """A computed figure, with the formula's name and every input it used, and what it should lie between."""

    value: float
    unit: str
    formula: str
    inputs: Mapping[str, Any]
    per_node: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Check:
    """One expectation, judged. `error` is (measured − predicted) ÷ predicted, of the node that is worst."""

    metric: str
    measured: float
    predicted: float
    error: float
    tolerance: float
    status: Literal["pass", "fail"]
    note: str = ""


@dataclass(frozen=True)
class LinkReport:
    """One direction of one link: what was asked, what is in force, what the probe saw.

    `asked` and `measured` are in emulated bit/s, seconds and shares. Both have rtt, jitter, loss, duplicate, reorder,
    and goodput (TCP) or, where TCP is no measure of the rate, udp in its place; `asked` also rate and delay,
    `measured` also goodput_all (all links busy), rtt_low and rtt_high (5 and 95 %), and what was counted. `applied`
    {rate, burst, limit, emulates, mtu, transit, …} is what the kernel and the delay line reported back, in real time.
    """

    name: str
    direction: Direction
    asked: Mapping[str, float]
    applied: Mapping[str, Any]
    measured: Mapping[str, float]
    shaper: str


@dataclass(frozen=True)
class CaseResult:
    """One case, finished: the `cases[]` entry of a record."""

    id: str
    params: Mapping[str, Any]
    role: str
    baseline: str
    lab: str
    dilation: int
    status: Status
    unstable: bool = False
    reason: str = ""
    links: tuple[LinkReport, ...] = ()
    paths: tuple[Mapping[str, Any], ...] = ()  # {from, to, rate, mtu}: node to node, asked
    measured: Mapping[str, Metric] = field(default_factory=dict)
    predicted: Mapping[str, Predicted] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    bottleneck: str = ""  # host, straggler, compute, queue, window, latency or link; why: host["bottleneck"]
    host: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)  # {"steps": [...], …}: what clocks and counters saw
