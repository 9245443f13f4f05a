"""Other people's traffic: UDP at a constant rate on the wire, from one place to another, until stdin ends.

    python -m rig.node.background sink ADDRESS              takes what comes and drops it; emits {"event": "ready"}
    python -m rig.node.background send ADDRESS RATE SIZE FRAME

RATE in real bit/s; SIZE and FRAME are bytes of a packet's payload, and of its frame as the wire counts it.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator

from rig.node.datagrams import UDP_SEGMENT
from rig.node.stream import Stream

PORT = 5299
MOST_SEGMENTS = 44  # of 1472 B: a datagram, segments together, is at most 65 507 B
BEAT = 2e-3  # s between two bursts, where a packet takes no longer


def sink(address: str) -> None:
    """Have the port open: what nobody reads, the kernel drops once the buffer is full."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.bind((address, PORT))
        Stream().emit("ready")
        sys.stdin.read()


def send(address: str, rate: float, size: int, frame: int) -> None:
    """Send packets of `size` bytes at a rate (bit/s, `frame` bytes each), evenly in bursts of about 2 ms."""
    burst = max(1, min(MOST_SEGMENTS, 65_507 // size, round(rate * BEAT / (8 * frame))))
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 2**20)
        Stream().emit("ready")
        chunk = bytes(burst * size)
        for due in _beats(burst * 8 * frame / rate):
            if over.wait(max(0.0, due - time.monotonic())):
                return
            try:
                sender.sendto(chunk, (address, PORT))
            except OSError:  # the link is out, or its queue is full: other people's traffic goes on
                pass


def _await_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _beats(interval: float) -> Iterator[float]:
    """Moments at which to send, for ever; what was missed by more than a second is not made up for."""
    due = time.monotonic()
    while True:
        yield due
        due = max(due + interval, time.monotonic() - 1.0)


def main(arguments: list[str]) -> None:
    """Parse the command line shown above."""
    if arguments[0] == "sink":
        sink(arguments[1])
    else:
        send(arguments[1], float(arguments[2]), int(arguments[3]), int(arguments[4]))


if __name__ == "__main__":
    main(sys.argv[1:])
