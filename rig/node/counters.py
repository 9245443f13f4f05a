"""What a rank has sent, and how long it waited for a CPU: read by the rank itself between two steps."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from rig.node import netlink

_TCP_INFO_SIZE = 216  # up to and with tcpi_bytes_retrans: include/uapi/linux/tcp.h
WIRE_EXTRA = 24  # bytes a cable carries per frame beyond what a qdisc counts: preamble 8, FCS 4, gap 12


@dataclass(frozen=True)
class Reading:
    """Cumulative counters at one moment."""

    payload: int  # TCP payload handed to the kernel, retransmissions not counted (bytes)
    wire: int  # bytes on the cable, all headers, preamble and gap included
    run_delay: float  # seconds the process's first thread was runnable but had no CPU

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(
            self.payload - earlier.payload, self.wire - earlier.wire, max(0.0, self.run_delay - earlier.run_delay)
        )


class Meter:
    """Reads this process's own sockets (not the rendezvous store's) and one interface's root qdisc.

    What ranks of one node say to one another crosses no cable and does not count. A socket that is closed keeps its
    last reading, so the sum never falls.
    """

    def __init__(self, exclude_port: int, interface: str | None) -> None:
        self._exclude_port = exclude_port
        self._interface = interface
        self._written: dict[int, int] = {}

    def read(self) -> Reading:
        """Take a reading. Raises OSError when the kernel refuses."""
        for connection in own_connections():
            if not connection.inside and self._exclude_port not in (connection.local_port, connection.remote_port):
                self._written[connection.inode] = connection.written
        return Reading(sum(self._written.values()), wire_sent(self._interface), _run_delay())


@dataclass(frozen=True)
class Connection:
    """One TCP connection of this process; `written` is the payload it has handed to TCP (bytes)."""

    inode: int
    local_port: int
    remote_port: int
    written: int
    retransmitted: int
    inside: bool  # whether its peer has this node's own address: another process of it


def own_connections() -> Iterator[Connection]:
    """Every TCP connection this process has open, by tcp_info of its own descriptors.

    Not by a dump of sock_diag: that walks the hash table of the whole machine, 5 to 10 ms where memory is plenty
    (net/ipv4/inet_diag.c), and delays the step that follows.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:["):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed by now, as the listing's own descriptor is
            continue
        with copy:
            if copy.type != socket.SOCK_STREAM or copy.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if connection := _connection(copy):
                yield connection


def _connection(of: socket.socket) -> Connection | None:
    """None for a socket that is not connected. written = acknowledged + in the send queue (write_seq − snd_una).

    Not bytes_sent − bytes_retrans: what the node's own qdisc drops is sent again without being counted as
    retransmitted (net/ipv4/tcp_output.c, tcp_write_xmit). The SYN of the side that connects counts as one byte.
    """
    try:
        there, remote = of.getpeername()[:2]
    except OSError:
        return None
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    if len(info) < _TCP_INFO_SIZE:
        raise OSError(errno.ENOSYS, "tcp_info is too short; Linux 4.19 or later is needed")
    queued = struct.unpack("=i", fcntl.ioctl(of.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    (acknowledged,) = struct.unpack_from("=Q", info, 120)
    (again,) = struct.unpack_from("=Q", info, 208)
    here, local = of.getsockname()[:2]
    inside = here == there and not ip_address(here).is_loopback  # which is where tests and people try a rank by hand
    return Connection(os.fstat(of.fileno()).st_ino, local, remote, acknowledged + queued, again, inside)


def wire_sent(interface: str | None) -> int:
    """Bytes the interface has put on the cable, by its root qdisc; 0 when it has none. Raises OSError."""
    if interface is None:
        return 0
    count, frames = netlink.root_qdisc_counters(interface)
    return count + WIRE_EXTRA * frames


def _run_delay() -> float:
    """Second figure of schedstat: nanoseconds on a run queue (Documentation/scheduler/sched-stats.rst)."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # kernels without CONFIG_SCHED_INFO
        return 0.0
