"""What bounds a step: one made-up timeline for every answer, each just across the limit that decides it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig.attribution import LIMITS, Bottleneck, attribute, dropped
from rig.model import Case, Change, Impairment, Link, Loss, Tcp
from rig.results import Metric, Predicted
from rig.units import Duration, Fraction, Size
from rig.verdict import Evidence
from rig.work import Allreduce, Data, Ddp, LayerTable, Pace
from tests.cases import case

GOODPUT = 1e9 * 1448 / 1538  # bit/s
STEP, COMM, EXPOSED = 1.0, 0.8, 0.5  # of a case that its links bound (s)
BYTES = COMM * 0.99 * GOODPUT / 8  # they pass in 99 % of the communication
DDP = Ddp(
    steps=2, warmup=1, model="cnn", compute="paced", table=LayerTable("cnn", (), (), {}), bucket_cap=Size(25 * 2**20),
    seed=0, lr=0.1, data=Data(),
)  # fmt: skip


def paced(nodes: int = 4, **changes: Any) -> Case:
    plain = case(nodes, workload=DDP, **changes)
    pace = Pace(0.1, 0.3, 0.1)
    return replace(plain, nodes=tuple(replace(node, batch=32, pace=pace) for node in plain.nodes))


def delayed(nodes: int = 2, one_way: str = "5ms", **changes: Any) -> Case:
    plain = paced(nodes, **changes)
    return replaced(plain, delay=Duration.parse(one_way))


def replaced(plain: Case, **changes: Any) -> Case:
    """The same case with other links."""

    def other(way: Impairment) -> Impairment:
        return replace(way, **changes)

    links = [replace(node.link, up=other(node.link.up), down=other(node.link.down)) for node in plain.nodes]
    return replace(plain, nodes=tuple(replace(node, link=link) for node, link in zip(plain.nodes, links, strict=True)))


def evidence(host: dict[str, Any] | None = None, **measured: float) -> Evidence:
    """Of the case above; seconds and bytes."""
    figures = {"step_time": STEP, "comm_time": COMM, "exposed_comm": EXPOSED, "payload_tx": BYTES, "lateness": 0.0}
    buckets = {"buckets": [int(BYTES)]}
    return Evidence(
        (),
        {name: Metric(value, "B" if name == "payload_tx" else "s") for name, value in (figures | measured).items()},
        {"payload_tx": Predicted(BYTES, "B", "ring", buckets), "step_time": Predicted(STEP, "s", "overlap", {})},
        {},
        {"run_delay": 0.0, "clock_uncertainty": 1e-4} | (host or {}),
    )


def steps(lags: Sequence[float], waited: float = EXPOSED, moments: int = 3, k: int = 1) -> list[dict[str, Any]]:
    """A warm-up step and some that count; each rank has its last gradient so many seconds late, and all buckets end
    together.
    """
    return [
        {
            "repeat": 0, "step": moment, "rank": rank, "node": f"n{rank}", "warmup": moment == 0,
            "backward_end": (moment * 2 + 0.4 + lag) * k,
            "buckets": [{"start": (moment * 2 + 0.3) * k, "end": (moment * 2 + 0.4 + waited) * k, "bytes": 1}],
        }
        for moment in range(moments)
        for rank, lag in enumerate(lags)
    ]  # fmt: skip


def bound(of: Case, seen: Evidence | None = None, rows: Sequence[dict[str, Any]] = ()) -> Bottleneck:
    return attribute(of, seen or evidence(), rows)


def test_the_link() -> None:
    found = bound(paced(), rows=steps([0.0, 0.001, 0.0, 0.002]))
    assert (found.kind, found.where) == ("link", "")
    assert found.text == (
        "50.0% of the step is exposed communication; bytes need 792 ms at 941.5 Mb/s, 99% of 800 ms of communication"
    )
    assert found.figures["filled"] == pytest.approx(0.99)


def test_the_slowest_of_unequal_links_is_named() -> None:
    plain = paced()
    slow = case(4, rate="100mbit").nodes[2].link
    nodes = tuple(replace(node, link=slow) if node.name == "n2" else node for node in plain.nodes)
    found = bound(replace(plain, nodes=nodes), evidence(payload_tx=BYTES / 10))
    assert (found.kind, found.where) == ("link", "n2 up")


def test_computing_that_hides_communication() -> None:
    share = LIMITS["exposed"] * STEP
    assert bound(paced(), evidence(exposed_comm=share * 0.99)).kind == "compute"
    assert bound(paced(), evidence(exposed_comm=share * 1.01)).kind == "link"
    assert "but for 4.9% of the step (under 5% counts)" in bound(paced(), evidence(exposed_comm=0.049)).text


def test_one_node_computes() -> None:
    assert bound(paced(1), evidence(comm_time=0.0, exposed_comm=0.0, payload_tx=0.0)).kind == "compute"


def test_a_bare_all_reduce_does_not_compute() -> None:
    assert bound(case(2), evidence(exposed_comm=0.01)).kind == "link"


@pytest.mark.parametrize(
    ("of", "seen", "said"),
    [
        (paced(), evidence(lateness=0.011), "paced waits ended 1.1% of a step late"),
        (case(2, workload=replace(DDP, compute="real")), evidence({"run_delay": 0.3}), "ranks waited 30% of a step"),
        (
            delayed(),
            evidence({"delay_line": {"n1 up": {"late": 0.01, "overflowed": 0}}}),
            "the delay line gave packets 10.00 ms late",
        ),
    ],
)
def test_a_host_that_cannot_keep_up(of: Case, seen: Evidence, said: str) -> None:
    found = bound(of, seen, steps([0.0, 0.3]))
    assert found.kind == "host" and said in found.text


LATE = 0.3  # s: of a step of 1 s, in which the others wait for 0.5


@pytest.mark.parametrize("k", [1, 8])
def test_a_straggler(k: int) -> None:
    found = bound(paced(dilation=k), rows=steps([0.0, 0.001, LATE, 0.0], k=k))
    assert (found.kind, found.where) == ("straggler", "rank 2 on n2")
    assert found.text.startswith("rank 2 on n2 has its last gradient 300 ms after the others (median): 30.0% of the ")
    assert found.figures["lag"] == pytest.approx(LATE) and found.figures["waited"] == pytest.approx(EXPOSED)


def test_two_stragglers_of_four_do_not_hide_each_other() -> None:
    assert bound(paced(), rows=steps([0.0, LATE, 0.0, LATE + 0.01])).where == "rank 3 on n3"


def test_a_straggler_counts_though_the_mean_rank_waits_little() -> None:
    """Of two, one waits for 8 % and the other not at all: 4 % exposed on average."""
    rows = steps([0.0, 0.08], waited=0.081)
    assert bound(paced(2), evidence(exposed_comm=0.04), rows).kind == "straggler"


@pytest.mark.parametrize(
    ("rows", "host"),
    [
        (steps([0.0, 0.0, 0.049, 0.0], waited=0.05), {}),  # less than 5 % of the step
        (steps([0.0, 0.0, 0.24, 0.0]), {}),  # less than half of what the others wait for
        (steps([0.0, 0.0, LATE, 0.0]), {"clock_uncertainty": LATE / 2}),  # less than two clocks may differ
        ([*steps([0.0, LATE, 0.0, 0.0], moments=2), *steps([0.0, 0.0, 0.0, LATE], moments=3)[8:]], {}),  # in turns
        (steps([0.0, 0.0, LATE, 0.0], moments=1), {}),  # only while warming up
        ([], {}),
    ],
)
def test_no_straggler(rows: list[dict[str, Any]], host: dict[str, Any]) -> None:
    assert bound(paced(), evidence(host), rows).kind == "link"


def drops(share: float) -> dict[str, Any]:
    return {"dropped": {"n0 up": {"packets": 1000, "drops": 0}, "n1 down": counted(share)}}


def counted(share: float) -> dict[str, int]:
    return {"packets": round(100_000 * (1 - share)), "drops": round(100_000 * share)}


def test_a_queue_that_drops() -> None:
    found = bound(paced(), evidence(drops(0.012), payload_tx=BYTES * 0.7))
    assert (found.kind, found.where) == ("queue", "n1 down")
    assert found.text.startswith("link n1 down: its queue dropped 1.20% of the packets (over 0.1% counts); bytes need")
    assert bound(paced(), evidence(drops(0.0009), payload_tx=BYTES * 0.7)).kind == "link"
    assert bound(paced(), evidence(drops(0.012))).kind == "link"  # TCP kept the link full all the same


def test_loss_that_was_asked_is_not_the_queue() -> None:
    lossy = replaced(paced(), loss=Loss(Fraction.parse("2%")))
    found = bound(lossy, evidence(drops(0.012), payload_tx=BYTES * 0.2))
    assert found.kind == "link"
    assert found.text.endswith("; the links were asked for loss, which slows TCP down")
    assert bound(lossy, evidence(drops(0.03), payload_tx=BYTES * 0.7)).kind == "queue"


def test_a_window_too_small() -> None:
    """Half of 64 KiB in every 20 ms: 13 Mb/s."""
    small = delayed(tcp=Tcp(buffer=Size(64 * 1024)))
    found = bound(small, evidence(payload_tx=BYTES * 0.01))
    assert found.kind == "window"
    assert "a socket's buffer of 64KiB, half of it overhead, carries 13.1 Mb/s over a round trip of 20 ms" in found.text
    assert found.figures["window_rate"] == pytest.approx(32 * 1024 * 8 / 0.02)
    enough = replace(small, tcp=Tcp(buffer=Size(8 * 2**20)))  # two collectives, two segments of 1 MiB each
    assert bound(enough, evidence(payload_tx=BYTES * 0.3)).kind == "latency"
    assert bound(replaced(small, delay=Duration(0)), evidence(payload_tx=BYTES * 0.7)).kind == "link"


def test_latency() -> None:
    share = LIMITS["filled"]
    found = bound(delayed(), evidence(payload_tx=BYTES / 0.99 * share * 0.99))
    assert found.kind == "latency"
    assert found.text.endswith("communication (under 50% counts): the rest waits for round trips of 20 ms")
    assert bound(delayed(), evidence(payload_tx=BYTES / 0.99 * share * 1.01)).kind == "link"


def test_small_messages_wait_for_the_hosts() -> None:
    tiny = case(4, workload=Allreduce(2, 1, Size(64)))
    found = bound(tiny, evidence(payload_tx=1000.0, step_time=0.005, comm_time=0.005, exposed_comm=0.005))
    assert found.kind == "latency" and found.text.endswith("the rest is the hosts' own time per message")


def test_links_that_changed_leave_the_bytes_time_unknown() -> None:
    plain = delayed()
    link: Link = plain.nodes[0].link
    changed = replace(plain, changes=(Change("n0", Duration(0), None, link),))
    found = bound(changed, evidence(payload_tx=BYTES * 0.1))
    assert found.kind == "link" and found.text.endswith("; its links changed while it ran")


def test_drops_between_two_looks() -> None:
    before = {"n0": {"up": {"packets": 100, "drops": 1, "overflowed": 0}, "down": {"packets": 50, "drops": 0}}}
    after = {"n0": {"up": {"packets": 300, "drops": 4, "overflowed": 2}, "down": {"packets": 60, "drops": 0}}}
    assert dropped(before, after) == {"n0 up": {"packets": 200, "drops": 5}, "n0 down": {"packets": 10, "drops": 0}}


REAL = json.loads((Path(__file__).parent / "data" / "bounded.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", REAL, ids=[run["kind"] for run in REAL])
def test_real_runs(run: dict[str, Any]) -> None:
    """What two cases of `scenarios/bandwidth.yaml` and one with a slow third machine recorded."""
    predicted = Predicted(run["measured"]["payload_tx"], "B", "ring", {"buckets": run["buckets"]})
    measured = {name: Metric(value, "s") for name, value in run["measured"].items()}
    seen = Evidence((), measured, {"payload_tx": predicted}, {}, run["host"])
    found = bound(paced(run["nodes"], rate=run["rate"], dilation=run["dilation"]), seen, run["steps"])
    assert (found.kind, found.where) == (run["kind"], run["where"])
