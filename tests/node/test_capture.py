"""What a captured frame is said to be; the capturing itself is tested in a lab (tests/lab/test_keeper.py)."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from rig.node.capture import describe
from tests.lab.runs import ROOT

MACS = bytes.fromhex("02000000000a02000000000b")
START, END = bytes([198, 18, 0, 10]), bytes([198, 18, 0, 11])


def ip(protocol: int, rest: bytes, options: bytes = b"", fragment: int = 0) -> bytes:
    """An Ethernet frame with an IPv4 packet in it."""
    header = struct.pack("!BBHHHBBH", 0x45 + len(options) // 4, 0, 0, 0, fragment, 64, protocol, 0)
    return MACS + b"\x08\x00" + header + START + END + options + rest


def tcp(flags: int) -> bytes:
    return struct.pack("!HHIIBBHHH", 29500, 40000, 0, 0, 0x50, flags, 0, 0, 0)


FRAMES = {
    "a segment": (ip(6, tcp(0x18) + b"x" * 10), "198.18.0.10:29500 → 198.18.0.11:40000 TCP PA, 64 B"),
    "one with IP options": (ip(6, tcp(0x02), bytes(8)), "198.18.0.10:29500 → 198.18.0.11:40000 TCP S, 62 B"),
    "a null scan": (ip(6, tcp(0)), "198.18.0.10:29500 → 198.18.0.11:40000 TCP none, 54 B"),
    "a datagram": (ip(17, struct.pack("!HHHH", 5, 9, 8, 0)), "198.18.0.10:5 → 198.18.0.11:9 UDP, 42 B"),
    "a later fragment": (ip(17, b"abcdefgh", fragment=185), "198.18.0.10 → 198.18.0.11 UDP, 42 B"),
    "an echo": (ip(1, bytes(8)), "198.18.0.10 → 198.18.0.11 ICMP, 42 B"),
    "something else in IP": (ip(89, bytes(8)), "198.18.0.10 → 198.18.0.11 89, 42 B"),
    "who has": (
        MACS + b"\x08\x06" + bytes.fromhex("0001080006040001") + MACS[6:] + START + bytes(6) + END,
        "ARP 198.18.0.10 → 198.18.0.11 ?, 42 B",
    ),
    "another protocol": (MACS + b"\x86\xdd" + bytes(40), "02:00:00:00:00:0b → 02:00:00:00:00:0a type 0x86dd, 54 B"),
    "half a header": (ip(6, b"")[:30], "cut short, 30 B"),
    "no ports": (ip(6, b""), "cut short, 34 B"),
    "nothing": (b"", "cut short, 0 B"),
}


@pytest.mark.parametrize("what", list(FRAMES))
def test_a_frame_in_words(what: str) -> None:
    frame, words = FRAMES[what]
    assert describe(frame) == words


def test_an_interface_that_is_not_is_one_sentence() -> None:
    argv = [sys.executable, "-m", "rig.node.capture", "no-such-card"]
    answer = subprocess.run(argv, check=False, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert answer.returncode == 3
    assert answer.stderr.startswith("no-such-card: capture packets: ")
    assert len(answer.stderr.splitlines()) == 1
