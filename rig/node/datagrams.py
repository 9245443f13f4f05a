"""UDP on one cable: round trips, and numbered packets of which every fate is counted at the other end.

Both ends stamp packets with CLOCK_MONOTONIC. Where they are one machine's, the difference of two stamps is the time
on the way; else only the differences between packets mean anything, and nothing more is made of them here.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Any

STAMP = struct.Struct("=Qd")  # a packet's number, and when it was sent (s)
UDP_SEGMENT = 103  # linux/udp.h: one send, cut into packets of that many bytes below the qdisc's accounting
RECEIVE_BUFFER = 4 * 2**20  # the kernel gives what net.core.rmem_max allows
BREATH = 0.0003  # s between two looks at the clock while sending
WARMING = 5


# ── round trips ──────────────────────────────────────────────────────────────────────────────────────
def echo(endpoint: socket.socket) -> None:
    """Send every packet back to where it came from, until the socket is closed."""
    while True:
        packet, sender = endpoint.recvfrom(64)
        endpoint.sendto(packet, sender)


def round_trips(where: tuple[str, int], order: Mapping[str, Any]) -> list[float]:
    """Seconds of each round trip that came back: `count` small packets, one each `gap` s, several under way at once.

    Raises TimeoutError when none of the first few comes back within `patience` s, or none of the others.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        endpoint.connect(where)
        _warm(endpoint, order["patience"])
        found: dict[int, float] = {}
        count, due, number = order["count"], time.monotonic(), 0
        until = due + order["gap"] * count + order["patience"]
        while len(found) < count and (now := time.monotonic()) < until:
            if number < count and now >= due:
                endpoint.send(STAMP.pack(number, now))
                number, due = number + 1, due + order["gap"]
            _hear(endpoint, found, (due if number < count else until) - now)
    if not found:
        raise TimeoutError(f"no answer to {count} packets")
    return [found[number] for number in sorted(found)]


def _warm(endpoint: socket.socket, patience: float) -> None:
    """The first packet pays for address resolution, which takes a round trip of its own."""
    warm: dict[int, float] = {}
    for number in range(WARMING):
        endpoint.send(STAMP.pack(number, time.monotonic()))
        _hear(endpoint, warm, patience)
        if warm:
            return
    raise TimeoutError(f"no answer to {WARMING} packets, each waited for {patience:.1f} s")


def _hear(endpoint: socket.socket, found: dict[int, float], within: float) -> None:
    endpoint.settimeout(max(within, 1e-4))
    try:
        number, sent = STAMP.unpack(endpoint.recv(64))
    except TimeoutError:
        return
    found.setdefault(number, time.monotonic() - sent)  # of a packet that came twice, the first counts


# ── counted packets ──────────────────────────────────────────────────────────────────────────────────
def send(endpoint: socket.socket, order: Mapping[str, Any]) -> int:
    """Send `count` packets of `size` bytes at `pace` a second, `segments` with one call; returns how many.

    `endpoint` is connected. What the pace gives in `head` s is sent at once, to use up a bucket's credit. After a stall
    at most `burst` s are made up for at once: more might overflow a queue that the pace itself would not. With several
    segments a few more than `count` may be sent.
    """
    size, pace, segments = order["size"], order["pace"], order["segments"]
    if segments > 1:
        endpoint.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    packets = bytearray(size * segments)
    most = max(1.0, order["burst"] * pace)
    number, began = 0, time.monotonic() - order["head"]
    while number < order["count"]:
        due = (time.monotonic() - began) * pace
        if due > number + most:
            began += (due - number - most) / pace
            due = number + most
        while number <= due and number < order["count"]:
            for offset in range(0, len(packets), size):
                STAMP.pack_into(packets, offset, number, time.monotonic())
                number += 1
            endpoint.send(packets)
        time.sleep(BREATH)
    return number


@dataclass
class Arrivals:
    """Packets in the order they came: number, time of sending, time of arrival. Flat arrays: nothing for the garbage
    collector to walk through while packets come in.
    """

    numbers: array[int] = field(default_factory=lambda: array("Q"))
    sent: array[float] = field(default_factory=lambda: array("d"))
    came: array[float] = field(default_factory=lambda: array("d"))


def receiver(address: str) -> socket.socket:
    """A socket that packets can be sent to, with a buffer as large as an ordinary process gets."""
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    endpoint.bind((address, 0))
    return endpoint


def receive(endpoint: socket.socket, control: socket.socket, quiet: float, within: float) -> Arrivals:
    """Take packets until none has come for `quiet` s and `control` has something to say: that all were sent.

    Ends after `within` s whatever happens.
    """
    arrivals = Arrivals()
    number, sent, came = arrivals.numbers.append, arrivals.sent.append, arrivals.came.append
    packet, until = bytearray(1 << 16), time.monotonic() + within
    # By the kernel's own timer: settimeout() would cost another system call for each packet.
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", *divmod(int(quiet * 1e6), 10**6)))
    while (now := time.monotonic()) < until:
        try:
            endpoint.recv_into(packet)
        except BlockingIOError:
            if select.select([control], [], [], 0)[0]:
                break
            continue
        now = time.monotonic()
        one, stamp = STAMP.unpack_from(packet)
        number(one)
        sent(stamp)
        came(now)
    return arrivals


def tally(arrivals: Arrivals, sent: int, size: int, skip: float) -> dict[str, Any]:
    """What became of the packets: `received` (distinct), `duplicated`, `early` (came before one with a lower number),
    `bit_s` of payload since `skip` s after the first, and `spread` of the times on the way (s).
    """
    firsts = sorted({number: place for place, number in reversed(list(enumerate(arrivals.numbers)))}.values())
    return {
        "sent": sent,
        "received": len(firsts),
        "duplicated": len(arrivals.numbers) - len(firsts),
        "early": _overtook([arrivals.numbers[place] for place in firsts]),
        "spread": spread([arrivals.came[place] - arrivals.sent[place] for place in firsts]),
        "bit_s": _rate(arrivals, size, skip),
    }


def _overtook(numbers: Sequence[int]) -> int:
    """Of packets in the order they came: how many came before one with a lower number."""
    lowest, found = float("inf"), 0
    for number in reversed(numbers):
        found += number > lowest
        lowest = min(lowest, number)
    return found


def spread(ways: Sequence[float]) -> float:
    """Half the span of the middle 68 % (15.87 to 84.13): one sigma, of a normal distribution. 0 of nothing."""
    if not ways:
        return 0.0
    ordered = sorted(ways)
    last = len(ordered) - 1
    return (ordered[round(0.8413 * last)] - ordered[round(0.1587 * last)]) / 2


def _rate(arrivals: Arrivals, size: int, skip: float) -> float:
    """The slope of bytes over time by least squares: one packet that was read late then weighs little."""
    times = [came - arrivals.came[0] for came in arrivals.came]
    after = [(moment, 8 * size * count) for count, moment in enumerate(times) if moment >= skip]
    return linear_regression(*zip(*after, strict=True)).slope if len(after) > 2 else 0.0


def refused() -> dict[str, int]:
    """Packets this network namespace has had and not passed on: {"overflowed": no room in the socket, "damaged":
    wrong checksum}; cumulative, from /proc/net/snmp (RcvbufErrors, InCsumErrors).
    """
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text("ascii").splitlines()
                     if line.startswith("Udp:"))  # fmt: skip
    of = dict(zip(names, values, strict=True))
    return {"overflowed": int(of["RcvbufErrors"]), "damaged": int(of["InCsumErrors"])}
