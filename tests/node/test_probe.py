"""The link probe's two ends over loopback, and what is made of packets that came late, twice or not at all."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rig.node import datagrams
from rig.node.datagrams import Arrivals, tally

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.52.19"  # nobody else's, though in loopback's network
PROBE = (sys.executable, "-m", "rig.node.probe")
UDP = {
    "mode": "udp",
    "size": 1472,
    "segments": 1,
    "head": 0.0,
    "burst": 0.001,
    "quiet": 0.1,
    "within": 20.0,
    "skip": 0.0,
}


@pytest.fixture(scope="module")
def serving() -> Iterator[None]:
    process = subprocess.Popen([*PROBE, "serve", ADDRESS], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout and json.loads(process.stdout.readline()) == {"event": "serving"}
        yield
    finally:
        process.kill()
        process.communicate()


def answers(*orders: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What becomes of orders given at the same time."""
    given = [{"cable": "n0", "to": ADDRESS, **order} for order in orders]
    asked = subprocess.run(
        [*PROBE, "ask"],
        check=True,
        cwd=ROOT,
        input=json.dumps(given) + "\n",
        text=True,
        capture_output=True,
        timeout=60,
    )
    return [json.loads(line) for line in asked.stdout.splitlines()]


@pytest.mark.usefixtures("serving")
def test_round_trips() -> None:
    (said,) = answers({"mode": "rtt", "count": 50, "gap": 0.001, "patience": 1.0})
    assert (said["event"], said["cable"], len(said["samples"])) == ("rtt", "n0", 50)
    assert all(0 < sample < 1 for sample in said["samples"])


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("window", [0, 2**20])
@pytest.mark.parametrize("steady", [True, False])
def test_goodput_both_ways_at_once(window: int, steady: bool) -> None:
    order = {"mode": "tcp", "skip": 0.05, "seconds": 0.2, "steady": steady, "window": window}
    said = answers({**order, "way": "up"}, {**order, "way": "down"})
    assert {one["way"] for one in said} == {"up", "down"}
    assert all(one["bit_s"] > 50e6 for one in said), "loopback is faster"


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("way", ["up", "down"])
def test_counted_packets(way: str) -> None:
    (said,) = answers({**UDP, "way": way, "pace": 4000, "count": 1000})
    assert (said["event"], said["way"], said["sent"], said["received"]) == ("udp", way, 1000, 1000)
    assert (said["duplicated"], said["early"], said["overflowed"], said["damaged"]) == (0, 0, 0, 0)
    assert 0 < said["bit_s"] < 1.1 * 4000 * 1472 * 8, "a busy host sends slower, never faster"
    assert 0 <= said["spread"] < 1


@pytest.mark.usefixtures("serving")
def test_many_packets_with_one_call() -> None:
    (said,) = answers({**UDP, "way": "up", "pace": 16_000, "count": 1600, "segments": 16})
    assert said["sent"] == said["received"] == 1600


@pytest.mark.parametrize("mode", ["rtt", "tcp", "udp"])
def test_silence_is_a_failure_with_its_reason(mode: str) -> None:
    order = {"mode": mode, "to": "127.0.52.99", "count": 1, "gap": 0.001, "patience": 0.1, "skip": 0, "seconds": 0.1}
    (said,) = answers({**UDP, **order, "way": "up"})
    assert said["event"] == "failed"
    assert said["cable"] == "n0"
    assert "Error" in said["why"]


