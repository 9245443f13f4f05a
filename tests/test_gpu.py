"""Where ranks compute and what carries their collectives: keys, variables, bytes. None of it needs a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rig import scenario
from rig.doctor import containers
from rig.errors import ScenarioError, WorkloadError
from rig.formulas import nccl
from rig.formulas.predict import predict, unknown
from rig.lab import gpus
from rig.model import Case
from rig.plan import expand
from rig.work import Algorithm, Devices
from rig.workloads import devices
from rig.workloads.job import Seat
from tests.cases import case, node

TEXT = """\
name: x
nodes: 2
link: {{rate: 1gbit{link}}}
gpu: {gpu}
workload: {{{work}}}
expect: {{{expect}}}
"""
REAL = "kind: ddp, model: cnn, batch: 8, compute: real"
PACED = "kind: ddp, model: resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}"
REDUCE = "kind: allreduce, size: 8MiB"


def written(work: str, gpu: str = "auto", expect: str = "", link: str = "") -> str:
    return TEXT.format(work=work, gpu=gpu, expect=expect, link=link)


def planned(work: str, **more: str) -> Case:
    return next(one for one in expand(scenario.loads(written(work, **more), "x.yaml"), 2) if one.size == 2)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("work", "resolved", "gpu"),
    [
        (REAL, Devices("auto", "gloo", "ring"), "auto"),
        (PACED, Devices("cpu", "gloo", "ring"), "auto"),
        (REDUCE, Devices("cpu", "gloo", "ring"), "auto"),
        (f"{REAL}, device: cuda", Devices("cuda", "nccl", "ring"), "required"),
        (f"{REAL}, device: cuda, backend: gloo", Devices("cuda", "gloo", "ring"), "required"),
        (f"{REDUCE}, device: cuda, algorithm: tree", Devices("cuda", "nccl", "tree"), "required"),
    ],
)
def test_what_is_left_open_is_decided_without_looking_at_a_machine(work: str, resolved: Devices, gpu: str) -> None:
    found = planned(work)
    assert (found.devices, found.gpu) == (resolved, gpu)


CUDA = f"{REAL}, device: cuda"
REFUSED = [
    (f"{REAL}, backend: nccl", {}, "workload.backend: nccl sends from GPU memory only; write device: cuda beside it"),
    (f"{PACED}, backend: nccl", {}, "workload.backend: nccl sends from GPU memory only"),
    (f"{PACED}, device: cuda", {}, "workload.device: cuda does not go with paced compute"),
    (f"{REAL}, algorithm: tree", {}, "workload.algorithm: tree is for NCCL, and gloo is a ring always; leave it out"),
    (CUDA, {"gpu": "none"}, "gpu: none hides every GPU, and workload.device is cuda; write gpu: required"),
    (f"{CUDA}, algorithm: auto", {"expect": "traffic: 1%"}, "expect.traffic: NCCL chooses what it sends"),
    (f"{CUDA}, algorithm: tree", {"expect": "step_time: 5%"}, "expect.step_time: no time is predicted of NCCL's tree"),
    (f"{CUDA}, exchange: fp16", {}, "nccl goes with exchange: allreduce in this version; write backend: gloo for fp16"),
    (f"{REAL}, device: tpu", {}, "workload.device: found tpu; did you mean cpu? Allowed: auto, cpu, cuda"),
]


@pytest.mark.parametrize(("work", "more", "said"), REFUSED)
def test_what_does_not_go_together_is_refused(work: str, more: dict[str, str], said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario.loads(written(work, **more), "x.yaml")
    assert said in str(error.value)


# ── variables ────────────────────────────────────────────────────────────────────────────────────────
def over(algorithm: Algorithm = "ring") -> Case:
    work = replace(case(4).workload, devices=Devices("cuda", "nccl", algorithm))  # type: ignore[call-arg]
    return case(4, workload=work)


@pytest.mark.parametrize(
    ("given", "ranks", "shares"),
    [
        (("0",), 1, ["0", "0", "0"]),
        (("0", "1"), 1, ["0", "1", "0"]),
        (("0", "1", "2", "3"), 2, ["0,1", "2,3", "0,1"]),
        (("GPU-a", "GPU-b", "GPU-c"), 2, ["GPU-a,GPU-b", "GPU-c,GPU-a", "GPU-b,GPU-c"]),
        (("0",), 2, ["0", "0", "0"]),
        ((), 1, ["", "", ""]),
    ],
)
def test_nodes_share_the_machines_cards_in_turn(given: tuple[str, ...], ranks: int, shares: list[str]) -> None:
    nodes = [replace(node(number), ranks=ranks) for number in range(3)]
    found = [gpus.environment(over(), one, given)["CUDA_VISIBLE_DEVICES"] for one in nodes]
    assert found == shares


def test_each_node_is_a_host_of_its_own_to_nccl_and_speaks_by_sockets() -> None:
    first, second = (gpus.environment(over(), node(number), ("0",)) for number in (0, 1))
    assert (first["NCCL_HOSTID"], second["NCCL_HOSTID"]) == ("n0", "n1")
    assert first["NCCL_NET"] == "Socket"
    assert first["NCCL_P2P_DISABLE"] == first["NCCL_SHM_DISABLE"] == "1"
    several = gpus.environment(over(), replace(node(0), ranks=2), ("0", "1"))
    assert "NCCL_P2P_DISABLE" not in several  # within a node it may
    assert "CUDA_VISIBLE_DEVICES" not in gpus.environment(over(), node(0), None)


@pytest.mark.parametrize(
    ("algorithm", "pinned"),
    [("ring", ("Ring", "Simple")), ("tree", ("Ring;allreduce:Tree", "Simple")), ("auto", (None, "Simple"))],
)
def test_the_algorithm_is_pinned(algorithm: Algorithm, pinned: tuple[str | None, str]) -> None:
    found = gpus.environment(over(algorithm), node(0), ("0",))
    assert (found.get("NCCL_ALGO"), found.get("NCCL_PROTO")) == pinned


@pytest.mark.parametrize(("mine", "known"), [("2,GPU-a", ("2", "GPU-a")), ("", ())])
def test_only_the_cards_that_the_rig_itself_may_use(
    mine: str, known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mine)
    assert gpus.offered({"gpu": True}) == known
    assert gpus.offered({"gpu": False}) == ()


# ── bytes and times ──────────────────────────────────────────────────────────────────────────────────
def test_a_step_over_nccl() -> None:
    """By hand, four nodes: 2·3/4 of 800 B, or half of it along each tree; and 80 B along a chain from rank 0."""
    assert nccl.nccl_step_payload([500, 300], [60, 20], 4, "ring") == (1280, 1280, 1280, 1200)
    assert nccl.nccl_broadcast_payload(80, 4) == (80, 80, 80, 0)
    tree, mean = nccl.nccl_step_payload([800], [80], 4, "tree"), nccl.nccl_step_payload([800], [80], 4, "auto")
    assert max(tree) == 2 * 800 + 80
    assert sum(tree) == 2 * 3 * 800 + 3 * 80 == mean[0] * 4
    assert nccl.nccl_step_payload([800], [80], 1, "ring") == (0,)


@pytest.mark.parametrize(
    ("algorithm", "per_node", "why"),
    [("ring", (8 * 2**20,) * 2, ""), ("tree", (8 * 2**20,) * 2, "NCCL's tree"), ("auto", (), "NCCL's choice")],
)
def test_a_plan_of_nccl(algorithm: str, per_node: tuple[int, ...], why: str) -> None:
    found = planned(f"{REDUCE}, device: cuda, algorithm: {algorithm}")
    payload = predict(found)["payload_tx"]
    assert (payload.value, payload.per_node, payload.formula) == (8 * 2**20, per_node, "nccl_step_payload")
    assert unknown(found) == why
    assert ("step_time" in predict(found)) == (not why)


def test_no_time_is_predicted_of_nccl_over_a_delay() -> None:
    assert unknown(planned(f"{REDUCE}, device: cuda", link=", rtt: 10ms")) == "NCCL over a delay"
    assert unknown(planned(REDUCE, link=", rtt: 10ms")) == ""


def test_ddp_over_nccl_sends_a_ring_of_its_buckets_and_chains_of_its_buffers() -> None:
    found = predict(planned(f"{REAL}, device: cuda"))["payload_tx"]
    buckets, buffers = sum(found.inputs["buckets"]), sum(found.inputs["broadcasts"])
    assert found.per_node == (buckets + buffers, buckets)
    assert found.formula == "nccl_step_payload"


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────
SEAT = Seat(0, 1, ("127.0.0.1", 0), None)


def test_a_rank_computes_on_its_cpu_unless_there_is_a_gpu() -> None:
    found = devices.seated(SEAT, {"device": "auto", "backend": "gloo"})
    assert found.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert devices.seated(SEAT, {}) == SEAT
    assert devices.seen(SEAT.device) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "cuda"}, "find the GPU that device: cuda asks for: torch .* sees none here; install a CUDA build"),
        ({"device": "cpu", "backend": "nccl"}, "join by NCCL: torch .* has none; install a CUDA build"),
    ],
)
def test_a_rank_without_one_says_so(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        devices.seated(SEAT, asked)


def test_moments_of_a_cpu_are_the_clocks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 4.5)
    clock = devices.clock(SEAT)
    assert [clock.begin(), clock.told(clock.now()), clock.told(clock.reduced()), clock.end()] == [4.5] * 4


class Event:
    """A moment of a GPU whose own clock shows 100 s more than the machine's."""

    now = 0.0  # s, this machine's

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = 100 + Event.now

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


