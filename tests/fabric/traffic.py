"""Traffic between the two ends of a wire: `traffic.py OTHER-PID KIND ARGUMENT…`, started at end a; prints JSON.

One process has sockets at both ends: a socket belongs to the namespace it was made in.
"""

from __future__ import annotations

import json
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from socket import (
    AF_INET,
    IPPROTO_TCP,
    SO_RCVBUF,
    SO_REUSEADDR,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_CONGESTION,
    socket,
)
from typing import Any

from rig.node import namespaces

A, B = "10.9.0.1", "10.9.0.2"
PORT = 5000


class Ends:
    """Sockets at end a, and at end b."""

    def __init__(self, other: int) -> None:
        self._other = other
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)

    def open(self, end: str, kind: int) -> socket:
        """A socket at an end, with an address."""
        path = f"/proc/{self._other}/ns/net" if end == "b" else f"/proc/self/fd/{self._home}"
        namespaces.setns(path, namespaces.NEWNET)
        made = socket(AF_INET, kind)
        made.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        made.bind((A if end == "a" else B, PORT))
        return made

    def datagrams(self) -> tuple[socket, socket]:
        """Two UDP sockets; a sends to b, and b has a large buffer."""
        a, b = self.open("a", SOCK_DGRAM), self.open("b", SOCK_DGRAM)
        a.connect((B, PORT))
        b.setsockopt(SOL_SOCKET, SO_RCVBUF, 2**22)
        return a, b


def rtt(ends: Ends, count: str, gap: str = "0.002") -> dict[str, Any]:
    """Round trips, one at a time (s); where a packet is lost that one is left out."""
    a, b = ends.datagrams()
    found, one_way = [], []
    for number in range(int(count)):
        time.sleep(float(gap))
        word, began = struct.pack("=I", number), time.perf_counter()
        a.send(word)
        if _arrives(b, word):
            one_way.append(time.perf_counter() - began)
            b.sendto(word, (A, PORT))
            if _arrives(a, word):
                found.append(time.perf_counter() - began)
    return {"rtt": sorted(found), "one_way": sorted(one_way)}


def _arrives(end: socket, word: bytes) -> bool:
    """Whether this word arrives within a second; older ones are passed over."""
    deadline = time.perf_counter() + 1
    while select.select([end], [], [], max(0.0, deadline - time.perf_counter()))[0]:
        if end.recv(2048) == word:
            return True
    return False


def count(ends: Ends, packets: str, size: str = "200", gap: str = "0.0001", wait: str = "0.3") -> dict[str, Any]:
    """Numbered packets from a to b: the numbers that arrived, in their order, and how many with other contents."""
    a, b = ends.datagrams()
    b.setblocking(False)
    filling = bytes(int(size) - 4)
    arrived: list[bytes] = []
    begin = time.perf_counter()
    for number in range(int(packets)):
        a.send(struct.pack("=I", number) + filling)
        while time.perf_counter() < begin + (number + 1) * float(gap):
            arrived += _waiting(b)
    end = time.perf_counter() + float(wait)
    while time.perf_counter() < end:
        arrived += _waiting(b)
        time.sleep(0.001)
    return {
        "arrived": [struct.unpack_from("=I", packet)[0] for packet in arrived],
        "spoilt": sum(packet[4:] != filling for packet in arrived),
    }


def _waiting(end: socket) -> Iterator[bytes]:
    """What has arrived."""
    try:
        while True:
            yield end.recv(65536)
    except BlockingIOError:
        return


def flood(ends: Ends, seconds: str, size: str = "1472") -> dict[str, Any]:
    """As many packets as the sender can: how many a second it sent, and how many a second arrived."""
    a, b = ends.datagrams()
    pid = os.fork()
    if pid == 0:
        packet, end = bytes(int(size)), time.monotonic() + float(seconds)
        sent = 0
        while time.monotonic() < end:
            for _ in range(20):
                a.send(packet)
            sent += 20
        os._exit(0)
    b.settimeout(1.0)
    got, began = 0, time.monotonic()
    last = began
    try:
        while True:
            b.recv(65536)
            got += 1
            last = time.monotonic()
    except TimeoutError:
        pass
    os.waitpid(pid, 0)
    return {"arrived": got / (last - began)}


def bulk(ends: Ends, seconds: str, congestion: str = "reno") -> dict[str, Any]:
    """TCP from a to b: goodput between its second quarter and its end (bit/s), and segments sent again."""
    listening = ends.open("b", SOCK_STREAM)
    listening.listen(1)
    sending = ends.open("a", SOCK_STREAM)
    sending.setsockopt(IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
    pid = os.fork()
    if pid == 0:
        sending.connect((B, PORT))
        sending.settimeout(5)
        data, end = bytes(2**20), time.monotonic() + float(seconds)
        while time.monotonic() < end:
            sending.send(data)
        os._exit(0)
    connection = listening.accept()[0]
    sending.close()
    began = time.monotonic()
    total, marks = 0, []
    buffer = bytearray(2**20)
    while size := connection.recv_into(buffer):
        total += size
        marks.append((time.monotonic(), total))
    os.waitpid(pid, 0)
    settled = next(mark for mark in marks if mark[0] >= began + float(seconds) / 2)
    goodput = 8 * (total - settled[1]) / (marks[-1][0] - settled[0])
    with open("/proc/self/net/snmp", encoding="ascii") as file:
        names, values = [line.split() for line in file if line.startswith("Tcp:")]
    return {"goodput": goodput, "bytes": total, "resent": dict(zip(names, values, strict=True))["RetransSegs"]}


KINDS: Mapping[str, Callable[..., dict[str, Any]]] = {"rtt": rtt, "count": count, "flood": flood, "bulk": bulk}


def main() -> None:
    """Run one kind of traffic."""
    other, kind, *arguments = sys.argv[1:]
    print(json.dumps(KINDS[kind](Ends(int(other)), *arguments)))


if __name__ == "__main__":
    main()
