"""Ranks run for real, on loopback: their steps, their bytes, their reductions, their data."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from rig import models
from rig.errors import WorkloadError
from rig.units import Size
from rig.work import Data, Ddp
from rig.workloads.paced import PacedNet
from rig.workloads.pacer import Pacer

Event = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
PACE = {"forward": 0.05, "backward": 0.1, "optimizer": 0.005}


def ddp_job(model: str, **changes: Any) -> Event:
    """A paced job; `changes` replace its fields."""
    work = Ddp(4, 2, model, "paced", models.load(model), Size(25 * 2**20), seed=0, lr=0.05, data=Data())
    return {"kind": "ddp", **dataclasses.asdict(work), "batch": 32, "dilation": 1, "pace": PACE, **changes}


def start(job: Event, seat: dict[str, str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **seat}
    command = [sys.executable, "-m", f"rig.workloads.{job['kind']}"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)
    assert process.stdin is not None
    process.stdin.write(json.dumps(job))
    process.stdin.close()
    process.stdin = None
    return process


def start_all(job: Event, size: int) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [start(job, {**shared, "RANK": str(rank)}) for rank in range(size)]


def run(job: Event, size: int = 1) -> list[list[Event]]:
    """Run a job on that many ranks; every rank's events."""
    processes = start_all(job, size)
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * size, [errors for _, errors in said]
    return [[json.loads(line) for line in output.splitlines()] for output, _ in said]


def steps(events: list[Event], warmup: bool = False) -> list[Event]:
    return [event for event in events if event["event"] == "step" and event["warmup"] is warmup]


def ring_bytes(size: int) -> int:
    """What each of two ranks sends for one all-reduce: 2(N−1)/N · (S + 144 · segments); empty ones are not sent."""
    segments = 2 * max(2, math.ceil(math.ceil(size / 2**20) / 2))
    elements = math.ceil(size / 4 / segments)
    return size + 144 * math.ceil(size / 4 / elements)


# ── paced ────────────────────────────────────────────────────────────────────────────────────────────
def test_alone_a_paced_step_takes_its_pace() -> None:
    [events] = run(ddp_job("transformer", dilation=4))
    spans = [step["end"] - step["start"] for step in steps(events)]
    assert min(spans) == pytest.approx(4 * sum(PACE.values()), rel=0.01)  # the others may meet a busy host
    assert [event["event"] for event in events] == ["hello", "step", "step", "layout", *["step"] * 4, "done"]
    for step in steps(events):
        moments = [step[key] for key in ("start", "forward_start", "forward_end", "backward_end", "end")]
        assert moments == sorted(moments)
        assert (step["payload"], step["samples"], step["loss"]) == (0, 32, None)


def test_two_ranks_reduce_resnet50_in_its_five_buckets() -> None:
    first, second = run(ddp_job("resnet50", steps=2), size=2)
    [layout] = [event for event in first if event["event"] == "layout"]
    assert layout["buckets"] == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
    assert sorted(chain.from_iterable(layout["tensors"])) == list(range(161))
    assert layout["tensors"][0] == [160, 159]
    ring = sum(ring_bytes(bucket) for bucket in layout["buckets"])
    buffers = sum(tensor.nbytes for tensor in models.load("resnet50").buffers)
    # two broadcasts, of the float32 and of the int64 buffers: header and notice, 48 bytes each, and the peer's notice
    assert {step["payload"] for step in steps(first)} == {ring + buffers + 2 * 96}
    assert {step["payload"] for step in steps(second)} == {ring + 2 * 48}


def test_buckets_of_a_step_follow_its_gradients() -> None:
    first, _ = run(ddp_job("transformer", dilation=2), size=2)
    for step in steps(first):
        starts = [start for start, _, _ in step["buckets"]]
        assert starts == sorted(starts)
        assert step["forward_end"] < starts[0] < starts[-1] == step["backward_end"]
        assert all(start < end < step["end"] for start, end, _ in step["buckets"])


def test_a_bucket_cap_of_ones_own_goes_for_the_first_bucket_too() -> None:
    events, _ = run(ddp_job("transformer", bucket_cap=2**19, steps=1, pace=dict.fromkeys(PACE, 0.001)), size=2)
    [layout] = [event for event in events if event["event"] == "layout"]
    assert len(layout["buckets"]) == 5  # 2.4 MB in all
    assert all(bucket >= 2**19 for bucket in layout["buckets"][:-1])


