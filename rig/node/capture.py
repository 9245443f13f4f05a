"""Packets on an interface, as a pcap file or one line each: what `tcpdump` would do, where none is installed.

    python -m rig.node.capture INTERFACE [--text] [--count N] [--seconds S]

Ends after so many packets or seconds, or when stdin does. Super-packets are shown as the kernel carries them, up to
64 KiB in one piece, and their checksums are not filled in yet: that is the sending end's offload, not damage.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_PROTOCOL = 0x0003  # ETH_P_ALL: both directions, include/uapi/linux/if_ether.h
OUTGOING = 4  # PACKET_OUTGOING, include/uapi/linux/if_packet.h
LONGEST = 1 << 18  # bytes kept of a packet; longer than any
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_RCVBUFFORCE = 33
_BACKLOG = 64 * 2**20  # bytes the kernel may hold while this process has no CPU
_NANOSECOND_PCAP = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, LONGEST, 1)  # 1: Ethernet; pcap-savefile(5)
_FLAGS = "FSRPAUEC"  # TCP's, from the lowest bit


@dataclass(frozen=True)
class Packet:
    """One frame as the interface saw it."""

    at: int  # nanoseconds since 1970, the kernel's stamp
    data: memoryview
    sent: bool  # by this interface, rather than received


Write = Callable[[Packet], None]


def capture(interface: str, begin: Callable[[], Write], count: int, seconds: float) -> tuple[int, int]:
    """Hand every packet to what `begin` gives, until `count` are taken, `seconds` are over or stdin ends; 0 stands for
    no limit.

    Returns how many were taken, and how many the kernel had to drop. Raises OSError when it refuses.
    """
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as taken:
        _room(taken)
        taken.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        taken.bind((interface, EVERY_PROTOCOL))  # from here on, and of this interface alone
        write = begin()
        sys.stderr.write("capturing\n")
        sys.stderr.flush()
        number = _take(taken, write, count, time.monotonic() + seconds if seconds else float("inf"))
        _, dropped = struct.unpack("=II", taken.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return number, dropped


def _room(taken: socket.socket) -> None:
    try:
        taken.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BACKLOG)
    except OSError:  # not in a user namespace of an older kernel: as much as net.core.rmem_max allows
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BACKLOG)


def _take(taken: socket.socket, write: Write, count: int, until: float) -> int:
    buffer = bytearray(LONGEST)
    number = 0
    while number < count or not count:
        left = until - time.monotonic()
        ready = select.select([taken.fileno(), 0], [], [], max(0.0, min(left, 1e6)))[0]
        if taken.fileno() in ready:
            length, marks, _, address = taken.recvmsg_into([buffer], 64)
            write(Packet(_stamp(marks), memoryview(buffer)[:length], address[2] == OUTGOING))
            number += 1
        elif left <= 0 or (ready and not os.read(0, 4096)):
            break
    return number


def _stamp(marks: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in marks:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("=qq", value[:16])
            return int(seconds) * 10**9 + int(nanoseconds)
    return time.time_ns()


# ── as a file ────────────────────────────────────────────────────────────────────────────────────────
def as_pcap() -> Write:
    """Write a pcap file with nanoseconds to stdout, its header at once."""
    out = sys.stdout.buffer
    out.write(_NANOSECOND_PCAP)
    out.flush()

    def write(packet: Packet) -> None:
        length = len(packet.data)
        out.write(struct.pack("=IIII", packet.at // 10**9, packet.at % 10**9, length, length) + packet.data)

    return write


# ── as lines ─────────────────────────────────────────────────────────────────────────────────────────
def as_text() -> Write:
    """Write a line a packet to stdout. At a switch's end of a cable, what the interface sends goes down the cable."""

    def write(packet: Packet) -> None:
        moment = time.strftime("%H:%M:%S", time.localtime(packet.at // 10**9))
        way = "down" if packet.sent else "up  "
        sys.stdout.write(f"{moment}.{packet.at % 10**9 // 1000:06d} {way} {describe(packet.data)}\n")
        sys.stdout.flush()

    return write


def describe(frame: bytes | memoryview) -> str:
    """A frame in a few words: addresses, ports, protocol, bytes with all headers, and TCP's flags."""
    try:
        return f"{_network(memoryview(frame))}, {len(frame)} B"
    except (struct.error, IndexError):
        return f"cut short, {len(frame)} B"


def _network(frame: memoryview) -> str:
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == 0x0806:
        return f"ARP {_dotted(frame, 28)} → {_dotted(frame, 38)} {'?' if frame[21] == 1 else 'is here'}"
    if kind != 0x0800:
        return f"{frame[6:12].hex(':')} → {frame[:6].hex(':')} type {kind:#06x}"
    start, end = _dotted(frame, 26), _dotted(frame, 30)
    names = {1: "ICMP", 6: "TCP", 17: "UDP"}
    protocol = frame[23]
    if protocol not in (6, 17) or struct.unpack_from("!H", frame, 20)[0] & 0x1FFF:  # a later fragment has no ports
        return f"{start} → {end} {names.get(protocol, protocol)}"
    ports = 14 + (frame[14] & 15) * 4
    sender, receiver = struct.unpack_from("!HH", frame, ports)
    said = f"{start}:{sender} → {end}:{receiver} {names[protocol]}"
    return f"{said} {_flags(frame[ports + 13])}" if protocol == 6 else said


def _dotted(frame: memoryview, at: int) -> str:
    return ".".join(str(frame[at + place]) for place in range(4))


def _flags(bits: int) -> str:
    return "".join(letter for place, letter in enumerate(_FLAGS) if bits >> place & 1) or "none"


def main() -> int:
    """Parse the command line, capture, and say on stderr how much there was."""
    parser = argparse.ArgumentParser(prog="rig.node.capture")
    parser.add_argument("interface")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    given = parser.parse_args()
    try:
        begin = as_text if given.text else as_pcap
        number, dropped = capture(given.interface, begin, given.count, given.seconds)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the packets has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        sys.stderr.write(f"{given.interface}: capture packets: {error.strerror or error}\n")
        return 3
    sys.stderr.write(f"{number} packets captured, {dropped} dropped by the kernel\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
