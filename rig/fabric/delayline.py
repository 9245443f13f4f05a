"""The delay line: one process that is all the links of a lab, where the kernel has no netem.

A link is then two TAP interfaces, and this process carries frames between them and holds them back. The kernel's
token bucket on the sending interface does the rate; everything in `shape.Transit` is done here. JSON, a line each:

    in    {"version": 1, "seed": N, "lines": [{"name": "n0", "way": "up" | "down", "from": FD, "to": FD, "transit": T}]}
    out   {"event": "ready", "latency": s}         what it adds to a delay by itself, and takes off it
    in    {"do": "counters"}                       out   {"event": "counters", "latency": s, "lines": [see Passage]}
    in    {"do": "change", "name", "way", "transit"}   out   {"event": "changed"}
    in    {"do": "transits"}                       out   {"event": "transits", "lines": [{"name", "way", "transit"}]}
    out   {"event": "refused", "why": TEXT}        instead of an answer

T is a Transit document. The descriptors are inherited, open and non-blocking. taken + duplicated = given + lost +
overflowed + held, always; a frame for an interface that is down or gone is lost. The process ends when stdin does,
and dies with its parent.

What it adds by itself: it sees a packet a little after that arrived, and is woken a little after one is due. It knows
how late single packets go (a running median, 0.04–0.1 ms), takes an arrival to be seen as late as that, and holds each
packet back twice that much shorter. What was longer or shorter all the same is `late_mean`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from rig.fabric.alarm import Alarm, ask_for_short_turns
from rig.fabric.passage import NEVER, Passage
from rig.node import namespaces
from rig.node.stream import Stream

VERSION = 1
STDIN = 0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MOST = -1, -3, 2**30  # malloc.h


class DelayLine:
    """The lines, and the one loop that serves them and stdin."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._alarm = Alarm()
        self._lines: dict[int, Passage] = {}  # by the descriptor they read
        self._busy: set[Passage] = set()  # those that hold packets
        self._begun = b""  # of a line of stdin
        self._poll = select.epoll()
        self._poll.register(STDIN, select.EPOLLIN)
        self._poll.register(self._alarm.descriptor, select.EPOLLIN)

    def serve(self) -> None:
        """Carry frames and answer requests until stdin ends."""
        while True:
            self._alarm.set(self._give())
            for descriptor, _ in self._poll.poll():
                if descriptor in self._lines:
                    self._take(descriptor)
                elif descriptor == STDIN and not self._listen():
                    return

    def _give(self) -> int:
        """Release what is due; returns when the next packet is (ns), 0 for never."""
        nearest = NEVER
        for line in [*self._busy]:
            due = line.give()
            if due == NEVER:
                self._busy.remove(line)
            nearest = min(nearest, due)
        return 0 if nearest == NEVER else nearest

    def _take(self, descriptor: int) -> None:
        line = self._lines[descriptor]
        if not line.take():
            self._poll.unregister(descriptor)  # or it would be readable for ever
        if line.held:
            self._busy.add(line)

    def _listen(self) -> bool:
        """Answer every line that the next read completes; False when there are no more."""
        chunk = os.read(STDIN, 2**20)
        *whole, self._begun = (self._begun + chunk).split(b"\n")
        for line in whole:
            self._stream.emit(**self._answer(line))
        return bool(chunk)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return self._requests[request["do"]](self, request) if self._lines else self._start(request)
        except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
            text = line[:200].decode(errors="replace")
            return {"event": "refused", "why": f"delay line: {text}: {type(error).__name__}: {error}"}

    def _start(self, document: Mapping[str, Any]) -> dict[str, Any]:
        if document["version"] != VERSION:
            raise ValueError(f"this delay line speaks version {VERSION}")
        self._alarm.learn()
        lines = [Passage(line, document["seed"], self._alarm) for line in document["lines"]]
        for line in lines:
            self._poll.register(line.source, select.EPOLLIN)
        self._lines = {line.source: line for line in lines}
        gc.freeze()
        return {"event": "ready", "latency": self._latency()}

    def _latency(self) -> float:
        return 2 * self._alarm.lateness / 1e9

    def _change(self, request: Mapping[str, Any]) -> dict[str, Any]:
        wanted = request["name"], request["way"]
        found = [line for line in self._lines.values() if (line.name, line.way) == wanted]
        if not found:
            raise ValueError(f"there is no line {wanted}")
        found[0].become(request["transit"])
        return {"event": "changed"}

    def _counters(self, _: Mapping[str, Any]) -> dict[str, Any]:
        lines = [line.counters() for line in self._lines.values()]
        return {"event": "counters", "latency": self._latency(), "lines": lines}

    def _transits(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"event": "transits", "lines": [line.in_force() for line in self._lines.values()]}

    _requests: ClassVar = {"change": _change, "counters": _counters, "transits": _transits}


def keep_memory() -> None:
    """Have malloc keep what is freed: each frame gets memory of its own, and pages fresh from the kernel cost more
    than the frame's two copies. Frames hold no cycles, so nothing needs collecting.
    """
    gc.disable()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST)
        libc.mallopt(_M_TRIM_THRESHOLD, _MOST)


def main() -> None:
    """Serve until stdin ends."""
    namespaces.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the rig decides what it means
    keep_memory()
    ask_for_short_turns()
    try:
        DelayLine(Stream()).serve()
    except BrokenPipeError:  # nobody is left to answer
        pass
    except OSError as error:
        sys.exit(f"delay line: wait for packets and requests: {error}")


if __name__ == "__main__":
    main()