def test_deadlines_share_the_pace_by_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda span: now.__setitem__(0, now[0] + span))
    pacer = Pacer([1.0, 3.0], {"forward": 4.0, "backward": 8.0, "optimizer": 1.0}, dilation=2)
    pacer.begin()
    seen = []
    for wait, layer in ((pacer.forward, 0), (pacer.forward, 1), (pacer.backward, 1), (pacer.backward, 0)):
        wait(layer)
        seen.append(now[0] - 100)
    pacer.optimizer(reduced=100 + 23)  # hidden by backward, which ends at 24
    seen.append(now[0] - 100)
    pacer.begin()
    pacer.optimizer(reduced=now[0] + 30)
    seen.append(now[0] - 126)
    assert [*seen, pacer.late] == pytest.approx([2, 8, 20, 24, 26, 32, 0])


def test_deadlines_share_the_pace_as_it_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda span: now.__setitem__(0, now[0] + span))
    shares = {"forward_shares": [0.5, 0.5], "backward_shares": [0.75, 0.25]}
    pacer = Pacer([1.0, 3.0], {"forward": 4.0, "backward": 8.0, "optimizer": 1.0, **shares}, dilation=1)
    pacer.begin()
    pacer.micro_batch()
    seen = [now[0]]
    for wait, layer in ((pacer.forward, 0), (pacer.forward, 1), (pacer.backward, 1), (pacer.backward, 0)):
        wait(layer)
        seen.append(now[0])
    assert seen == [12, 14, 16, 18, 24]
    assert (pacer.began, pacer.start) == (0, 12)


def test_a_late_layer_does_not_delay_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda span: now.__setitem__(0, now[0] + span))
    pacer = Pacer([1.0, 1.0], {"forward": 2.0, "backward": 2.0, "optimizer": 0.0}, dilation=1)
    pacer.begin()
    pacer.forward(1)
    now[0] = 3.25
    pacer.backward(1)
    pacer.backward(0)
    assert (now[0], pacer.late, pacer.late_any) == (4.0, 0.0, 0.25)  # nothing waited for layer 1
    now[0] = 4.5
    pacer.backward(0)
    pacer.count()
    assert pacer.late == 0.5


def test_a_wrong_reduction_is_refused() -> None:
    table = {"parameters": [{"name": "a.weight", "shape": [2], "flops": 1.0}], "buffers": []}
    net = PacedNet(table, Pacer([1.0], dict.fromkeys(PACE, 0.0), 1), fill=2.0)
    net(torch.zeros(1)).backward()
    net.check(expected=2.0)
    with pytest.raises(WorkloadError, match=r"gradient of a.weight: found 2 to 2, expected 1.5 throughout"):
        net.check(expected=1.5)


# ── micro-batches ────────────────────────────────────────────────────────────────────────────────────
def test_micro_batches_exchange_once_a_step() -> None:
    """Bytes of one all-reduce a bucket and of one broadcast of the buffers, however many micro-batches; the last one's
    gradients hold the sum of all, else the ranks would end with an error.
    """
    first, second = run(ddp_job("cnn", accumulate=3, steps=3, dilation=2), size=2)
    [layout] = [event for event in first if event["event"] == "layout"]
    ring = sum(ring_bytes(bucket) for bucket in layout["buckets"])
    buffers = sum(tensor.nbytes for tensor in models.load("cnn").buffers)
    assert {step["payload"] for step in steps(first)} == {ring + buffers + 2 * 96}
    assert {step["payload"] for step in steps(second)} == {ring + 2 * 48}
    for step in steps(first):
        assert step["earlier"] == pytest.approx(2 * 2 * (PACE["forward"] + PACE["backward"]))
        assert step["forward_start"] + step["earlier"] < step["forward_end"] < step["buckets"][0][0]
        assert len(step["buckets"]) == len(layout["buckets"])
    fastest = min(step["end"] - step["start"] for step in steps(first))
    assert fastest == pytest.approx(2 * (3 * (PACE["forward"] + PACE["backward"]) + PACE["optimizer"]), rel=0.05)


