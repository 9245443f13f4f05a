"""Scripts that know nothing of the rig, each in a process of its own that is watched: what the rig is told of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.lab.runs import ROOT

Events = list[dict[str, Any]]

# Torch is imported once; then each training is a forked process by itself, as data loaders' workers are.
TRAININGS = """
import io, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

def net():
    return nn.Sequential(nn.Linear(8, 1024), nn.BatchNorm1d(1024), nn.Linear(1024, 512), nn.Linear(512, 4))

def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)

def train(model, steps=4, earlier=0, after=lambda: None):
    optimizer = sgd(model)
    for _ in range(steps):
        for _ in range(earlier):
            with model.no_sync():
                model(torch.randn(4, 8)).sum().backward()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()
    return model

def plain():
    train(DDP(net()))

def accumulating():
    train(DDP(net()), earlier=2)

def unused():
    train(DDP(net(), find_unused_parameters=True))

def half():
    model = DDP(net())
    model(torch.randn(4, 8))
    model.register_comm_hook(None, fp16_compress_hook)  # after a forward pass, when there is one of the onlooker's
    train(model)

def built_in():
    model = DDP(net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    train(model)

def two_models():
    one, other = DDP(net()), DDP(nn.Linear(4, 1))
    first, second = sgd(other), sgd(one)
    for _ in range(4):
        for optimizer in first, second:
            optimizer.zero_grad()
            other(one(torch.randn(4, 8))).sum().backward()
            optimizer.step()

def skipped():
    model, scaler = DDP(net()), torch.amp.GradScaler("cpu", init_scale=2.0**126)  # of which the first is too large
    optimizer = sgd(model)
    for _ in range(4):
        scaler.scale(model(torch.randn(4, 8)).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**126

def marked():
    from rig import step
    model = DDP(net())
    for _ in range(3):
        train(model, steps=2)
        step()

def checkpointed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        def forward(self, x):
            return self.second(checkpoint(self.first, x.requires_grad_(), use_reentrant=True))
    train(DDP(Net()))

def validating():
    model = DDP(net())
    train(model, after=lambda: torch.no_grad()(model)(torch.randn(4, 8)))

def sharded():
    from torch.distributed.fsdp import fully_shard
    train(fully_shard(net()))

def alone():
    dist.destroy_process_group()
    train(net())

def leaving():
    model = train(DDP(net()))
    torch.save(model, io.BytesIO())  # it is as it was
    list(DataLoader(torch.randn(8, 4), num_workers=1))
    sys.exit(3)

sgd(net())  # a first optimizer imports as much again
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        globals()[name]()
        sys.exit()
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
NAMES = (
    "plain", "accumulating", "unused", "half", "built_in", "two_models", "skipped", "marked", "checkpointed",
    "validating", "sharded", "alone", "leaving",
)  # fmt: skip
GRADIENTS = 4 * (8 * 1024 + 1024 + 2 * 1024 + 1024 * 512 + 512 + 512 * 4 + 4)  # bytes of the parameters of net()
BUFFERS = [2 * 4 * 1024, 8]  # its running mean and variance, and the count of batches


class Listener:
    """In a launcher's place: what each process that connects says, by connection, in the order in which they came."""

    def __init__(self) -> None:
        self.name = f"rig-test-{uuid4().hex}"
        self.heard: list[Events] = []
        self.silence = False  # whether to hang up on whoever speaks
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind("\0" + self.name)
        self._door.listen()
        self._usher = threading.Thread(target=self._let_in)
        self._usher.start()

    def _let_in(self) -> None:
        while True:
            speaker, _ = self._door.accept()
            if self.silence:
                self.silence = False
                speaker.close()
                continue
            events: Events = []
            with speaker.makefile() as lines, speaker:
                for line in lines:
                    events.append(json.loads(line))
                    if events[-1]["event"] == "closing":
                        return
            self.heard.append(events)

    def close(self) -> None:
        """Nobody speaks any more."""
        with socket.socket(socket.AF_UNIX) as last:
            last.connect("\0" + self.name)
            last.sendall(b'{"event": "closing"}\n')
        self._usher.join()
        self._door.close()


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()


def watched(
    script: str, *arguments: str, address: str | None = None, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script as the launcher does, in a network that has nothing but its loopback."""
    folders = [str(ROOT / "rig/workloads/onlooker"), str(ROOT), *filter(None, [path])]
    given: Mapping[str, str] = os.environ | {
        "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1", "RIG_WARMUP": "1", "RANK": "0",
        "GLOO_SOCKET_IFNAME": "lo", "TORCHINDUCTOR_CACHE_DIR": "/tmp",
    } | ({"RIG_EVENTS": "@" + address} if address else {})  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], check=False, capture_output=True, text=True, timeout=120, env=given
    )


@pytest.fixture(scope="module")
def told() -> dict[str, Events]:
    """What the rig is told of each training."""
    with listening() as listener:
        answer = watched(TRAININGS, *NAMES, address=listener.name)
    codes = dict(line.split() for line in answer.stdout.splitlines())
    # torch 2.13 may abort a process that is over (docs/facts.md), which the launcher takes for what it is.
    assert codes.keys() == set(NAMES)
    assert all(code in ("3" if name == "leaving" else "0", "-6") for name, code in codes.items()), answer.stderr
    assert len(listener.heard) == len(NAMES), "a forked worker spoke, or a training did not"
    return dict(zip(NAMES, listener.heard, strict=True))


def of(events: Events, kind: str) -> Events:
    return [event for event in events if event["event"] == kind]


def exchanged(step: Mapping[str, Any]) -> int:
    return sum(size for _, _, size in step["buckets"])


def test_a_plain_script_is_told_from_hello_to_done(told: dict[str, Events]) -> None:
    events = told["plain"]
    assert [event["event"] for event in events] == [
        "hello", "group", "step", "step", "step", "layout", "step", "done",
    ]  # fmt: skip
    hello, group, done = events[0], events[1], events[-1]
    assert {event["rank"] for event in events} == {0}
    assert (hello["size"], hello["threads"], hello["torch"][:2]) == (1, 1, "2.")
    assert (group["backend"], group["size"], group["ranks"]) == ("gloo", 1, [0])
    assert (done["steps"], done["loss"], done["accuracy"]) == (4, None, None)
    assert [step["warmup"] for step in of(events, "step")] == [True, False, False, False]


def test_moments_of_a_step_are_in_order_and_steps_do_not_overlap(told: dict[str, Events]) -> None:
    steps = of(told["plain"], "step")
    for step in steps:
        moments = [step[key] for key in ("start", "forward_start", "forward_end", "backward_end", "end")]
        assert moments == sorted(moments)
        assert 0 <= step["loading"] <= step["forward_start"] - step["start"]
        assert all(step["forward_end"] <= begun < ended <= step["end"] for begun, ended, _ in step["buckets"])
        assert step["backward_end"] == max(begun for begun, _, _ in step["buckets"])
    assert all(one["end"] <= other["start"] for one, other in pairwise(steps))


def test_buckets_and_buffers_are_those_of_the_model(told: dict[str, Events]) -> None:
    events = told["plain"]
    (layout,) = of(events, "layout")
    assert sum(layout["buckets"]) == GRADIENTS
    assert sorted(index for members in layout["tensors"] for index in members) == list(range(8))
    assert (layout["broadcasts"], layout["maps"], layout["hooks"]) == (BUFFERS, [], [])
    assert len(layout["buckets"]) == 2
    assert [exchanged(step) for step in of(events, "step")] == [GRADIENTS] * 4


def test_earlier_micro_batches_exchange_nothing_and_are_timed(told: dict[str, Events]) -> None:
    for step in of(told["accumulating"], "step"):
        assert exchanged(step) == GRADIENTS
        assert 0 < step["earlier"] < step["forward_end"] - step["forward_start"]
    assert all(step["earlier"] == 0 for step in of(told["plain"], "step"))
    assert of(told["accumulating"], "layout")[0]["broadcasts"] == BUFFERS


def test_unused_parameters_take_a_map(told: dict[str, Events]) -> None:
    assert of(told["unused"], "layout")[0]["maps"] == [4 * 8]


def test_a_hook_of_the_scripts_own_is_wrapped_even_after_a_forward_pass(told: dict[str, Events]) -> None:
    (layout,) = of(told["half"], "layout")
    assert (sum(layout["buckets"]), layout["hooks"]) == (GRADIENTS // 2, [])


def test_what_a_built_in_hook_does_is_read_from_ddps_own_log(told: dict[str, Events]) -> None:
    (log,), (layout,) = of(told["built_in"], "log"), of(told["built_in"], "layout")
    assert "from DDP's own log" in log["text"]
    assert sum(layout["buckets"]) == GRADIENTS
    assert layout["hooks"] == ["a built-in hook, BuiltinCommHookType.FP16_COMPRESS"]
    for step in of(told["built_in"], "step")[1:]:
        assert step["forward_end"] <= step["buckets"][0][0] < step["buckets"][-1][1] <= step["end"] + 1e-3


def test_two_models_add_up_and_steps_end_with_the_first_optimizer(told: dict[str, Events]) -> None:
    """Both exchange in either backward pass, so twice a step; buffers go before each forward pass."""
    events = told["two_models"]
    assert of(events, "done")[0]["steps"] == 4
    assert [exchanged(step) for step in of(events, "step")][1:] == [2 * (GRADIENTS + 20)] * 3
    assert of(events, "layout")[0]["broadcasts"] == BUFFERS * 2


def test_a_step_that_a_scaler_leaves_out_is_one(told: dict[str, Events]) -> None:
    assert [exchanged(step) for step in of(told["skipped"], "step")] == [GRADIENTS] * 4


def test_a_script_may_mark_its_steps(told: dict[str, Events]) -> None:
    assert [exchanged(step) for step in of(told["marked"], "step")] == [2 * GRADIENTS] * 3


def test_a_backward_pass_inside_another_is_part_of_it(told: dict[str, Events]) -> None:
    assert all(step["forward_end"] < step["buckets"][0][0] for step in of(told["checkpointed"], "step"))


def test_validation_is_no_part_of_a_forward_pass(told: dict[str, Events]) -> None:
    """It counts with what comes before the next one, which DDP does not broadcast buffers for again."""
    assert all(step["earlier"] == 0 for step in of(told["validating"], "step"))
    assert of(told["validating"], "layout")[0]["broadcasts"] == BUFFERS


@pytest.mark.parametrize("name", ["sharded", "alone"])
def test_without_ddp_steps_are_timed_all_the_same(told: dict[str, Events], name: str) -> None:
    steps = of(told[name], "step")
    assert len(steps) == 4
    assert [step["buckets"] for step in steps] == [[]] * 4
    assert all(step["start"] < step["forward_end"] < step["backward_end"] < step["end"] for step in steps[1:])


def test_whoever_exits_early_has_told_so_before(told: dict[str, Events]) -> None:
    last = {"event": "done", "rank": 0, "steps": 4, "failed": False, "loss": None, "accuracy": None}
    assert told["leaving"][-1] == last


def test_an_exception_that_nobody_caught_is_told() -> None:
    with listening() as listener:
        answer = watched("from rig import step; step(); step(); 1 / 0", address=listener.name)
    assert answer.returncode == 1
    (events,) = listener.heard
    assert (events[-1]["event"], events[-1]["failed"]) == ("done", True)


def test_a_script_without_torch_stays_so_and_may_mark_steps() -> None:
    code = "import sys; from rig import step; [step() for _ in range(3)]; sys.exit('torch' in sys.modules)"
    with listening() as listener:
        answer = watched(code, address=listener.name)
    assert (answer.returncode, answer.stderr) == (0, "")
    (events,) = listener.heard
    assert [event["event"] for event in events] == ["hello", "step", "step", "done"]  # the first mark starts the clock
    assert events[0]["torch"] is None


def test_outside_the_rig_nothing_happens() -> None:
    answer = watched("import sys; from rig import step; step(); sys.exit('rig.workloads.steps' in sys.modules)")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_another_sitecustomize_is_loaded_too_and_no_file_of_the_rigs_hides_one(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.chained = True\n", encoding="utf-8")
    (tmp_path / "watch.py").write_text("mine = True\n", encoding="utf-8")
    for address in ("nobody", None):
        answer = watched("import watch; print(chained, watch.mine)", address=address, path=str(tmp_path))
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "True True\n", "")


def test_a_script_never_fails_because_the_rig_does_not_listen() -> None:
    code = "import torch; from rig import step; step(); step(); print('done')"
    answer = watched(code, address="nobody-listens")
    assert (answer.returncode, answer.stdout) == (0, "done\n")
    assert answer.stderr.count("onlooker: ConnectionRefusedError") == 1


def test_a_script_never_fails_because_the_rig_has_gone() -> None:
    with listening() as listener:
        listener.silence = True
        answer = watched(
            "import time; from rig import step\n[(step(), time.sleep(0.1)) for _ in range(9)]", address=listener.name
        )
    assert answer.returncode == 0
    assert answer.stderr.count("onlooker: BrokenPipeError") == 1
