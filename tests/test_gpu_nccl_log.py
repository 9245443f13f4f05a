"""NCCL's own log, as versions from 2.20 to 2.28 write it: what it says of the way that traffic took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rig.lab import nccl_log

LOGS = Path(__file__).parent / "data" / "nccl"


def lines(name: str) -> list[str]:
    return (LOGS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def note(name: str) -> dict[str, Any]:
    [found] = nccl_log.notes({"n0": lines(name), "n1": []})
    return found


def test_sockets_over_the_cable() -> None:
    assert note("socket") == {
        "event": "transport",
        "node": "n0",
        "version": "2.28.9+cuda13.0",
        "interfaces": ["eth0"],
        "choices": ["Broadcast Ring/Simple", "AllReduce Ring/Simple"],
        "ways": [{"from": 1, "to": 0, "via": "NET/Socket"}, {"from": 0, "to": 1, "via": "NET/Socket"}],
    }


def test_older_versions_write_numbers_for_names() -> None:
    found = note("shared-memory")
    assert found["version"] == "2.20.5+cuda12.4"
    assert found["interfaces"] == ["eth0", "usb0"]
    assert found["choices"] == ["AllReduce Ring/Simple", "AllReduce Tree/LL"]
    assert [way["via"] for way in found["ways"]] == ["SHM/direct/direct", "P2P/CUMEM/read"]


@pytest.mark.parametrize("name", ["socket", "shared-memory", "infiniband"])
def test_every_line_of_its_plain_kind_is_known_as_its(name: str) -> None:
    assert all(map(nccl_log.is_told, lines(name)))


@pytest.mark.parametrize("text", ["step 3: loss 0.1", "n0:1:2 [0] init.cc:12 NCCL WARN Duplicate GPU detected"])
def test_warnings_and_other_peoples_lines_stay_in_the_log(text: str) -> None:
    assert not nccl_log.is_told(text)


BYPASSES = [
    ("socket", {"n0": 1, "n1": 1}, ""),
    ("infiniband", {"n0": 1, "n1": 1}, "n1 → n0 went by NET/IB"),
    ("shared-memory", {"n0": 1, "n1": 2}, "n0 → n1 went by SHM/direct/direct, not by NET/Socket over their links"),
    ("shared-memory", {"n0": 2, "n1": 1}, "n0 → n1 went by P2P/CUMEM/read"),
    ("shared-memory", {"n0": 3}, ""),
]


@pytest.mark.parametrize(("name", "ranks", "said"), BYPASSES)
def test_what_went_past_the_links_is_named(name: str, ranks: dict[str, int], said: str) -> None:
    """Ranks of one node may share memory; ranks of two nodes may not."""
    found = nccl_log.bypass([note(name)], ranks)
    assert said in found if said else found == ""


def test_a_log_that_says_nothing_tells_nothing() -> None:
    assert nccl_log.notes({"n0": []}) == []
    assert nccl_log.notes({"n0": ["n0:1:1 [0] NCCL INFO Connected all rings"]})[0]["ways"] == []