def test_alone_a_paced_step_of_micro_batches_takes_its_paces() -> None:
    [events] = run(ddp_job("transformer", accumulate=4, steps=3, dilation=2))
    spans = [step["end"] - step["start"] for step in steps(events)]
    assert min(spans) == pytest.approx(2 * (4 * (PACE["forward"] + PACE["backward"]) + PACE["optimizer"]), rel=0.01)


@pytest.mark.parametrize("size", [1, 2])
def test_micro_batches_learn_what_one_large_batch_does(size: int) -> None:
    """The transformer has nothing that looks at a batch as a whole, so that the loss of every step is the same but for
    rounding; its last one would be 0.1 off if one gradient of a step were lost.
    """
    fields: Event = {"compute": "real", "steps": 6, "batch": 32, "pace": None}
    whole, *_ = run(ddp_job("transformer", **fields), size)
    parts, *_ = run(ddp_job("transformer", accumulate=4, **fields), size)
    losses, again = ([step["loss"] for step in steps(events)] for events in (whole, parts))
    assert again == pytest.approx(losses, rel=1e-4)
    assert losses[-1] != pytest.approx(losses[0], rel=1e-2)
    assert {step["payload"] for step in steps(parts)} == {step["payload"] for step in steps(whole)}
    for step in steps(parts):
        assert 0 < step["earlier"] < step["forward_end"] - step["forward_start"]
        assert step["samples"] == 32
    assert all(step["earlier"] == 0 for step in steps(whole))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────
def test_a_rank_holds_its_gradients_and_little_else() -> None:
    """The table's parameters share memory, and the buckets of the first step are gone: 400 MB of gradients once."""
    table = {"parameters": [{"name": f"p{at}", "shape": [10, 10**6], "flops": 0.1} for at in range(10)], "buffers": []}
    job = ddp_job("cnn", table=table, steps=2, pace=dict.fromkeys(PACE, 0.05))
    more = resident(job) - resident(ddp_job("cnn", steps=2))
    assert 0.9 * 400e6 < more < 1.05 * 400e6 + 60e6


def resident(job: Event) -> int:
    """Bytes of memory that the first of two ranks holds while its last step goes on."""
    first, second = start_all(job, 2)
    assert first.stdout is not None
    for line in first.stdout:
        if json.loads(line).get("step") == job["warmup"] + job["steps"] - 2:
            break
    rollup = Path(f"/proc/{first.pid}/smaps_rollup").read_text(encoding="ascii")
    [kilobytes] = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Rss:")]
    said = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], [errors for _, errors in said]
    return kilobytes * 1024


# ── real ─────────────────────────────────────────────────────────────────────────────────────────────
def test_two_ranks_learn_the_digits() -> None:
    first, second = run(ddp_job("cnn", compute="real", steps=40, batch=16, pace=None), size=2)
    losses = [step["loss"] for step in steps(first)]
    assert sum(losses[-5:]) < sum(losses[:5]) / 2
    assert first[-1]["accuracy"] > 0.8
    assert second[-1]["accuracy"] is None
    assert all(step["late"] == 0 and step["forward_start"] < step["forward_end"] for step in steps(first))


def test_the_transformer_learns_too() -> None:
    [events] = run(ddp_job("transformer", compute="real", steps=40, pace=None))
    assert events[-1]["accuracy"] > 0.3


# ── all-reduce ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [4, 1_000_004, 3 * 2**20 + 4])
def test_allreduce_sends_the_rings_bytes(size: int) -> None:
    ranks = run({"kind": "allreduce", "size": size, "steps": 3, "warmup": 1, "dilation": 1}, size=2)
    per_step = [sum(step["payload"] for step in pair) for pair in zip(*map(steps, ranks), strict=True)]
    assert per_step == [2 * ring_bytes(size)] * 3
    assert all(step["buckets"][0][2] == size for step in steps(ranks[0]))


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"kind": "allreduce", "size": 6}, "fill 6 bytes with float32"),
        (
            ddp_job("cnn", compute="real", data={"source": "cifar10", "path": "/nowhere", "size": 0}),
            "open /nowhere/data_batch_1.bin",
        ),
    ],
)
def test_a_job_that_cannot_be_done_ends_with_its_reason(job: Event, said: str) -> None:
    process = start({"steps": 1, "warmup": 0, **job}, {})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said in errors.splitlines()[-1]
