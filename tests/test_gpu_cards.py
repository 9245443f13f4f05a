"""A node's GPUs by NVML, and what a record and a verdict are told of them and of NCCL."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig import cards, verdict
from rig.node import gpu
from rig.results import Metric, Predicted
from tests.cases import case

HERE = Path(__file__).parent
ROOT = HERE.parent
STEP = """import time; print('{"event": "step"}', flush=True); time.sleep(0.7)"""
TOLD = {"name": "Card 0", "driver": "580.65.06", "memory": 24 * 2**30}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVML as far as the rig asks it, built here."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a libnvidia-ml.so.1 with")
    built = tmp_path_factory.mktemp("nvml") / gpu.LIBRARY
    source = HERE / "data" / "nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True, timeout=60)
    return built


def found(library: Path, visible: str | None, monkeypatch: pytest.MonkeyPatch, looks: int = 3) -> list[dict[str, Any]]:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    every = gpu.cards(visible, ctypes.CDLL(str(library)))
    assert every is not None
    for look in range(looks):
        if look == 1:
            every.begin()
        every.look()
        every.look()  # not due yet
        now[0] += gpu.PERIOD
    return every.told()


def test_a_card_tells_what_it_is_and_its_peak(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of time that a kernel ran counts from the first step on: two of three looks."""
    [first, second] = found(library, None, monkeypatch)
    assert first["used"] == 6 * 2**30
    assert 0.4 <= first["busy"] <= 0.8
    assert first["samples"] == 2
    assert {key: first[key] for key in TOLD} == TOLD
    assert (second["name"], second["used"], second["busy"], second["samples"]) == ("Card 1", 2**30, None, 0)


@pytest.mark.parametrize(("visible", "names"), [("1", ["Card 1"]), ("GPU-second,0", ["Card 1", "Card 0"])])
def test_only_the_nodes_own_cards(
    library: Path, visible: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [card["name"] for card in found(library, visible, monkeypatch)] == names


@pytest.mark.parametrize("visible", ["", "7", "GPU-unknown"])
def test_no_card_no_word(library: Path, visible: str) -> None:
    assert gpu.cards(visible, ctypes.CDLL(str(library))) is None


def test_without_a_driver_there_is_nothing_to_ask() -> None:
    assert gpu.cards("0", ctypes.CDLL(None)) is None  # a library without NVML's functions


def test_the_launcher_tells_of_its_cards(library: Path) -> None:
    """A rank that says it did a step, and lives for three looks."""
    rank = {"rank": 0, "argv": [sys.executable, "-c", STEP], "env": {"CUDA_VISIBLE_DEVICES": "0"}, "job": {}}
    environment = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}
    launcher = subprocess.Popen(
        [sys.executable, "-m", "rig.node.launch"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True,
    )  # fmt: skip
    with launcher:
        assert launcher.stdin is not None and launcher.stdout is not None
        launcher.stdin.write(json.dumps({"ranks": [rank], "cpus": None}) + "\n")
        launcher.stdin.flush()
        said = [json.loads(line) for line in launcher.stdout]
    assert [one["event"] for one in said] == ["step", "exit", "gpu"]
    [card] = said[-1]["cards"]
    assert {key: card[key] for key in TOLD} == TOLD
    assert card["samples"] >= 2
    assert 0.4 <= card["busy"] <= 0.8


# ── the record ───────────────────────────────────────────────────────────────────────────────────────
def noted(node: str, used: int, busy: float | None) -> dict[str, Any]:
    return {"event": "gpu", "node": node, "cards": [{**TOLD, "used": used, "busy": busy, "samples": 9}]}


SOCKET: dict[str, Any] = {
    "event": "transport",
    "version": "2.28.9",
    "interfaces": ["eth0"],
    "choices": ["AllReduce Ring/Simple"],
}


def way(start: int, end: int, via: str) -> dict[str, Any]:
    return {"from": start, "to": end, "via": via}


def test_a_record_has_each_nodes_cards_over_all_repeats() -> None:
    done: list[dict[str, Any]] = [{"event": "done", "node": "n0", "peak": 3 * 2**30}, {"event": "done", "node": "n1"}]
    notes = [*done, noted("n0", 5, 0.5), noted("n0", 7, 0.7), noted("n1", 2, None)]
    assert cards.told(case(2), notes) == {
        "gpu": {
            "n0": [{**TOLD, "used": 7, "busy": pytest.approx(0.6), "peak": 3 * 2**30}],
            "n1": [{**TOLD, "used": 2, "busy": None}],
        }
    }
    assert cards.told(case(2), done) == {}


def test_a_record_says_how_nccl_spoke() -> None:
    notes: list[dict[str, Any]] = [
        {**SOCKET, "node": "n0", "ways": [way(0, 1, "NET/Socket")]},
        {**SOCKET, "node": "n1", "version": None, "choices": [], "ways": [way(1, 0, "NET/Socket")]},
    ]
    assert cards.told(case(2), notes)["nccl"] == {
        "version": "2.28.9",
        "interfaces": ["eth0"],
        "choices": ["AllReduce Ring/Simple"],
        "transports": ["NET/Socket"],
        "bypass": "",
    }


def test_traffic_that_nccl_took_past_the_links_fails_a_case() -> None:
    """Its own word is enough: what crossed the links besides may well be as much as was due."""
    two = case(2)
    host = cards.told(two, [{**SOCKET, "node": "n0", "ways": [way(0, 1, "P2P/CUMEM")]}])
    judged = verdict.judge(two, evidence(host, {"n0": 10**9, "n1": 10**9}))
    assert judged.status == "fail"
    assert "n0 → n1 went by P2P/CUMEM" in judged.reason


@pytest.mark.parametrize(("carried", "status"), [((5, 1), "pass"), ((4, 1), "fail")])
def test_where_nccl_chooses_all_nodes_are_held_to_their_sum(carried: tuple[int, int], status: str) -> None:
    """Which node of a tree sends more is not known: 1 MB a step in the mean, three steps, two nodes."""
    two = case(2)
    sent = {"n0": carried[0] * 10**6, "n1": carried[1] * 10**6}
    predicted = Predicted(10**6, "B", "nccl_step_payload", {})
    judged = verdict.judge(two, replace(evidence({}, sent), predicted={"payload_tx": predicted}))
    assert judged.status == status


def evidence(host: dict[str, Any], carried: dict[str, int]) -> verdict.Evidence:
    measured = {
        "payload_tx": Metric(10**6, "B"),
        "step_time": Metric(0.1, "s", samples=(0.1, 0.1)),
        "lateness": Metric(0.0, "s"),
    }
    predicted = {"payload_tx": Predicted(10**6, "B", "nccl_step_payload", {}, (10**6, 10**6))}
    return verdict.Evidence((), measured, predicted, carried, host)
