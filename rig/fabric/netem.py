"""A Transit as netem is told it, and back: the payload of its netlink options. Pure.

Layouts and meanings: include/uapi/linux/pkt_sched.h and net/sched/sch_netem.c. pyroute2's own netem lacks the jitter
tables, the Gilbert–Elliott loss and times finer than a tick.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from rig.fabric.quantiles import table
from rig.fabric.shape import Transit
from rig.node.netlink import attribute, attributes

_QOPT = struct.Struct("=IIIIII")  # latency, limit, loss, gap, duplicate, jitter; times are in the *64 attributes
_PAIR = struct.Struct("=II")  # probability, correlation
_GE = struct.Struct("=IIII")  # p, r, h (kept in the bad state), 1−k (lost in the good one)
_DELAY_DIST, _REORDER, _CORRUPT, _LOSS = 2, 3, 4, 5
_LATENCY64, _JITTER64, _PRNG_SEED = 10, 11, 14  # the last from Linux 6.6 on; older kernels pass it over
_LOSS_GE = 2
_NESTED = 0x8000
_WHOLE = 2**32 - 1  # a probability of one
_BILLION = 10**9


def options(transit: Transit, seed: int) -> bytes:
    """The options of a netem qdisc that does what a transit says."""
    bursty = transit.enter > 0
    gap = 1 if transit.reorder else 0  # every packet is drawn for
    loss = 0 if bursty else _share(transit.good)
    text = _QOPT.pack(0, transit.packets, loss, gap, _share(transit.duplicate), 0)
    text += attribute(_LATENCY64, struct.pack("=q", transit.delay)) + attribute(
        _JITTER64, struct.pack("=q", transit.jitter)
    )
    text += attribute(_PRNG_SEED, struct.pack("=Q", seed))
    if transit.jitter and transit.distribution != "uniform":
        values = table(transit.distribution)
        text += attribute(_DELAY_DIST, struct.pack(f"={len(values)}h", *values))
    # Told also where it is nothing, since a change leaves alone what it does not name.
    text += attribute(_REORDER, _PAIR.pack(_share(transit.reorder), 0))
    text += attribute(_CORRUPT, _PAIR.pack(_share(transit.corrupt), 0))
    if bursty:
        chain = (transit.enter, transit.leave, _BILLION - transit.bad, transit.good)
        text += attribute(_LOSS | _NESTED, attribute(_LOSS_GE, _GE.pack(*map(_share, chain))))
    return text


def held(text: bytes, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a netem qdisc's options say, as a Transit document. The kernel does not tell its jitter table, nor the
    delay line's limit: those are taken from what it was `told`.
    """
    _, packets, loss, _, duplicate, _ = _QOPT.unpack_from(text)
    found = dict(attributes(text[_QOPT.size :]))
    nothing = bytes(_PAIR.size)
    document = dict(told) | {
        "delay": struct.unpack_from("=q", found.get(_LATENCY64, bytes(8)))[0],
        "jitter": struct.unpack_from("=q", found.get(_JITTER64, bytes(8)))[0],
        "packets": packets,
        "good": _ppb(loss),
        "bad": 0,
        "enter": 0,
        "leave": _BILLION,
        "duplicate": _ppb(duplicate),
        "corrupt": _ppb(_PAIR.unpack_from(found.get(_CORRUPT, nothing))[0]),
        "reorder": _ppb(_PAIR.unpack_from(found.get(_REORDER, nothing))[0]),
    }
    chain = dict(attributes(found.get(_LOSS, b""))).get(_LOSS_GE)
    if chain:
        enter, leave, kept, good = map(_ppb, _GE.unpack_from(chain))
        document |= {"enter": enter, "leave": leave, "bad": _BILLION - kept, "good": good}
    return document


def _share(ppb: int) -> int:
    return round(ppb * _WHOLE / _BILLION)


def _ppb(share: int) -> int:
    return round(share * _BILLION / _WHOLE)
