"""One direction of a link, from what the scenario says to what the kernel is told, and back. Pure arithmetic.

Wire-true framing: tc counts 14 B of header per frame, a cable carries 38 B (preamble, header, FCS, gap), so a
cable of rate R holds a tc rate of R·(mtu + 14)/(mtu + 38). Dilation k divides every rate by k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rig.errors import FabricError
from rig.model import ETHERNET_HEADER, ETHERNET_WIRE, Framing, Impairment, Link

LARGEST_RATE = 2**32 - 1  # bytes/s: struct tc_ratespec.rate is a u32, and pyroute2 sends no RATE64
# Read-back against asked: the kernel keeps the bucket as a time in ticks of 64 ns, tc rounds it to microseconds.
BUCKET_SLACK = {"rate": 0.001, "burst": 0.02}
ROOM = 2**20  # bytes, beside what a link's rate and delay put on the way
SMALLEST_FRAME = 64


@dataclass(frozen=True)
class Tbf:
    """A token bucket filter as the kernel holds it: bytes per second, bytes, bytes."""

    rate: int
    burst: int
    limit: int

    def document(self) -> dict[str, int]:
        """The same as JSON."""
        return asdict(self)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Tbf:
        """The inverse of `document`."""
        return Tbf(int(document["rate"]), int(document["burst"]), int(document["limit"]))


@dataclass(frozen=True)
class Transit:
    """What happens to a packet once the bucket has let it go; real time, in ns, bytes and parts per billion.

    The same for both shapers: netem is told this, and so is the delay line.
    """

    delay: int
    jitter: int
    distribution: str  # of the jitter: uniform, or the name of a table (see quantiles)
    good: int  # loss in the good state of the Gilbert–Elliott chain, and in the bad one
    bad: int
    enter: int  # per packet: from good to bad, and back
    leave: int
    duplicate: int
    corrupt: int
    reorder: int  # sent at once, past those that wait
    octets: int  # held at once at most; what comes then is dropped (delay line)
    packets: int  # the same limit as netem counts it

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Transit:
        """The inverse of `document`."""
        return Transit(**document)


def framing_factor(mtu: int, framing: Framing) -> float:
    """tc's share of a frame's bytes on the cable: (mtu + 14)/(mtu + 38), or 1 for `framing: none`."""
    return (mtu + ETHERNET_HEADER) / (mtu + ETHERNET_WIRE) if framing == "ethernet" else 1.0


def tbf(impairment: Impairment, link: Link, dilation: int) -> Tbf:
    """What the kernel is told for one direction. `burst` and `queue` are bytes and do not dilate."""
    rate = impairment.rate / dilation * framing_factor(link.mtu, link.framing) / 8
    return Tbf(round(rate), int(impairment.burst), int(impairment.queue))


def emulated(applied: Tbf, link: Link, dilation: int) -> float:
    """The cable's rate in emulated bit/s that an applied filter stands for: the inverse of `tbf`."""
    return applied.rate * 8 * dilation / framing_factor(link.mtu, link.framing)


def transit(impairment: Impairment, dilation: int) -> Transit:
    """What netem or the delay line is told for one direction: delays × dilation, shares as they are.

    Its limit is no queue (that is the bucket's) but room for twice what can be on the way at the link's rate.
    """
    on_the_way = impairment.rate * (impairment.delay + 4 * impairment.jitter) // (8 * 10**9)
    octets = 2 * on_the_way + 4 * impairment.burst + ROOM
    loss = impairment.loss
    return Transit(
        impairment.delay * dilation, impairment.jitter * dilation, impairment.distribution,
        int(loss.good), int(loss.bad), int(loss.enter), int(loss.leave),
        int(impairment.duplicate), int(impairment.corrupt), int(impairment.reorder),
        octets=octets, packets=octets // SMALLEST_FRAME + 1000,
    )  # fmt: skip


@dataclass(frozen=True)
class Way:
    """All that is asked for one direction of a cable."""

    shaper: str  # tbf, netem, delayline
    mtu: int
    bucket: Tbf
    transit: Transit | None  # None where a token bucket is all that is needed

    def document(self) -> dict[str, Any]:
        """What the fabric is told of it."""
        return {"tbf": self.bucket.document(), "transit": self.transit.document() if self.transit else None}


def compare(where: str, asked: Way, held: Mapping[str, Any]) -> None:
    """Raise FabricError unless what was read back (see wiring.Fabric.read_back) is what was asked."""
    if held["mtu"] != asked.mtu:
        raise FabricError(f"{where}: set the mtu to {asked.mtu}: the kernel holds {held['mtu']}; nothing was started")
    kind = held["tbf"].get("kind")
    if kind != "tbf":
        raise FabricError(f"{where}: shape: asked for tbf, the kernel holds {kind}; nothing was started")
    if off := [*_differences(asked.bucket.document(), held["tbf"], BUCKET_SLACK), *_off_transit(asked, held)]:
        raise FabricError(f"{where}: shape: read back {', '.join(off)}; nothing was started")


def _off_transit(asked: Way, held: Mapping[str, Any]) -> list[str]:
    if asked.transit is None:
        return []
    if held["transit"] is None:
        return [f"no {asked.shaper}"]
    return _differences(asked.transit.document(), held["transit"], {})


def _differences(asked: Mapping[str, Any], held: Mapping[str, Any], slack: Mapping[str, float]) -> list[str]:
    return [
        f"{name} {held[name]} instead of {wanted}"
        for name, wanted in asked.items()
        if held[name] != wanted
        and (isinstance(wanted, str) or abs(held[name] - wanted) > max(1.0, slack.get(name, 0.0) * wanted))
    ]
