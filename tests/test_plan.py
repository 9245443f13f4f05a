"""Plans: names, baselines, and every derived figure against arithmetic done here."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from rig import scenario
from rig.errors import UsageError
from rig.model import Case
from rig.plan import buildable, expand
from rig.units import Rate, Size
from rig.work import Ddp

SCENARIOS = Path(__file__).parent.parent / "scenarios"

PACED = """\
name: paced
nodes: 2
link: {rate: 1gbit}
workload: {kind: ddp, model: resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}}
"""
BARE = PACED.replace("nodes: 2\n", "")
REAL = PACED.replace("resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}", "cnn, batch: 32, compute: real")


def plan(text: str, *sets: str, cores: int = 2) -> tuple[Case, ...]:
    return expand(scenario.loads(text, "x.yaml", sets), cores)


def one(text: str, *sets: str, cores: int = 2) -> Case:
    return next(case for case in plan(text, *sets, cores=cores) if case.role == "case")


# ── names, order and baselines ───────────────────────────────────────────────────────────────────────
def test_bandwidth_plan() -> None:
    cases = expand(scenario.load(SCENARIOS / "bandwidth.yaml"), cores=2)
    assert [(case.id, case.baseline, case.dilation) for case in cases] == [
        ("nodes=1,rate=1gbit", "nodes=1,rate=1gbit", 1),
        ("nodes=1,rate=2.5gbit", "nodes=1,rate=2.5gbit", 1),
        ("nodes=1,rate=10gbit", "nodes=1,rate=10gbit", 4),
        ("nodes=2,rate=1gbit", "nodes=1,rate=1gbit", 1),
        ("nodes=2,rate=2.5gbit", "nodes=1,rate=2.5gbit", 2),
        ("nodes=2,rate=10gbit", "nodes=1,rate=10gbit", 8),
        ("nodes=4,rate=1gbit", "nodes=1,rate=1gbit", 2),
        ("nodes=4,rate=2.5gbit", "nodes=1,rate=2.5gbit", 4),
        ("nodes=4,rate=10gbit", "nodes=1,rate=10gbit", 16),
    ]
    assert all(case.role == "case" for case in cases)
    assert cases[-1].params == {"nodes": 4, "link.rate": "10gbit"}
    assert cases[0].expect == {"payload_tx": 500_000, "step_time": 25_000_000, "speedup": 25_000_000}


def test_each_distinct_workload_gets_one_baseline() -> None:
    cases = plan(PACED, "sweep.workload.batch=[16, 32]")
    assert [(case.id, case.role) for case in cases] == [
        ("nodes=1,batch=16", "baseline"),
        ("nodes=2,batch=16", "case"),
        ("nodes=1,batch=32", "baseline"),
        ("nodes=2,batch=32", "case"),
    ]
    assert len(plan(PACED, "sweep.link.rate=[1gbit, 10gbit]")) == 3  # a faster link is no other workload


def test_what_cannot_speed_up_has_no_baseline() -> None:
    cases = expand(scenario.load(SCENARIOS / "allreduce.yaml"), cores=2)
    assert all(case.role == "case" and case.baseline == case.id for case in cases)


def test_a_baseline_runs_before_what_needs_it() -> None:
    cases = plan(BARE, "sweep.nodes=[4, 2, 1]", "sweep.workload.batch=[16, 32]")
    ids = [case.id for case in cases]
    assert len(ids) == len(set(ids)) == 6
    assert all(ids.index(case.baseline) <= ids.index(case.id) for case in cases)
    assert [case.size for case in cases] == [1, 4, 1, 4, 2, 2]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{link.up.rate: [1mbit], link.down.rate: [2mbit]}", "nodes=2,link.up.rate=1mbit,link.down.rate=2mbit"),
        ("{workload.compute: [{throughput: 9 samples/s}]}", "nodes=2,compute=throughput:9_samples_s"),
        ("{repeats: [3], nodes: [2]}", "nodes=2,repeats=3"),
    ],
)
def test_ids_can_be_read_and_typed(sweep: str, expected: str) -> None:
    assert one(PACED, f"sweep={sweep}").id == expected


def test_ids_that_would_be_alike_are_told_apart() -> None:
    cases = plan(PACED, "sweep.env.A=['a b', 'a/b']")
    assert [case.id for case in cases if case.role == "case"] == ["nodes=2,A=a_b", "nodes=2,A=a_b~2"]


def test_ids_leave_out_what_another_key_settles() -> None:
    """A model and its speed move together, and what is judged follows from the network."""
    text = BARE.replace("batch: 32", "batch: 8").replace(
        "workload:",
        """sweep:
  - {workload.model: [resnet50], workload.compute: [{profile: resnet50-gtx1080ti}], nodes: [2], link.rtt: [0ms, 5ms]}
  - {workload.model: [vgg16], workload.compute: [{profile: vgg16-p100}], nodes: [2, 4], expect.step_time: [8%]}
