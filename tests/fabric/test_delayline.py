"""The delay line on real TAP interfaces: what it is told to do to packets is what happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import sqrt
from time import sleep
from typing import Any

import pytest

from rig.errors import FabricError
from rig.fabric import tap
from tests.fabric.wire import Wire, lack, transit
from tests.lab.runs import ROOT, until

MS = 10**6  # ns
PERCENT = 10**7  # parts per billion
PACKETS = 3000
SLACK = (0.0005, 0.002)  # s that a round trip may be early, or late on a busy machine, in the best tenth


@pytest.fixture(autouse=True, scope="module")
def taps() -> None:
    if reason := lack():
        pytest.skip(reason)


@pytest.fixture
def still() -> Iterator[Wire]:
    """A wire that does nothing to packets."""
    with Wire() as wire:
        yield wire


def best_tenth(found: list[float]) -> float:
    return sorted(found)[len(found) // 10]


def within_binomial(count: int, trials: int, share: float) -> bool:
    """Within four standard deviations: chance misses that once in 16 000 times, and the seed always or never."""
    return abs(count - trials * share) < 4 * sqrt(trials * share * (1 - share))


def snmp(wire: Wire, end: str) -> dict[str, int]:
    """The kernel's IP and UDP counters at an end."""
    lines = [line.split() for line in wire.run(end, "cat", "/proc/self/net/snmp").splitlines()]
    return {
        names[0] + name: int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
    }


def test_nothing_is_added_or_removed_without_being_asked(still: Wire) -> None:
    seen = still.traffic("count", 500)
    assert seen == {"arrived": list(range(500)), "spoilt": 0}
    counters = still.counters()
    assert counters["taken"] == counters["given"] == 500
    assert counters["taken_bytes"] == counters["given_bytes"] == 500 * (200 + 8 + 20 + 14)
    assert best_tenth(still.traffic("rtt", 50)["rtt"]) < 0.002


def test_each_direction_has_a_delay_of_its_own() -> None:
    with Wire(transit(delay=3 * MS), transit(delay=12 * MS)) as wire:
        seen = wire.traffic("rtt", 60)
        assert 0.003 - SLACK[0] < best_tenth(seen["one_way"]) < 0.003 + SLACK[1]
        assert 0.015 - SLACK[0] < best_tenth(seen["rtt"]) < 0.015 + SLACK[1]
        assert 0 <= wire.ready["latency"] < 0.001
        assert wire.counters()["late_worst"] >= wire.counters()["late_mean"] > -0.001


def test_loss_is_counted_and_the_same_with_the_same_seed() -> None:
    runs = []
    for seed in (1, 1, 2):
        with Wire(transit(good=5 * PERCENT), seed=seed) as wire:
            runs.append(wire.traffic("count", PACKETS)["arrived"])
            assert wire.counters()["lost"] == PACKETS - len(runs[-1])
    assert within_binomial(PACKETS - len(runs[0]), PACKETS, 0.05)
    assert runs[0] == runs[1] != runs[2]


def test_bursts_of_loss_are_as_long_as_the_bad_state_lasts() -> None:
    with Wire(transit(bad=100 * PERCENT, enter=2 * PERCENT, leave=25 * PERCENT)) as wire:
        arrived = wire.traffic("count", 2 * PACKETS)["arrived"]
    bursts = [after - before - 1 for before, after in pairwise(arrived) if after - before > 1]
    assert 80 < len(bursts) < 130  # 6000 packets, a cycle of 1/0.02 + 1/0.25
    assert 3.2 < sum(bursts) / len(bursts) < 4.8


def test_a_duplicate_is_one_more() -> None:
    with Wire(transit(duplicate=10 * PERCENT, delay=MS)) as wire:
        arrived = wire.traffic("count", PACKETS)["arrived"]
        extra = len(arrived) - PACKETS
        assert wire.counters()["duplicated"] == extra
    assert set(arrived) == set(range(PACKETS))
    assert within_binomial(extra, PACKETS, 0.1)


def test_the_receiver_notices_what_was_corrupted() -> None:
    """Only a bit of the sender's hardware address, 48 of 1936, is nobody's loss."""
    with Wire(transit(corrupt=20 * PERCENT)) as wire:
        before = snmp(wire, "b")
        seen = wire.traffic("count", PACKETS)
        after = snmp(wire, "b")
        corrupted = wire.counters()["corrupted"]
    assert within_binomial(corrupted, PACKETS, 0.2)
    assert seen["spoilt"] == 0
    assert 0.9 * corrupted < PACKETS - len(seen["arrived"]) < corrupted
    assert after["Udp:InCsumErrors"] - before["Udp:InCsumErrors"] > corrupted / 2
    assert after["Ip:InHdrErrors"] > before["Ip:InHdrErrors"]


