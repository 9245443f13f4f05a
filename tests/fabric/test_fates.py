"""The chances of packets are those asked for, and mean what netem means by them."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import groupby
from math import sqrt
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest

from rig.fabric.fates import Fate, Fates
from rig.fabric.frames import HEADER, corrupted
from rig.fabric.quantiles import SCALE, SIZE, table
from rig.fabric.shape import Transit

DRAWS = 50_000
PERCENT = 10**7  # parts per billion
ALL = 100 * PERCENT
PLAIN = Transit(
    delay=1000, jitter=0, distribution="normal", good=0, bad=0, enter=0, leave=ALL, duplicate=0, corrupt=0, reorder=0,
    octets=2**30, packets=2**30,
)  # fmt: skip


def drawn(seed: int = 1, **asked: Any) -> list[tuple[Fate, ...]]:
    fates = Fates(replace(PLAIN, **asked), Random(seed))
    return [fates.draw() for _ in range(DRAWS)]


def singly(seed: int = 1, **asked: Any) -> list[Fate]:
    """Where nothing is duplicated."""
    return [fate for (fate,) in drawn(seed, **asked)]


def is_share(found: list[bool], share: float) -> bool:
    """Within four standard deviations of a binomial."""
    return abs(sum(found) - len(found) * share) <= 4 * sqrt(len(found) * share * (1 - share))


def test_without_chance_every_packet_is_held_for_the_delay() -> None:
    assert Fates(PLAIN, Random(1)).steady == 1000
    assert set(singly()) == {Fate(hold=1000)}


@pytest.mark.parametrize("name", ["jitter", "good", "enter", "duplicate", "corrupt", "reorder"])
def test_with_chance_nothing_is_steady(name: str) -> None:
    assert Fates(replace(PLAIN, **{name: 1}), Random(1)).steady is None  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_fates() -> None:
    asked = {"jitter": 300, "good": PERCENT, "duplicate": PERCENT, "corrupt": PERCENT, "reorder": PERCENT}
    assert drawn(1, **asked) == drawn(1, **asked) != drawn(2, **asked)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3, 1.0])
def test_random_loss(share: float) -> None:
    assert is_share([fate.lost for fate in singly(good=round(share * ALL))], share)


@pytest.mark.parametrize(("name", "field"), [("corrupt", "corrupt"), ("reorder", "reorder")])
def test_corruption_and_reordering(name: str, field: str) -> None:
    found = singly(**{name: 5 * PERCENT})
    assert is_share([getattr(fate, field) for fate in found], 0.05)
    assert {fate.hold for fate in found if not fate.reorder} == {1000}
    assert all(fate.hold == 0 for fate in found if fate.reorder)


@pytest.mark.parametrize(("good", "bad"), [(0, 100), (1, 50), (0, 80)])
def test_bursty_loss(good: int, bad: int) -> None:
    """The share of the bad state is enter/(enter + leave); a stay in it lasts 1/leave packets."""
    enter, leave = 0.01, 0.2
    chain = {"enter": round(enter * ALL), "leave": round(leave * ALL)}
    lost = [fate.lost for fate in singly(good=good * PERCENT, bad=bad * PERCENT, **chain)]
    in_bad = enter / (enter + leave)
    expected = in_bad * bad / 100 + (1 - in_bad) * good / 100
    assert abs(fmean(lost) - expected) < 0.1 * expected
    if bad == 100:
        bursts = [len(list(run)) for gone, run in groupby(lost) if gone]
        assert abs(fmean(bursts) - 1 / leave) < 0.4


def test_the_chain_moves_before_it_loses() -> None:
    """As loss_gilb_ell does: a packet on which the chain enters the bad state is lost with the bad state's chance."""
    lost = [fate.lost for fate in singly(enter=ALL, leave=ALL, bad=ALL)]
    assert lost[:4] == [True, False, True, False]


def test_a_duplicate_is_drawn_for_as_a_packet_of_its_own() -> None:
    found = drawn(duplicate=10 * PERCENT, corrupt=30 * PERCENT, jitter=300)
    twice = [fates for fates in found if len(fates) == 2]
    assert is_share([len(fates) == 2 for fates in found], 0.1)
    assert is_share([fates[1].corrupt for fates in twice], 0.3)
    assert fmean(first.hold == second.hold for first, second in twice) < 0.05


def test_a_packet_that_is_duplicated_and_lost_goes_on_once() -> None:
    found = drawn(duplicate=ALL, good=30 * PERCENT)
    assert is_share([fates[0].lost for fates in found], 0.3)
    assert not any(fates[0].lost and fates[1].lost for fates in found)
    assert is_share([fates[1].lost for fates in found if not fates[0].lost], 0.3)