workload:""",
    )
    cases = plan(text)
    assert [(case.id, case.baseline) for case in cases] == [
        ("nodes=1,model=resnet50,rtt=0ms", "nodes=1,model=resnet50,rtt=0ms"),
        ("nodes=2,model=resnet50,rtt=0ms", "nodes=1,model=resnet50,rtt=0ms"),
        ("nodes=2,model=resnet50,rtt=5ms", "nodes=1,model=resnet50,rtt=0ms"),
        ("nodes=1,model=vgg16", "nodes=1,model=vgg16"),
        ("nodes=2,model=vgg16", "nodes=1,model=vgg16"),
        ("nodes=4,model=vgg16", "nodes=1,model=vgg16"),
    ]
    assert cases[-1].params == {
        "nodes": 4,
        "workload.model": "vgg16",
        "workload.compute": {"profile": "vgg16-p100"},
        "expect.step_time": "8%",
    }
    assert [case.expect.get("step_time") for case in cases] == [None, None, None, *[80_000_000] * 3]


@pytest.mark.parametrize(("nodes", "fits"), [(256, True), (257, False)])
def test_a_lab_has_as_many_nodes_as_have_been_tried(nodes: int, fits: bool) -> None:
    cases = plan(PACED, f"nodes={nodes}")
    if fits:
        assert buildable(cases) == cases
        return
    with pytest.raises(UsageError, match="case nodes=257: build its lab: it has 257 nodes, and a lab has at most 256"):
        buildable(cases)


# ── derived figures ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("asked", "k", "burst", "queue"),
    [
        (("1gbit", 2, 2), 1, 131_072, 2_500_000),  # rate, nodes, cores of the host
        (("2.5gbit", 1, 2), 1, 156_250, 6_250_000),  # 0.5 ms of 2.5 Gb/s, 20 ms of it
        (("2.5gbit", 4, 2), 4, 131_072, 6_250_000),
        (("10gbit", 4, 2), 16, 131_072, 25_000_000),
        (("10gbit", 4, 16), 2, 312_500, 25_000_000),
        (("100gbit", 1, 128), 4, 1_562_500, 250_000_000),  # the kernel counts to 34.3 Gb/s
        (("100mbit", 2, 2), 1, 131_072, 262_144),
    ],
)
def test_derived_link(asked: tuple[str, int, int], k: int, burst: int, queue: int) -> None:
    rate, nodes, cores = asked
    case = one(PACED, f"link.rate={rate}", f"nodes={nodes}", cores=cores)
    assert case.dilation == k
    way = case.nodes[0].link.up
    assert (way.burst, way.queue) == (burst, queue)
    assert way.rate == Rate.parse(rate)
    assert case.nodes[0].link.down == way


def test_written_figures_are_kept() -> None:
    case = one(PACED, "link={rate: 1gbit, burst: 512KiB, up: {queue: 9MiB}, mtu: 9000}", "tcp.buffer=8MiB", "threads=3")
    link = case.nodes[1].link
    assert (link.up.burst, link.up.queue, link.down.queue, link.mtu) == (2**19, 9 * 2**20, 2_500_000, 9000)
    assert (case.tcp.buffer, case.nodes[0].threads) == (8 * 2**20, 3)


@pytest.mark.parametrize(("rate", "buffer"), [("1gbit", 16 * 2**20), ("10gbit", 50_000_000), ("30tbit", 2**31 - 1)])
def test_buffers_cover_the_queue(rate: str, buffer: int) -> None:
    assert one(PACED, f"link.rate={rate}").tcp.buffer == Size(buffer)


def test_threads_come_from_the_largest_case() -> None:
    cases = plan(BARE, "sweep.nodes=[1, 2, 4]", cores=16)
    assert {node.threads for case in cases for node in case.nodes} == {4}
    assert one(PACED, "nodes=8", cores=2).nodes[0].threads == 1


def test_addresses_stay_in_the_benchmarking_network() -> None:
    addresses = [IPv4Address(node.address) for node in one(PACED, "nodes=256").nodes]
    assert len(set(addresses)) == 256
    assert all(address in IPv4Network("198.18.0.0/15") for address in addresses)
    assert str(addresses[0]) == "198.18.0.10"


# ── computing ────────────────────────────────────────────────────────────────────────────────────────
def test_pace_of_a_profile() -> None:
    pace = one(PACED).nodes[0].pace
    assert pace is not None
    assert pace.step() == pytest.approx(32 / 171)
    assert pace.backward == pytest.approx(2 * pace.forward)
    assert pace.optimizer == pytest.approx(5 * 4 * 25_557_032 / 484e9, rel=0.01)


def test_pace_as_written_and_per_machine() -> None:
    case = one(
        PACED,
        "workload.compute={forward: 40ms, backward: 80ms}",
        "machines={n1: {batch: 8, compute: {throughput: 80 samples/s}, link: {up: {rate: 10mbit}}}}",
    )
    first, second = case.nodes
    assert first.pace is not None and second.pace is not None
    assert (first.pace.forward, first.pace.backward, first.pace.optimizer, first.batch) == (0.04, 0.08, 0.0, 32)
    assert second.pace.step() == pytest.approx(0.1)
    assert second.batch == 8
    assert [node.link.up.rate for node in case.nodes] == [10**9, 10**7]
    assert [node.link.down.rate for node in case.nodes] == [10**9, 10**9]


def test_strong_scaling_divides_the_batch() -> None:
    strong = "{kind: ddp, model: resnet50, scaling: strong, global_batch: 128, compute: {throughput: 100 samples/s}}"
    cases = plan(BARE, f"workload={strong}", "sweep.nodes=[2, 4]")
    assert [(case.size, case.nodes[0].batch, case.role) for case in cases] == [
        (1, 128, "baseline"),
        (2, 64, "case"),
        (4, 32, "case"),
    ]


def test_real_compute_is_never_dilated() -> None:
    case = one(REAL, "link.rate=10gbit", "nodes=4")
    assert (case.dilation, case.nodes[0].pace) == (1, None)
    assert isinstance(case.workload, Ddp) and case.workload.compute == "real"


def test_a_plan_is_the_same_every_time() -> None:
    loaded = scenario.load(SCENARIOS / "bandwidth.yaml")
    assert expand(loaded, 2) == expand(loaded, 2)
