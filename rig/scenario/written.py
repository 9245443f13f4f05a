"""One cell of a scenario as written.

`Written` has one value for every key: the sweep's are already in place. Nothing is derived yet; `plan` does that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from rig.model import ProbeLimits, Shaper
from rig.scenario.checks import MAX_DILATION, network_complaints
from rig.scenario.fields import NODE_NAME, Batch, ComputeKeys, Keys, Ranks
from rig.scenario.kinds import AnyWorkload
from rig.scenario.links import MOST_NODES, ClusterKeys, ClusterName, LinkKeys, Wan
from rig.scenario.reading import shown
from rig.scenario.show import ShowKeys
from rig.scenario.timeline import BackgroundKeys, EntryKeys
from rig.scenario.workloads import KEY, Complaint, Surroundings
from rig.units import Duration, Fraction, Size

MOST_CLUSTERS = 32  # a mesh of them has 496 links
MOST_ENTRIES = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_CONGESTION = re.compile(r"[a-z0-9_]{1,15}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


# ── single values ────────────────────────────────────────────────────────────────────────────────────
def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{shown(value)} cannot name a run's folder; use up to 64 letters, digits, dots, - and _")
    return value


def _node_name(value: str) -> str:
    if not NODE_NAME.fullmatch(value):
        raise ValueError(f"{shown(value)} is no node; nodes are named n0, n1, … up to the largest node count less one")
    return value


def _congestion(value: str) -> str:
    if not _CONGESTION.fullmatch(value):
        raise ValueError(f"{shown(value)} is no congestion control's name; write it like cubic, reno or bbr")
    return value


def _dilation(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if not 1 <= whole <= MAX_DILATION or whole & (whole - 1):
        raise ValueError(f"needs auto or a power of two from 1 to {MAX_DILATION}, found {shown(value)}")
    return whole


SEAT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONPATH"),
)


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name) or name.startswith("RIG_"):
            raise ValueError(f"{shown(name)} cannot be set; use letters, digits and _, and leave RIG_… to the rig")
        if name in SEAT:
            raise ValueError(f"{name} cannot be set: the rig gives each rank its own (threads: sets OMP_NUM_THREADS)")
        if "\0" in text or len(text) > 10_000:
            raise ValueError(f"{name}'s text is too long or holds a NUL character")
    return value


def _timeout(value: Duration) -> Duration:
    if not 10**9 <= value <= 24 * 3600 * 10**9:
        raise ValueError(f"must be from 1s to 24h, found {value}")
    return value


def _rto_min(value: Duration) -> Duration:
    if not 10**6 <= value <= 120 * 10**9:  # Linux: TCP_RTO_MAX is 120 s, and the route attribute counts milliseconds
        raise ValueError(f"must be from 1ms to 120s, found {value}")
    return value


def _buffer(value: Size) -> Size:
    if not 4096 <= value < 2**31:  # tcp(7): tcp_rmem and tcp_wmem are signed 32-bit counts
        raise ValueError(f"must be from 4KiB to below 2GiB, found {value}")
    return value


def _confidence(value: Fraction) -> Fraction:
    if not 5 * 10**8 <= value < 10**9:
        raise ValueError(f"must be from 50% to below 100%, found {value}; 99.9% is wrong once in a thousand links")
    return value


# ── groups of keys ───────────────────────────────────────────────────────────────────────────────────
class TcpKeys(Keys):
    """How every node's TCP is set."""

    congestion: Annotated[str, AfterValidator(_congestion)] = "cubic"
    buffer: Annotated[Size, AfterValidator(_buffer)] | None = None
    rto_min: Annotated[Duration, AfterValidator(_rto_min)] = Duration(200 * 10**6)


class ExpectKeys(Keys):
    """What is judged, and how far it may be off."""

    traffic: Fraction | None = None
    step_time: Fraction | None = None
    speedup: Fraction | None = None
    goodput: Fraction | None = None


class MachineKeys(Keys):
    """What one node has that the others have not."""

    link: LinkKeys | None = None
    batch: Batch | None = None
    compute: ComputeKeys | None = None
    ranks: Ranks | None = None


class ProbeKeys(Keys):
    """How far a probed link may be off before its case is invalid."""

    goodput: Fraction = ProbeLimits.goodput
    rtt: Fraction = ProbeLimits.rtt
    slack: Duration = ProbeLimits.slack
    confidence: Annotated[Fraction, AfterValidator(_confidence)] = ProbeLimits.confidence


class Written(Keys):
    """Every key of one cell."""

    name: Annotated[str, AfterValidator(_name)]
    description: str = ""
    nodes: int | None = Field(None, ge=1, le=MOST_NODES)
    clusters: dict[ClusterName, ClusterKeys] = Field(default_factory=dict, max_length=MOST_CLUSTERS)
    link: LinkKeys = Field(default_factory=LinkKeys)
    wan: Wan | None = None
    machines: dict[Annotated[str, AfterValidator(_node_name)], MachineKeys] = Field(default_factory=dict)
    tcp: TcpKeys = TcpKeys()
    lab: Literal["auto", "netns", "docker"] = "auto"
    gpu: Literal["auto", "required", "none"] = "auto"
    dilation: Annotated[
        int | Literal["auto"],
        PlainValidator(_dilation),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_DILATION}]}),
    ] = "auto"
    shaper: Shaper = "auto"
    seed: int = Field(0, ge=0, lt=2**32)
    threads: int | None = Field(None, ge=1, le=1024)
    workload: AnyWorkload
    repeats: int = Field(1, ge=1, le=1000)
    expect: ExpectKeys = ExpectKeys()
    probe: ProbeKeys = ProbeKeys()
    timeline: list[EntryKeys] = Field(default_factory=list, max_length=MOST_ENTRIES)
    background: list[BackgroundKeys] = Field(default_factory=list, max_length=MOST_ENTRIES)
    env: Annotated[dict[str, str], AfterValidator(_environment)] = Field(default_factory=dict)
    timeout: Annotated[Duration, AfterValidator(_timeout)] = Duration(600 * 10**9)
    show: ShowKeys = ShowKeys()

    @property
    def size(self) -> int:
        """How many nodes there are; 1 where nothing says it, which is a complaint of its own."""
        return self.nodes or sum(cluster.nodes for cluster in self.clusters.values()) or 1


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────
def complaints(written: Written, around: Surroundings) -> Iterator[Complaint]:
    """Everything that is wrong with a cell though each key alone is right."""
    for node in written.machines:
        if int(node[1:]) >= around.most_nodes:
            yield ("machines", node, KEY), f"there is no {node}: the largest node count is {around.most_nodes}"
        if written.machines[node].ranks is not None and written.workload.kind != "script":
            yield ("machines", node, "ranks"), f"belongs to kind: script; {written.workload.kind} has one on a node"
    yield from network_complaints(written, around)
    yield from written.workload.complaints(written, around)
    yield from written.show.complaints(around)