@pytest.mark.parametrize(
    ("distribution", "mean", "spread"),
    [("uniform", 0.0, 1 / sqrt(3)), ("normal", 0.0, 1.0), ("pareto", 0.0, 0.9), ("paretonormal", 0.0, 0.9)],
)
def test_jitter(distribution: str, mean: float, spread: float) -> None:
    delay, jitter = 10_000_000, 1_000_000
    held = [fate.hold for fate in singly(delay=delay, jitter=jitter, distribution=distribution)]
    assert abs((fmean(held) - delay) / jitter - mean) < 0.03
    assert abs(pstdev(held) / jitter - spread) < 0.1 * spread


def test_a_packet_never_leaves_before_it_came() -> None:
    assert min(fate.hold for fate in singly(delay=100, jitter=1000)) == 0


@pytest.mark.parametrize("name", ["normal", "pareto", "paretonormal"])
def test_tables_are_what_netem_takes(name: str) -> None:
    values = table(name)
    assert len(values) == SIZE
    assert list(values) == sorted(values)
    assert -(2**15) <= values[0] < 0 < values[-1] < 2**15


def test_quantiles_of_iproute2() -> None:
    """Values of its generators: Pareto starts at (1 − 1.5)·4/3, its median is (2^(1/3) − 1.5)·4/3."""
    assert table("pareto")[0] == round(-2 / 3 * SCALE)
    assert table("pareto")[SIZE // 2] == round((2 ** (1 / 3) - 1.5) * 4 / 3 * SCALE)
    assert table("pareto")[-1] == 2**15 - 1
    assert table("normal")[round(SIZE * 0.841345)] / SCALE == pytest.approx(1, abs=0.01)
    middle = table("paretonormal")[SIZE // 2]
    assert middle == pytest.approx((table("normal")[SIZE // 2] + 3 * table("pareto")[SIZE // 2]) / 4, abs=1)


def udp(payload: bytes, finished: bool) -> bytes:
    """A frame as a TAP carries it, its checksum filled in or, as a sender with offloads leaves it, not."""
    length = 8 + len(payload)
    pseudo = struct.pack("!4s4sBBH", b"\x0a\x09\x00\x01", b"\x0a\x09\x00\x02", 0, 17, length)
    left = ones_sum(pseudo)
    header = struct.pack("!HHHH", 5000, 5000, length, 0)
    checksum = 0xFFFF ^ ones_sum(pseudo + header + payload) if finished else left
    segment = header[:6] + struct.pack("!H", checksum) + payload
    start = 14 + 20
    told = struct.pack("=BBHHHH", 0 if finished else 1, 0, 0, 0, 0 if finished else start, 0 if finished else 6)
    return told + bytes(12) + b"\x08\x00" + bytes(12) + b"\x0a\x09\x00\x01\x0a\x09\x00\x02" + segment


def ones_sum(data: bytes) -> int:
    """RFC 1071, word by word."""
    total = 0
    for high, low in zip(data[::2], data[1::2] + bytes(len(data) % 2), strict=True):
        total += high << 8 | low
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.mark.parametrize("payload", [b"", b"x", b"some words", bytes(1400), b"\xff" * 1401])
def test_corruption_flips_one_bit_of_the_finished_frame(payload: bytes) -> None:
    whole = udp(payload, finished=True)
    for seed in range(200):
        spoilt = corrupted(udp(payload, finished=False), Random(seed))
        assert spoilt[:HEADER] == bytes(HEADER)  # nothing tells the receiver that it need not check
        differing = [one ^ other for one, other in zip(spoilt[HEADER:], whole[HEADER:], strict=True) if one != other]
        assert len(differing) == 1
        assert differing[0].bit_count() == 1


def test_corruption_reaches_every_byte() -> None:
    whole = udp(b"abc", finished=True)
    spoilt = [corrupted(whole, Random(seed)) for seed in range(2000)]
    places = {next(i for i, (x, y) in enumerate(zip(one, whole, strict=True)) if x != y) for one in spoilt}
    assert places == set(range(HEADER, len(whole)))


def test_a_super_packet_is_corrupted_where_it_will_be_noticed() -> None:
    """Its segments get their checksums from whoever cuts it: damage to the payload would be sealed."""
    whole = struct.pack("=BBHHHH", 1, 1, 54, 1448, 34, 16) + bytes(20_000)
    for seed in range(200):
        spoilt = corrupted(whole, Random(seed))
        assert spoilt[:HEADER] == whole[:HEADER]
        assert spoilt[HEADER : HEADER + 34] != whole[HEADER : HEADER + 34]
        assert spoilt[HEADER + 34 :] == whole[HEADER + 34 :]
