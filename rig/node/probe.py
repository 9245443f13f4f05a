"""Measures cables from one end to the other: round trips, TCP goodput, and the fate of counted UDP packets.

    python -m rig.node.probe serve ADDRESS     at the end (a switch); emits {"event": "serving"}, answers for ever
    python -m rig.node.probe ask               at the start; a list of orders a line on stdin, an answer to each

An order has "cable" (any name), "to" (the end's address), "mode" and, but for rtt, "way": up (start to end) or down.
  rtt  {count, gap, patience}                        → {"event": "rtt", "samples": [s, …]}, those that came back
  tcp  {skip, seconds, steady, window}               → {"event": "tcp", "bit_s"}: payload as the receiver saw it after
       `skip` (slow start, the bucket's credit); see send_for
  udp  {size, pace, count, segments, head, burst, quiet, within, skip} → {"event": "udp", …}: see datagrams
What goes wrong is {"event": "failed", "why"}. Every answer has the order's cable, mode and way.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from statistics import linear_regression
from typing import Any

from rig.node import datagrams
from rig.node.stream import Stream

PORT = 5201
CHUNK = 1 << 20
PIECE = 1 << 16  # what is written at once within a window, so that hardly less than the window is under way
CONNECT_WITHIN = 10.0
NAP = 0.0002  # s between two looks at what is under way
MARGIN = 0.05  # s that a sender goes on for, so that the receiver ends first


# ── TCP ──────────────────────────────────────────────────────────────────────────────────────────────
def send_for(connection: socket.socket, order: Mapping[str, Any]) -> None:
    """Send as fast as the link takes it; with at most `window` bytes under way, where that is not 0.

    A `steady` link is measured with reno: its slow start runs until the path is full, where cubic's (HyStart) leaves
    it early and would need tens of seconds on a long path.
    """
    if order["steady"]:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    window = order["window"]
    chunk = memoryview(bytes(PIECE if window else CHUNK))
    until = time.monotonic() + order["skip"] + order["seconds"] + MARGIN
    while time.monotonic() < until:
        if window and window - _under_way(connection) < len(chunk):
            time.sleep(NAP)
        else:
            connection.send(chunk)


def _under_way(connection: socket.socket) -> int:
    """Bytes written and not yet acknowledged: SIOCOUTQ of tcp(7)."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0"))[0])


def receive_rate(connection: socket.socket, skip: float, seconds: float) -> float:
    """Bits per second of payload that arrived between `skip` and `skip` + `seconds`; 0 when hardly anything came.

    The slope of bytes over time by least squares: one read that came late, first or last, then weighs little.
    """
    buffer = bytearray(CHUNK)
    begin = time.monotonic()
    times: list[float] = []
    totals: list[int] = []
    count = 0
    while True:
        got = connection.recv_into(buffer)
        now = time.monotonic() - begin
        if got == 0 or now > skip + seconds:
            break
        count += got
        if now >= skip:
            times.append(now)
            totals.append(count)
    return 8 * linear_regression(times, totals).slope if len(times) > 2 else 0.0


def drain(connection: socket.socket) -> None:
    """Read and drop until the other side closes."""
    buffer = bytearray(CHUNK)
    while connection.recv_into(buffer):
        pass


# ── UDP, with a TCP connection beside it to agree on ─────────────────────────────────────────────────
def send_counted(control: socket.socket, port: int, order: Mapping[str, Any]) -> None:
    """Send the packets to the other side of `control`, then say how many they were."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        endpoint.connect((control.getpeername()[0], port))
        _say(control, {"sent": datagrams.send(endpoint, order)})


def count(control: socket.socket, endpoint: socket.socket, order: Mapping[str, Any]) -> dict[str, Any]:
    """Receive the packets and tally them, together with what this end refused."""
    before = datagrams.refused()
    arrivals = datagrams.receive(endpoint, control, order["quiet"], order["within"])
    after = datagrams.refused()
    sent = json.loads(_line(control))["sent"]
    found = datagrams.tally(arrivals, sent, order["size"], order["skip"])
    return found | {name: after[name] - before[name] for name in after}


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────
def serve(address: str) -> None:
    """Answer every connection in a thread of its own, and every small packet, until killed or stdin ends."""
    stream = Stream()
    with (
        socket.create_server((address, PORT), backlog=512) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint,
    ):
        endpoint.bind((address, PORT))
        stream.emit("serving")
        threading.Thread(target=datagrams.echo, args=(endpoint,), daemon=True).start()
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        sys.stdin.read()


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    try:
        with connection:
            order = json.loads(_line(connection))
            _ANSWERS[order["mode"], order["way"]](connection, order)
    except (OSError, ValueError):  # the start's side went away; it says so itself
        pass


def _tcp_up(connection: socket.socket, order: Mapping[str, Any]) -> None:
    _say(connection, {"bit_s": receive_rate(connection, order["skip"], order["seconds"])})
    connection.shutdown(socket.SHUT_WR)
    drain(connection)


def _udp_up(connection: socket.socket, order: Mapping[str, Any]) -> None:
    with datagrams.receiver(connection.getsockname()[0]) as endpoint:
        _say(connection, {"port": endpoint.getsockname()[1]})
        _say(connection, count(connection, endpoint, order))


def _udp_down(connection: socket.socket, order: Mapping[str, Any]) -> None:
    send_counted(connection, order["port"], order)


_ANSWERS = {("tcp", "up"): _tcp_up, ("tcp", "down"): send_for, ("udp", "up"): _udp_up, ("udp", "down"): _udp_down}


# ── the start ────────────────────────────────────────────────────────────────────────────────────────
def ask(order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one order; raises OSError when the other end does not answer."""
    if order["mode"] == "rtt":
        return {"samples": datagrams.round_trips((order["to"], PORT), order)}
    with socket.create_connection((order["to"], PORT), CONNECT_WITHIN) as connection:
        connection.settimeout(CONNECT_WITHIN + order["skip"] + order.get("seconds", 0) + order.get("within", 0))
        if order["mode"] == "udp":
            return _udp(connection, order)
        _say(connection, order)
        if order["way"] == "down":
            return {"bit_s": receive_rate(connection, order["skip"], order["seconds"])}
        send_for(connection, order)
        connection.shutdown(socket.SHUT_WR)
        return dict(json.loads(_line(connection)))


def _udp(connection: socket.socket, order: Mapping[str, Any]) -> dict[str, Any]:
    if order["way"] == "up":
        _say(connection, order)
        send_counted(connection, json.loads(_line(connection))["port"], order)
        return dict(json.loads(_line(connection)))
    with datagrams.receiver(connection.getsockname()[0]) as endpoint:
        _say(connection, {**order, "port": endpoint.getsockname()[1]})
        return count(connection, endpoint, order)


def _say(connection: socket.socket, document: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(document).encode() + b"\n")


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line


def answer_orders() -> None:
    """Carry out orders from stdin, several of one line at the same time, until it ends."""
    stream = Stream()
    for line in sys.stdin:
        orders: Sequence[Mapping[str, Any]] = json.loads(line)
        threads = [threading.Thread(target=_report, args=(stream, order)) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _report(stream: Stream, order: Mapping[str, Any]) -> None:
    which = {name: order[name] for name in ("cable", "mode", "way") if name in order}
    try:
        stream.emit(order["mode"], **which, **ask(order))
    except (OSError, ValueError) as error:
        stream.emit("failed", **which, why=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        answer_orders()