def test_reordered_packets_overtake_those_that_wait() -> None:
    with Wire(transit(delay=10 * MS, reorder=5 * PERCENT)) as wire:
        arrived = wire.traffic("count", PACKETS)["arrived"]
        reordered = wire.counters()["reordered"]
    assert sorted(arrived) == list(range(PACKETS))
    assert within_binomial(reordered, PACKETS, 0.05)
    least_after = [*accumulate(reversed(arrived), min)][::-1]
    overtaking = sum(number > least for number, least in zip(arrived, least_after, strict=True))
    assert 0.9 * reordered < overtaking <= reordered


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto", "paretonormal"])
def test_jitter_spreads_the_delay(distribution: str) -> None:
    with Wire(transit(delay=10 * MS, jitter=3 * MS, distribution=distribution)) as wire:
        one_way = wire.traffic("rtt", 200)["one_way"]
    middle = one_way[len(one_way) // 2]
    spread = one_way[len(one_way) * 5 // 6] - one_way[len(one_way) // 6]  # two sigma, of a normal distribution
    assert 0.008 < middle < 0.012
    assert 0.001 < spread < 0.008


def test_packets_keep_their_order_under_a_change_that_lengthens_the_delay_and_not_under_jitter() -> None:
    with Wire(transit(delay=2 * MS)) as wire:
        assert wire.traffic("count", 500)["arrived"] == list(range(500))
        wire.ask(do="change", name="n0", way="up", transit=transit(delay=4 * MS, jitter=2 * MS).document())
        arrived = wire.traffic("count", 500)["arrived"]
    assert sorted(arrived) == list(range(500)) != arrived


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    room, size = 10, 200 + 8 + 20 + 14
    with Wire(transit(delay=300 * MS, octets=room * size)) as wire:
        arrived = wire.traffic("count", 100, 200, 0, 0.6)["arrived"]
        assert arrived == list(range(room))
        assert wire.counters()["overflowed"] == 100 - room


def test_a_change_is_in_force_at_once_and_can_be_read_back(still: Wire) -> None:
    slow = transit(delay=20 * MS).document()
    assert still.ask(do="change", name="n0", way="down", transit=slow) == {"event": "changed"}
    ways = {line["way"]: line["transit"] for line in still.ask(do="transits")["lines"]}
    assert ways == {"up": transit().document(), "down": slow}
    seen = still.traffic("rtt", 20)
    assert 0.020 - SLACK[0] < best_tenth(seen["rtt"]) < 0.020 + SLACK[1]
    assert best_tenth(seen["one_way"]) < 0.002


def test_packets_underway_are_counted_as_held() -> None:
    with Wire(transit(delay=2000 * MS)) as wire:
        wire.traffic("count", 10, 200, 0, 0)
        assert wire.counters()["held"] == 10


@pytest.mark.parametrize(
    "request_",
    [
        {}, {"do": "dance"}, {"do": ["change"]}, {"do": "change"},
        {"do": "change", "name": "n9", "way": "up", "transit": transit().document()},
        {"do": "change", "name": "n0", "way": "up", "transit": {}},
        {"do": "change", "name": "n0", "way": "up", "transit": transit(delay=1.5).document()},
        {"do": "change", "name": "n0", "way": "up", "transit": transit(jitter=1, distribution="cauchy").document()},
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_changes_nothing(still: Wire, request_: dict[str, Any]) -> None:
    assert still.ask(**request_)["event"] == "refused"
    assert [line["transit"] for line in still.ask(do="transits")["lines"]] == [transit().document()] * 2


def test_a_wrong_version_is_refused() -> None:
    start = subprocess.run(
        [sys.executable, "-m", "rig.fabric.delayline"], cwd=ROOT, check=True, capture_output=True, text=True,
        input='{"version": 2, "seed": 0, "lines": []}\n[[\n', timeout=30,
    )  # fmt: skip
    assert start.stdout.count('"refused"') == 2
    assert start.stderr == ""


def test_an_interface_that_is_down_loses_packets_and_nothing_else(still: Wire) -> None:
    still.run("b", "ip", "link", "set", "dev", "b", "down")
    assert still.traffic("count", 50)["arrived"] == []
    assert still.counters()["lost"] == 50
    still.run("b", "ip", "link", "set", "dev", "b", "up")
    assert still.traffic("count", 50)["arrived"] == list(range(50))


def test_an_interface_that_is_gone_stops_nothing_else(still: Wire) -> None:
    still.run("b", "ip", "link", "delete", "dev", "b")
    used = still.cpu()
    sleep(0.5)
    assert still.cpu() - used < 0.25  # its end is readable for ever
    assert still.ask(do="counters")["event"] == "counters"


def test_it_ends_with_its_stdin() -> None:
    with Wire() as wire:
        pass
    assert wire.process.returncode == 0


START = """
import subprocess, sys
line = subprocess.Popen([sys.executable, "-m", "rig.fabric.delayline"])
print(line.pid, flush=True)
line.wait()
"""


def test_it_dies_with_its_parent() -> None:
    """Its stdin stays open, so that this is not what ends it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", START], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin and parent.stdout
    with parent.stdin, parent.stdout:
        pid = int(parent.stdout.readline())
        parent.stdin.write('{"version": 1, "seed": 0, "lines": []}\n')
        parent.stdin.flush()
        assert "ready" in parent.stdout.readline()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        until(lambda: parent.stdout and parent.stdout.read() == "", 10)  # its other end is closed: the line is dead
        assert not os.path.exists(f"/proc/{pid}/fd/0")


@pytest.mark.parametrize(
    ("device", "advice"),
    [("/dev/net/no-such-thing", "modprobe tun"), ("/proc/sys/kernel/ostype", "only root may open")],
)
def test_where_there_are_no_taps_it_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, device: str, advice: str
) -> None:
    monkeypatch.setattr(tap, "DEVICE", device)
    with pytest.raises(FabricError, match=advice) as caught:
        tap.open_tap("n0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 16])
def test_a_name_the_kernel_would_cut_is_refused(name: str) -> None:
    with pytest.raises(FabricError, match="1 to 15 bytes"):
        tap.open_tap(name)
