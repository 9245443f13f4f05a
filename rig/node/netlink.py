"""The little netlink that is needed where pyroute2 is not, or falls short: by the standard library alone.

Layouts are the kernel's: include/uapi/linux/{netlink,rtnetlink,gen_stats}.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

NETLINK_ROUTE = 0
RTM_NEWQDISC, RTM_GETQDISC = 36, 38
REPLACE, CREATE = 0x100, 0x400  # flags of a request that makes something
TCA_KIND, TCA_OPTIONS = 1, 2
ROOT = 0xFFFFFFFF
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 0x1, 0x4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCA_STATS2, _TCA_STATS_BASIC = 7, 1
_HEADER = struct.Struct("=IHHII")
_TCMSG = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_PATIENCE = 5  # seconds


class Qdisc(NamedTuple):
    """One queueing discipline as the kernel tells of it."""

    interface: int
    handle: int
    parent: int
    attributes: dict[int, bytes]


class Netlink:
    """A socket that belongs to the network namespace it was made in, wherever its process goes afterwards."""

    def __init__(self) -> None:
        self._channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE)
        self._channel.settimeout(_PATIENCE)

    def close(self) -> None:
        """Give the socket back."""
        self._channel.close()

    def qdiscs(self) -> Iterator[Qdisc]:
        """Every qdisc of the namespace. Raises OSError."""
        for body in self._dump(RTM_GETQDISC, _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            _, interface, handle, parent, _ = _TCMSG.unpack_from(body)
            yield Qdisc(interface, handle, parent, dict(attributes(body[_TCMSG.size :])))

    def put_qdisc(self, kind: str, at: tuple[int, int, int], options: bytes, flags: int = CREATE | REPLACE) -> None:
        """Set a qdisc; `at`: interface, handle, parent. With `flags` 0 one that is there changes. Raises OSError."""
        interface, handle, parent = at
        body = _TCMSG.pack(socket.AF_UNSPEC, interface, handle, parent, 0)
        body += attribute(TCA_KIND, kind.encode() + b"\0") + attribute(TCA_OPTIONS, options)
        kind_and_flags = (RTM_NEWQDISC, _NLM_F_REQUEST | _NLM_F_ACK | flags)
        self._channel.send(_HEADER.pack(_HEADER.size + len(body), *kind_and_flags, 1, 0) + body)
        (code,) = struct.unpack_from("=i", self._channel.recv(1 << 16), _HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))

    def has_qdisc(self, kind: str, at: tuple[int, int, int]) -> bool:
        """Whether the kernel has such a qdisc, tried without options: one that is there takes or refuses that, one that
        is not gives ENOENT (net/sched/sch_api.c). tbf and netem refuse, so that nothing is left of the try.
        """
        try:
            self.put_qdisc(kind, at, b"")
        except OSError as error:
            return error.errno != errno.ENOENT
        return True

    def _dump(self, kind: int, request: bytes) -> Iterator[bytes]:
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        self._channel.send(_HEADER.pack(_HEADER.size + len(request), kind, flags, 1, 0) + request)
        while True:
            data = memoryview(self._channel.recv(1 << 17))
            while data:
                length, found, *_ = _HEADER.unpack_from(data)
                if found == _NLMSG_DONE:
                    return
                if found == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", data, _HEADER.size)[0]
                    raise OSError(code, f"netlink dump {kind} refused")
                yield bytes(data[_HEADER.size : length])
                data = data[length + 3 & ~3 :]


def root_qdisc_counters(interface: str) -> tuple[int, int]:
    """Bytes (14 B of header counted per frame, segments of a super-packet one by one) and frames sent.

    Raises OSError when there is no such interface.
    """
    index = socket.if_nametoindex(interface)
    netlink = Netlink()
    try:
        for qdisc in list(netlink.qdiscs()):
            if qdisc.interface == index and qdisc.parent == ROOT:
                stats = dict(attributes(qdisc.attributes.get(_TCA_STATS2, b"")))
                count, frames = struct.unpack_from("=QI", stats[_TCA_STATS_BASIC])
                return int(count), int(frames)
    finally:
        netlink.close()
    return 0, 0


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a message's rest, or in another attribute: kind and value."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[length + 3 & ~3 :]
