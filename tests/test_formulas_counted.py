"""What real ranks send over gloo, counted by tcp_info, against the formulas; tests/exchanges.py is one such rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rig.formulas import collectives, compression, traffic
from tests import exchanges

pytestmark = pytest.mark.timeout(300)  # ranks import torch, one after another where a host has few cores

ROOT = Path(__file__).resolve().parent.parent
WEIGHT = 4 * exchanges.LAYER[0] * exchanges.LAYER[1]
SHAPES = [exchanges.LAYER[::-1], exchanges.LAYER[1:]]
GRADIENTS = WEIGHT + 4 * exchanges.LAYER[1]


@pytest.fixture(scope="module", params=[2, 3])
def counted(request: pytest.FixtureRequest) -> tuple[int, list[dict[str, Any]]]:
    """How many ranks, and what each counted."""
    n: int = request.param
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    seat = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.exchanges"]
    ranks = [
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **seat, "RANK": str(rank)},
        )
        for rank in range(n)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * n, [errors for _, errors in said]
    return n, [json.loads(output) for output, _ in said]


Counted = tuple[int, list[dict[str, Any]]]


def test_hooks_send_what_the_formulas_say(counted: Counted) -> None:
    n, ranks = counted
    found = {name: fmean(rank[name] for rank in ranks) for name in ("plain", "fp16", "powersgd", "unused")}
    assert found == pytest.approx({
        "plain": traffic.gloo_allreduce_payload(GRADIENTS, n),
        "fp16": compression.fp16_payload(GRADIENTS, n),
        "powersgd": compression.powersgd_payload(SHAPES, exchanges.RANK, n),
        "unused": traffic.gloo_allreduce_payload(GRADIENTS, n) + traffic.unused_map_payload(len(SHAPES), n),
    }, rel=1e-12)  # fmt: skip


def test_gathering_sends_ones_own_to_every_other_rank(counted: Counted) -> None:
    """Besides, gloo has 288 B of its own for each of them, and 648 B where a sparse gradient is three gathers."""
    n, ranks = counted
    dense = collectives.allgather_payload(4 * exchanges.OWN, n)
    sparse = collectives.sparse_allreduce_payload(exchanges.ROWS, exchanges.WIDTH, n)
    assert {rank["gather"] for rank in ranks} == {dense + 288 * (n - 1)}
    assert {rank["sparse"] for rank in ranks} == {sparse + 648 * (n - 1)}


def test_a_step_sends_the_same_however_many_micro_batches_it_has(counted: Counted) -> None:
    """Buffers before the first one, nothing at the second, gradients in the last one's backward pass."""
    n, ranks = counted
    first, second, last = zip(*(rank["accumulated"] for rank in ranks), strict=True)
    buffers = [4 * 2 * exchanges.LAYER[1], 8]
    assert first == traffic.ddp_step_payload([], buffers, n)
    assert set(second) == {0}
    normalised = GRADIENTS + 4 * 2 * exchanges.LAYER[1]
    assert fmean(last) == pytest.approx(traffic.gloo_allreduce_payload(normalised, n), rel=1e-12)
