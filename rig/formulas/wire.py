"""TCP payload ↔ bytes on a wire: what Ethernet, IP, TCP and a tunnel add, and what acknowledgements take. Bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rig.model import ETHERNET_WIRE

IP_TCP = 40  # IPv4 20, TCP 20
TIMESTAMPS = 12  # a TCP option, on by default in Linux
SMALLEST = 46  # an Ethernet frame is padded to that much besides its header (IEEE 802.3)
VXLAN = 50  # outer Ethernet 14, IPv4 20, UDP 8, VXLAN 8 (RFC 7348)
PER_ACK = 2  # full segments that one acknowledgement answers (RFC 5681); more where the receiver's GRO merges them


@dataclass(frozen=True)
class Framing:
    """What a path makes of payload.

    `mtu`: of the interface TCP sees, so 1450 inside a VXLAN over 1500. `around`: bytes per packet besides the IP
    packet, 38 on a cable (preamble 8, header 14, FCS 4, gap 12), 14 as tc and interface counters see it. `tunnel`:
    further bytes per packet (VXLAN: 50).
    """

    mtu: int = 1500
    timestamps: bool = True
    around: int = ETHERNET_WIRE
    tunnel: int = 0

    @property
    def headers(self) -> int:
        return IP_TCP + (TIMESTAMPS if self.timestamps else 0)

    @property
    def segment(self) -> int:
        """Payload of a full packet: 1448 at MTU 1500, 1460 without timestamps, 8948 at 9000, 1398 in a VXLAN."""
        return self.mtu - self.headers

    @property
    def overhead(self) -> int:
        """Bytes that each packet adds to its payload."""
        return self.headers + self.tunnel + self.around


def wire_share(framing: Framing) -> float:
    """Payload per byte on the wire, of full packets: (MTU − headers) / (MTU + tunnel + around).

    1448/1538 = 0.9415; without timestamps 1460/1538; at MTU 9000 8948/9038; in a VXLAN 1398/1538.
    """
    return framing.segment / (framing.segment + framing.overhead)


def wire_bytes(payload: int, framing: Framing) -> int:
    """Bytes on the wire one way for one stream of `payload`: itself and the overhead of ⌈payload / segment⌉ packets.

    For one stream that fills its packets, nothing sent twice; every message that ends in a packet of its own adds up
    to one more. Acknowledgements go the other way (see ack_bytes).
    """
    return payload + ceil(payload / framing.segment) * framing.overhead


def payload_bytes(wire: float, framing: Framing) -> float:
    """The payload of so many bytes on the wire of full packets: the other way round, to within a packet."""
    return wire * wire_share(framing)


def ack_bytes(payload: int, framing: Framing, segments: int = PER_ACK) -> int:
    """Bytes of acknowledgements that go back for `payload`, one for every so many full segments.

    An empty packet: 52 B of IP and TCP and what is around it, 90 B on a cable and 66 B as tc counts; without timestamps
    40 B, padded to 46, so 84 on a cable. 2.9 % of what full packets take on the wire at two segments, 0.13 % where GRO
    merges 45 (64 KiB), as on a veth. None is needed where data that goes back carries it.
    """
    empty = max(framing.headers + framing.tunnel, SMALLEST) + framing.around
    return ceil(payload / (segments * framing.segment)) * empty