# ── the sender ───────────────────────────────────────────────────────────────────────────────────────
def test_a_stall_is_not_made_up_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 50 ms in which nothing was sent, the next look at the clock sends 1 ms worth of packets, not 51."""
    endpoint, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with endpoint, other:
        stalls = iter([0.05])
        bursts: list[int] = []

        def sleep(seconds: float) -> None:
            count = 0
            other.setblocking(False)
            try:
                while other.recv(64):
                    count += 1
            except BlockingIOError:
                bursts.append(count)
            stalled = time.monotonic() + next(stalls, seconds)
            while time.monotonic() < stalled:
                pass

        monkeypatch.setattr(time, "sleep", sleep)
        order = {"size": 16, "pace": 20_000, "segments": 1, "head": 0.0, "burst": 0.001, "count": 400}
        assert datagrams.send(endpoint, order) == 400
    assert sum(bursts) == 400
    assert max(bursts) <= 21


# ── the tally ────────────────────────────────────────────────────────────────────────────────────────
def arrivals(numbers: Sequence[int], ways: Sequence[float] | None = None) -> Arrivals:
    """Packets sent one each millisecond that come in this order, as long after each was sent as told."""
    sent = array("d", (number * 1e-3 for number in numbers))
    came = array("d", (moment + way for moment, way in zip(sent, ways or [0.1] * len(numbers), strict=True)))
    return Arrivals(array("Q", numbers), sent, came)


@pytest.mark.parametrize(
    ("numbers", "received", "duplicated", "early"),
    [
        ([0, 1, 2, 3], 4, 0, 0),
        ([0, 2, 3], 3, 0, 0),  # a loss is no overtaking
        ([0, 1, 1, 2, 2, 2], 3, 3, 0),
        ([0, 3, 1, 2], 4, 0, 1),  # one overtook two
        ([0, 2, 3, 1], 4, 0, 2),  # two overtook one
        ([0, 1, 2, 1, 3], 4, 1, 0),  # a copy that comes late was not overtaken
        ([5], 1, 0, 0),
        ([], 0, 0, 0),
    ],
)
def test_tally(numbers: list[int], received: int, duplicated: int, early: int) -> None:
    found = tally(arrivals(numbers), sent=10, size=1000, skip=0.0)
    assert (found["sent"], found["received"], found["duplicated"], found["early"]) == (10, received, duplicated, early)


def test_the_spread_is_of_the_middle_and_takes_no_notice_of_stalls() -> None:
    ways = [0.1 + 1e-6 * (number % 100) for number in range(1000)]
    assert tally(arrivals(range(1000), ways), 1000, 1000, 0.0)["spread"] == pytest.approx(34e-6, rel=0.02)
    stalled = [way + (0.02 if 500 <= number < 520 else 0) for number, way in enumerate(ways)]
    assert tally(arrivals(range(1000), stalled), 1000, 1000, 0.0)["spread"] == pytest.approx(34e-6, rel=0.1)


def test_packets_out_of_order_are_in_the_spread_too() -> None:
    """Every time on the way from 100 to 120 ms is as likely, and most packets overtake some."""
    ways = {number: 0.1 + 2e-5 * (number * 617 % 1000) for number in range(1000)}
    numbers = sorted(ways, key=lambda number: number * 1e-3 + ways[number])
    found = tally(arrivals(numbers, [ways[number] for number in numbers]), 1000, 1000, 0.0)
    assert found["early"] > 500
    assert found["spread"] == pytest.approx(0.6827 * 0.01, rel=0.01)


def test_the_rate_is_of_what_came_after_the_skip() -> None:
    """A full bucket lets the first hundred packets pass at once; then one comes each millisecond."""
    ways = [0.1 - min(number, 100) * 1e-3 for number in range(600)]
    slow = tally(arrivals(range(600), ways), 600, 1000, skip=0.01)
    assert slow["bit_s"] == pytest.approx(8e6, rel=0.01)
    assert tally(arrivals(range(600), ways), 600, 1000, skip=0.0)["bit_s"] > 8.5e6


def test_a_count_waits_for_packets_that_are_still_on_their_way() -> None:
    """The sender says it is done long before its last packets come."""
    control, told = socket.socketpair()
    with control, told, datagrams.receiver("127.0.0.1") as endpoint, socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.connect(endpoint.getsockname())

        def send_late() -> None:
            told.sendall(b"{}\n")
            for number in range(3):
                sender.send(datagrams.STAMP.pack(number, time.monotonic()))
                time.sleep(0.2)

        thread = threading.Thread(target=send_late)
        thread.start()
        found = datagrams.receive(endpoint, control, quiet=1.0, within=30.0)
        thread.join()
    assert list(found.numbers) == [0, 1, 2]


def test_a_count_ends_when_nothing_is_ever_said() -> None:
    control, told = socket.socketpair()
    began = time.monotonic()
    with control, told, datagrams.receiver("127.0.0.1") as endpoint:
        assert list(datagrams.receive(endpoint, control, quiet=0.05, within=0.3).numbers) == []
    assert time.monotonic() - began < 5
