"""Ethernet frames as a TAP descriptor carries them, behind a `struct virtio_net_hdr` of 10 bytes: breaking one bit.

The header is linux/virtio_net.h's: flags, kind of super-packet, length of headers, segment size, and where a
checksum that the sender left to the hardware begins and belongs.
"""

from __future__ import annotations

import struct
from random import Random

HEADER = 10  # bytes before the frame
_FIELDS = struct.Struct("=BBHHHH")
_NEEDS_CHECKSUM = 1
_ADDRESSES_AND_IP = 34  # bytes of Ethernet and IPv4 header


def corrupted(packet: bytes, random: Random) -> bytes:
    """The packet with one random bit of its frame flipped, and with its checksum filled in before.

    The payload of a super-packet has no checksums yet: whoever cuts it up would seal the damage. So there the bit is
    one of the Ethernet and IP headers, and the whole is dropped.
    """
    flags, gso, *_, start, offset = _FIELDS.unpack_from(packet)
    frame = bytearray(packet[HEADER:])
    if gso:
        return packet[:HEADER] + _flipped(frame, random.randrange(8 * min(_ADDRESSES_AND_IP, len(frame))))
    if flags & _NEEDS_CHECKSUM:
        fill_in_checksum(frame, start, start + offset)
    return bytes(HEADER) + _flipped(frame, random.randrange(8 * len(frame)))  # no flags: the receiver must check it


def fill_in_checksum(frame: bytearray, start: int, place: int) -> None:
    """What the hardware would do: the Internet checksum (RFC 1071) of all from `start` on, at `place`.

    The sender has put the pseudo-header's sum there already.
    """
    covered = bytes(frame[start:]) + bytes((len(frame) - start) % 2)
    total = int.from_bytes(covered, "big") % 0xFFFF  # the one's complement sum of 16-bit words, as 2¹⁶ = 1 (mod it)
    struct.pack_into("!H", frame, place, 0xFFFF - total)  # never 0, which in UDP means: no checksum


def _flipped(frame: bytearray, bit: int) -> bytes:
    frame[bit // 8] ^= 1 << bit % 8
    return bytes(frame)
