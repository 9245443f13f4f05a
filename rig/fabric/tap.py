"""TAP interfaces: network cards whose cable is a file descriptor; Linux Documentation/networking/tuntap.rst.

The delay line reads what such an interface sends, and what it writes the interface receives. Packets may be up to
64 KiB, as on a veth pair: each carries the 10 bytes of a `struct virtio_net_hdr` that say how to cut it up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from rig.errors import FabricError

DEVICE = "/dev/net/tun"
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
_TAP, _NO_PACKET_INFO, _VNET_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TSO4, _TSO_ECN, _USO4, _USO6 = 0x01, 0x02, 0x08, 0x20, 0x40  # the last two only together
_LONGEST_NAME = 15  # IFNAMSIZ − 1
CLOSED = f"only root may open {DEVICE} here; run as root, or sudo chmod 666 {DEVICE}; or use a kernel with sch_netem"
MISSING = f"this kernel has no TAP interfaces ({DEVICE}); sudo modprobe tun; or use a kernel with sch_netem"


def open_tap(name: str) -> int:
    """Make the interface `name` in this thread's network namespace; returns its descriptor, which does not block.

    The interface is gone once the descriptor is closed everywhere. It is down, and has the kernel's own queue
    length and MTU. Raises FabricError.
    """
    if not 0 < len(name.encode()) <= _LONGEST_NAME:
        raise FabricError(f"{name}: make a TAP interface: a name has 1 to {_LONGEST_NAME} bytes; shorten it")
    descriptor = _open(name)
    try:
        flags = _TAP | _NO_PACKET_INFO | _VNET_HEADER
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        _take_whole(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise FabricError(f"{name}: make a TAP interface: {error.strerror}; is the name free?") from error
    return descriptor


def _take_whole(descriptor: int) -> None:
    """Have super-packets handed over as they are: of TCP, and of UDP where the kernel can (Linux 6.2)."""
    try:
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUM | _TSO4 | _TSO_ECN | _USO4 | _USO6)
    except OSError:
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUM | _TSO4 | _TSO_ECN)


def _open(name: str) -> int:
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM)
        reason = CLOSED if denied else MISSING
        raise FabricError(f"{name}: make a TAP interface: {error.strerror}: {reason}") from error