@pytest.mark.parametrize(("backend", "reduced"), [("nccl", 7.5), ("gloo", 7.75)])
def test_moments_of_a_gpu_are_told_on_the_machines_clock(
    backend: str, reduced: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange of NCCL's ends in the stream, one of gloo's on the CPU: here 0.25 s later."""
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("time.monotonic", lambda: Event.now + (0.25 if Event.now > 7 else 0.0))
    clock = devices.clock(replace(SEAT, device=torch.device("cuda:0"), backend=backend))
    Event.now = 5.0
    assert clock.begin() == 5.0
    moments = []
    for Event.now in (6.0, 6.5):
        moments.append(clock.now())
    Event.now = 7.5
    moments.append(clock.reduced())
    assert clock.end() == 7.75
    assert [clock.told(moment) for moment in moments] == [6.0, 6.5, reduced]


# ── the machine ──────────────────────────────────────────────────────────────────────────────────────
def test_the_cuda_of_this_pytorch_is_read_without_importing_it() -> None:
    assert containers.torch_cuda() == (torch.version.cuda or "")


def test_a_doctor_says_who_computes() -> None:
    found = containers.gpu()
    assert (found.found == "none here: real compute is on CPUs") == (containers.gpus() == 0)
    assert found.mend or found.status == "ok"
