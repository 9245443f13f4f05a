"""TCP as fast as it goes, from one node to another: what a host can carry in all, no link's property.

python -m rig.node.flood take                   take one connection; emits {"event": "took", "bytes", "seconds"}
python -m rig.node.flood send ADDRESS SECONDS   connect, emit {"event": "ready"}, send once a line comes on stdin
"""

from __future__ import annotations

import socket
import sys
import time

from rig.node.stream import Stream

PORT = 5202
CHUNK = 1 << 20
TRIES = 100  # to connect, a tenth of a second each


def take() -> None:
    """Count one connection's bytes from its first to its last."""
    stream = Stream()
    buffer = bytearray(CHUNK)
    with socket.create_server(("", PORT)) as listener:
        connection, _ = listener.accept()
    count = connection.recv_into(buffer)
    began = ended = time.monotonic()
    while got := connection.recv_into(buffer):
        count += got
        ended = time.monotonic()
    stream.emit("took", bytes=count, seconds=ended - began)


def send(address: str, seconds: float) -> None:
    """Send for so long, when told to."""
    stream = Stream()
    chunk = memoryview(bytes(CHUNK))
    with _connected(address) as connection:
        stream.emit("ready")
        if not sys.stdin.readline():
            return
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.send(chunk)


def _connected(address: str) -> socket.socket:
    """The other side may not have begun to listen. Raises OSError."""
    for _ in range(TRIES - 1):
        try:
            return socket.create_connection((address, PORT), 5)
        except ConnectionRefusedError:
            time.sleep(0.1)
    return socket.create_connection((address, PORT), 5)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take()
    else:
        send(sys.argv[2], float(sys.argv[3]))
