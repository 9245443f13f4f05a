"""One network namespace as the fabric sees it: its interfaces, and what is done to them.

The only user of pyroute2. A netlink socket belongs to the namespace it was made in, so nobody has to go back there.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg.common import tick_in_usec

from rig.errors import FabricError
from rig.fabric import netem
from rig.fabric.shape import LARGEST_RATE, Tbf, Transit
from rig.node import namespaces
from rig.node.netlink import ROOT, TCA_KIND, TCA_OPTIONS, Netlink

ROOT_HANDLE = 0x5219_0000  # ours, so that a foreign qdisc is never taken for it
BUCKET_HANDLE, BUCKET_PARENT = 0x521A_0000, ROOT_HANDLE + 1  # of a token bucket inside a netem
LINK_SCOPE, KERNEL_PROTO = 253, 2  # as the kernel's own route to a connected subnet, which ours replaces
# include/uapi/linux/neighbour.h: an entry of the bridge rather than of the port; and one that stays, but is another
# place's ("permanent" means the switch itself to a bridge).
NTF_MASTER, NUD_NOARP = 0x04, 0x40
RTAX_RTO_MIN = 13  # linux/rtnetlink.h
QUEUE_LENGTH = 10_000  # packets a TAP holds for its reader: the kernel's 500 are 6 ms of full frames at 1 Gb/s

_HOME = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)  # the fabric's own


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Translate what the kernel or pyroute2 raises into a FabricError that says what was attempted."""
    try:
        yield
    except NetlinkError as error:
        raise FabricError(f"{what}: the kernel refused: {os.strerror(error.code)} ({error.code})") from error
    except OSError as error:
        raise FabricError(f"{what}: {error.strerror or error}") from error


def mac(address: str) -> str:
    """The hardware address of the place with an IPv4 address: locally administered, and known before it exists."""
    return "02:52:" + ":".join(f"{octet:02x}" for octet in IPv4Address(address.split("/")[0]).packed)


