"""What a lab would find in this kernel, tried out in a network namespace of its own: `python -m rig.fabric.offers`.

Emits {"event": "offers", "qdiscs": {kind: whether it is there}, "tap": why there is none, or ""}.
"""

from __future__ import annotations

import os
import socket

from rig.errors import FabricError
from rig.fabric.tap import open_tap
from rig.node.netlink import ROOT, Netlink
from rig.node.stream import Stream

QDISCS = ("tbf", "netem", "htb", "fq", "fq_codel")  # the first two are the rig's own; the others are good to know of
_HANDLE = 0x5219_0000


def offers() -> dict[str, object]:
    """Try everything; nothing of it outlives the namespace."""
    netlink = Netlink()
    loopback = socket.if_nametoindex("lo")
    return {"qdiscs": {kind: netlink.has_qdisc(kind, (loopback, _HANDLE, ROOT)) for kind in QDISCS}, "tap": _tap()}


def _tap() -> str:
    try:
        os.close(open_tap("doctor"))
    except FabricError as error:
        return str(error).rpartition("interface: ")[2]
    return ""


if __name__ == "__main__":
    Stream().emit("offers", **offers())
