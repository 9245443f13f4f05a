"""The keys of links, clusters and what joins them, as written: optional things are None."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    WithJsonSchema,
    model_validator,
)

from rig.errors import UnitError
from rig.fabric.shape import LARGEST_RATE
from rig.model import ETHERNET_HEADER, Distribution, Framing, Loss
from rig.scenario.fields import NODE_NAME, Keys, hint
from rig.scenario.profiles import NAMES
from rig.scenario.reading import shown
from rig.units import Duration, Fraction, Rate, Size

KERNEL_RATE = 8 * LARGEST_RATE  # bit/s
LEAST_RATE = 1_000_000  # bit/s: below it a probe takes minutes to see past the token bucket's credit
MOST_BYTES = 2**30  # of a burst or a queue: TBF counts both in 32 bits
MOST_NODES = 10_000  # of a plan; a lab builds fewer (plan.buildable)
RESERVED = ("switch", "all")  # a place's name, and every link's
_CLUSTER = re.compile(r"[a-z][a-z0-9]{0,11}", re.ASCII)
_PACKETS = re.compile(r"\s*([0-9]{1,9})\s*packets?\s*", re.ASCII)
_UNIT = re.compile(r"[a-zµ]+", re.ASCII | re.IGNORECASE)
_ALL = 10**9  # parts per billion


# ── single values ────────────────────────────────────────────────────────────────────────────────────
def _burst(value: object) -> object:
    frame = 1500 + ETHERNET_HEADER
    if isinstance(value, int) and not isinstance(value, bool | Size) and 0 <= value < frame:
        raise UnitError(
            f"a size needs a unit, found {value}; and with a burst of {value}B no packet would pass: "
            f"a full frame is {frame}B. Leave burst out, the rig derives it, or write it like 256KiB"
        )
    return value


def countable(value: Size) -> Size:
    """The same size; raises ValueError when the kernel cannot hold it."""
    if value > MOST_BYTES:
        raise ValueError(f"{value} is more than the kernel's token bucket can count; at most {Size(MOST_BYTES)}")
    return value


class Packets(int):
    """Full frames that a queue holds."""

    def __str__(self) -> str:
        return f"{int(self)}packets"


def _queue(value: object) -> Size | Duration | Packets:
    if isinstance(value, Size | Duration | Packets):
        return value
    if isinstance(value, str) and (match := _PACKETS.fullmatch(value)):
        return Packets(match[1])
    unit = _UNIT.search(value) if isinstance(value, str) else None
    if unit and unit[0] in Duration.UNITS:
        return Duration.parse(value)
    try:
        return countable(Size.parse(value))
    except UnitError as error:
        raise UnitError(f"{error}; a queue may also be written 100packets, or 20ms of the rate") from error


Queue = Annotated[
    Size | Duration | Packets,
    PlainValidator(_queue),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["64KiB", "100packets", "20ms"]}),
]


def _cluster_name(value: str) -> str:
    if not _CLUSTER.fullmatch(value) or NODE_NAME.fullmatch(value) or value in RESERVED:
        text = "cannot name a cluster; use up to 12 small letters and digits, a letter first, and not n0, switch or all"
        raise ValueError(f"{shown(value)} {text}")
    return value


def _profile(value: str) -> str:
    if value not in NAMES:
        raise ValueError(f"{shown(value)} is no measured link{hint(value, NAMES)}")
    return value


def _pair(value: list[str]) -> list[str]:
    if len(value) != 2 or value[0] == value[1]:
        raise ValueError(f"needs two different clusters such as [us, eu], found {shown(value)}")
    return value


def _cluster_size(value: object) -> object:
    if value is None:
        raise ValueError("missing: a cluster has at least 1 node; write nodes: 2, or leave the cluster out")
    if isinstance(value, int) and value < 1 and not isinstance(value, bool):
        raise ValueError(f"a cluster has at least 1 node, found {value}; write more, or leave the cluster out")
    return value


# ── loss ─────────────────────────────────────────────────────────────────────────────────────────────
def _or_share(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": ["string", "number"], "examples": ["1%"]}, mapping]


class LossKeys(Keys):
    """A share of packets such as `1%`, or the four probabilities of a Gilbert–Elliott chain (`model.Loss`)."""

    model_config = ConfigDict(json_schema_extra=_or_share)

    enter: Fraction
    leave: Fraction
    bad: Fraction = Fraction(_ALL)
    good: Fraction = Fraction(0)

    @model_validator(mode="before")
    @classmethod
    def _share(cls, value: Any) -> Any:
        if isinstance(value, dict | cls):
            return value
        return {"good": Fraction.parse(value), "enter": Fraction(0), "leave": Fraction(_ALL)}

    @property
    def loss(self) -> Loss:
        """The same, resolved; a chain that never enters the bad state is plain loss."""
        return Loss(self.good, self.bad, self.enter, self.leave) if self.enter else Loss(self.good)


# ── links ────────────────────────────────────────────────────────────────────────────────────────────
class WayKeys(Keys):
    """One direction of a link."""

    rate: Rate | None = None
    burst: Annotated[Size, BeforeValidator(_burst), AfterValidator(countable)] | None = None
    queue: Queue | None = None
    delay: Duration | None = None
    jitter: Duration | None = None
    distribution: Distribution | None = None
    loss: LossKeys | None = None
    duplicate: Fraction | None = None
    corrupt: Fraction | None = None
    reorder: Fraction | None = None


class WaysKeys(WayKeys):
    """What both directions have, and what only one has: all that may change while a lab is up."""

    rtt: Duration | None = None
    up: WayKeys | None = None
    down: WayKeys | None = None


class LinkKeys(WaysKeys):
    """A link."""

    mtu: int | None = Field(default=None, ge=576, le=9000)
    framing: Framing | None = None


# ── clusters, and what joins them ────────────────────────────────────────────────────────────────────
ClusterName = Annotated[str, AfterValidator(_cluster_name)]


class ClusterKeys(Keys):
    """Nodes on a switch of their own."""

    nodes: Annotated[int, BeforeValidator(_cluster_size)] = Field(None, le=MOST_NODES, validate_default=True)
    link: LinkKeys | None = None


class WanKeys(LinkKeys):
    """One link between two clusters: `up` goes from the first to the second."""

    between: Annotated[list[str], AfterValidator(_pair)]
    profile: Annotated[str, AfterValidator(_profile)] | None = None


class AllWansKeys(LinkKeys):
    """The same link between clusters in a row (`chain`), or between any two (`mesh`)."""

    topology: Literal["chain", "mesh"] = "mesh"
    profile: Annotated[str, AfterValidator(_profile)] | None = None


WAN_FORMS = ("list", "mapping")  # pydantic puts the form's name into the place of an error


def _form(value: object) -> str:
    return "list" if isinstance(value, list) else "mapping"


Wan = Annotated[
    Annotated[list[WanKeys], Tag("list")] | Annotated[AllWansKeys, Tag("mapping")],
    Discriminator(_form),
]