class Place:
    """A namespace: `pid` is any process in it, None means the fabric's own."""

    def __init__(self, pid: int | None) -> None:
        self.path = f"/proc/{pid}/ns/net" if pid else "/proc/self/ns/net"
        self._numbers: dict[str, int] = {}
        with self.inside():
            self.route = IPRoute()
            self.netlink = Netlink()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This process, moved there for a while."""
        namespaces.setns(self.path, namespaces.NEWNET)
        try:
            yield
        finally:
            namespaces.setns(f"/proc/self/fd/{_HOME}", namespaces.NEWNET)

    def number(self, interface: str) -> int:
        """The interface's index, asked for once. Raises OSError."""
        if interface not in self._numbers:
            with self.inside():
                self._numbers[interface] = socket.if_nametoindex(interface)
        return self._numbers[interface]

    # ── interfaces ───────────────────────────────────────────────────────────────────────────────────
    def bridge(self, name: str, address: str) -> None:
        """Make a switch with an address "A/P"."""
        self.route.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0, address=mac(address))
        self.up("lo")
        self.address(name, address)

    def cable(self, here: Mapping[str, Any], there: Place, other: Mapping[str, Any]) -> None:
        """Make a veth pair: one end here, the other in another place; each with its name and settings."""
        descriptor = os.open(there.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.route.link("add", kind="veth", peer={**other, "net_ns_fd": descriptor}, **here)
        finally:
            os.close(descriptor)

    def settle(self, interface: str, settings: Mapping[str, Any]) -> None:
        """Give a TAP what a veth end is made with."""
        self.route.link("set", index=self.number(interface), txqlen=QUEUE_LENGTH, **settings)

    def up(self, interface: str, state: str = "up") -> None:
        """Bring an interface up, or down."""
        self.route.link("set", index=self.number(interface), state=state)

    def address(self, interface: str, address: str) -> None:
        """Give an interface an address "A/P"."""
        host, prefix = address.split("/")
        self.route.addr("add", index=self.number(interface), address=host, prefixlen=int(prefix))

    def enslave(self, interface: str, bridge: str) -> None:
        """Plug an interface into a switch."""
        self.route.link("set", index=self.number(interface), master=self.number(bridge))

    # ── ways ─────────────────────────────────────────────────────────────────────────────────────────
    def silence(self, port: str) -> None:
        """Have a switch send by this port only what an entry of its table says: a mesh of switches has loops."""
        number = self.number(port)
        self.route.brport("set", index=number, unicast_flood=0, mcast_flood=0, bcast_flood=0, learning=0)

    def forward(self, port: str, address: str) -> None:
        """Have a switch send what is for an address by this port."""
        self.route.fdb("add", ifindex=self.number(port), lladdr=mac(address), flags=NTF_MASTER, state=NUD_NOARP)

    def neighbour(self, interface: str, address: str) -> None:
        """Know the hardware address of a place without asking."""
        number = self.number(interface)
        self.route.neigh("replace", dst=address, lladdr=mac(address), ifindex=number, state="permanent")

    def steer(self, interface: str, address: str, tcp: Mapping[str, Any]) -> None:
        """Congestion control by route: a namespace may be forbidden the sysctl, the attribute it is not. The kernel
        goes by a route's rto_min only where it is locked (tcp_rto_min in net/ipv4/tcp_output.c).
        """
        metrics = {"cc_algo": tcp["congestion"], "rto_min": tcp["rto_min"], "lock": 1 << RTAX_RTO_MIN}
        self.route.route(
            "replace", dst=tcp["subnet"], oif=self.number(interface), prefsrc=address.split("/")[0],
            scope=LINK_SCOPE, proto=KERNEL_PROTO, metrics=metrics,
        )  # fmt: skip

    # ── shaping ──────────────────────────────────────────────────────────────────────────────────────
    def shape(self, interface: str, bucket: Tbf, transit: Transit | None, seed: int) -> None:
        """Put a token bucket on what the interface sends; with a transit, inside a netem that does the rest.

        netem hands a packet to the bucket once its delay is over, so the queue that overflows is the bucket's.
        """
        if bucket.rate > LARGEST_RATE:
            raise FabricError(f"{interface}: shape: {bucket.rate} B/s is beyond the kernel's 32-bit rate field")
        number, at = self.number(interface), {"handle": ROOT_HANDLE}
        if transit is not None:
            self.netlink.put_qdisc("netem", (number, ROOT_HANDLE, ROOT), netem.options(transit, seed))
            at = {"handle": BUCKET_HANDLE, "parent": BUCKET_PARENT}
        self.route.tc("replace", "tbf", number, rate=bucket.rate, burst=bucket.burst, limit=bucket.limit, **at)

    def reshape(self, interface: str, bucket: Tbf, transit: Transit | None, seed: int) -> None:
        """Change both in place: what is queued stays queued. Each of the two is one message, so never half in force."""
        number, at = self.number(interface), {"handle": ROOT_HANDLE}
        if transit is not None:
            self.netlink.put_qdisc("netem", (number, ROOT_HANDLE, ROOT), netem.options(transit, seed), flags=0)
            at = {"handle": BUCKET_HANDLE, "parent": BUCKET_PARENT}
        self.route.tc("change", "tbf", number, rate=bucket.rate, burst=bucket.burst, limit=bucket.limit, **at)

    def offers_netem(self) -> bool:
        """Whether this kernel has netem, or can load it."""
        return self.netlink.has_qdisc("netem", (self.number("lo"), ROOT_HANDLE, ROOT))

    # ── what there is ────────────────────────────────────────────────────────────────────────────────
    def qdiscs(self) -> dict[tuple[int, int], Any]:
        """The kernel's message on each qdisc, by interface number and parent: one dump for all."""
        return {(message["index"], message["parent"]): message for message in self.route.get_qdiscs()}

    def netems(self) -> dict[int, bytes]:
        """The options of each root netem, by interface number."""
        found = (one for one in self.netlink.qdiscs() if one.attributes.get(TCA_KIND) == b"netem\0")
        return {one.interface: one.attributes[TCA_OPTIONS] for one in found}

    def mtus(self) -> dict[int, int]:
        """The largest IP packet of each interface, by number."""
        return {link["index"]: link.get_attr("IFLA_MTU") for link in self.route.get_links()}


def bucket_held(message: Any) -> dict[str, Any]:
    """A token bucket as the kernel tells of it: {"rate", "burst", "limit"} in bytes, or what stands in its place."""
    if message is None:  # somebody removed it
        return {"kind": "no qdisc"}
    held: dict[str, Any] = {"kind": message.get_attr("TCA_KIND")}
    if held["kind"] == "tbf":
        parms = message.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
        burst = parms["buffer"] / tick_in_usec / 1e6 * parms["rate"]
        held |= {"rate": parms["rate"], "burst": round(burst), "limit": parms["limit"]}
    return held


def counted(message: Any) -> dict[str, int]:
    """What a qdisc has counted: {"bytes" (as tc counts), "packets", "drops", "backlog"}. Raises OSError when it is
    gone.
    """
    if message is None:
        raise OSError(errno.ENODATA, "a link has lost its qdisc, and with it what was counted")
    stats = message.get_attr("TCA_STATS")
    return {"bytes": stats["bytes"], "packets": stats["packets"], "drops": stats["drop"], "backlog": stats["backlog"]}


def offered() -> str:
    """Congestion controls that are built in or loaded; another may need `modprobe tcp_NAME`."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text("ascii").strip().replace(" ", ", ")
