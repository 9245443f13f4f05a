"""`kind: script` from its keys to its cases, and what each rank of one is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rig import advice, measure, outlook, outlook_cases
from rig.errors import ScenarioError, UsageError
from rig.fabric.client import Fabric
from rig.lab import Lab, launching
from rig.lab.siblings import siblings
from rig.model import Case
from rig.pipeline import mounts
from rig.plan import expand
from rig.results import Metric
from rig.scenario import loads
from rig.work import Script

SCRIPT = """\
name: own
link: {rate: 1gbit}
workload: {kind: script, command: [python, train.py, --epochs, 1, --lr, 0.1]}
sweep: {nodes: [1, 2]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return tmp_path


def expanded(folder: Path, *sets: str, cores: int = 8) -> tuple[Case, ...]:
    return expand(loads(SCRIPT, str(folder / "own.yaml"), sets), cores=cores)


def scripted(case: Case) -> Script:
    assert isinstance(case.workload, Script)
    return case.workload


def ordered(case: Case, place: int = 0) -> list[dict[str, Any]]:
    """The ranks that the launcher of a node is to start."""
    lab = Lab("none", cast(Fabric, None), {}, lambda *_: [], ("python",), scratch="/scratch")
    ranks: list[dict[str, Any]] = launching.order(lab, case, place)["ranks"]
    return ranks


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────
def test_as_resolved(folder: Path) -> None:
    one, two = expanded(folder)
    script = scripted(two)
    assert script.command == ("python", "train.py", "--epochs", "1", "--lr", "0.1"), "numbers are words too"
    assert (script.folder, script.files, script.torchrun) == (str(folder), "mounted", False)
    assert (script.steps, script.warmup, script.batch) == (0, 3, 0)
    assert one.computes_real and one.dilation == 1 and one.siblings == 1
    assert mounts(two) == (folder,), "which is all of the machine's own that is wanted"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("[trian.py]", "there is no trian.py in the scenario file's folder; did you mean train.py?"),
        ("[python, trian.py]", "did you mean train.py?"),
        ("[python, other/train.py]", "there is no other/train.py"),
        ("python train.py --lr 1", r"needs a list, .*; write it like \[python, train.py, --lr, 1\]"),
        ("'python \"train.py'", r"write it like \[python, train.py\]"),
        ("['python train.py']", r"is a whole line; write a word each, like \[python, train.py\]"),
        ("[python, null]", "word 2 is None, which is no text"),
        ("[python, train.py, yes: no]", "word 3 is {'yes': 'no'}, which is no text"),
        ('[python, "a\\0b"]', "holds a NUL character"),
        ("[]", "is empty"),
        ("[/nowhere/train.py]", "lies outside the scenario file's folder"),
    ],
)
def test_a_command_that_cannot_be_meant(folder: Path, command: str, text: str) -> None:
    with pytest.raises(ScenarioError, match=f"workload.command: .*{text}"):
        expanded(folder, f"workload.command={command}")


@pytest.mark.parametrize(
    "command",
    [
        "[python3, train.py]", "[python, ./train.py]", "[accelerate, launch, train.py]", "[python, -m, train]",
        "['/opt/my tools/python', train.py]", "[./run.sh]", "[python, train.py, --out, made.py]",
    ],
)  # fmt: skip
def test_a_command_that_may_be_meant(folder: Path, command: str) -> None:
    assert expanded(folder, f"workload.command={command}")


def test_steps_of_a_timeline_are_known_only_where_they_are_written(folder: Path) -> None:
    entry = "timeline=[{link: n1, step: 30, rate: 100mbit}]"
    assert expanded(folder, entry)[1].changes
    with pytest.raises(ScenarioError, match="never comes to matter: the workload has 20 steps"):
        expanded(folder, entry, "workload.steps=20")


def test_another_kind_has_one_rank_on_a_node(folder: Path) -> None:
    with pytest.raises(ScenarioError, match=r"machines.n1.ranks: belongs to kind: script"):
        expanded(folder, "workload={kind: allreduce, size: 1MiB}", "machines={n1: {ranks: 2}}")


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────
def test_ranks_of_all_nodes_and_of_one(folder: Path) -> None:
    one, two = expanded(folder, "workload.ranks=2", "machines={n1: {ranks: 3}}", "workload.batch=16", cores=10)
    assert [node.ranks for node in two.nodes] == [2, 3]
    assert [seat.name for seat in two.seats] == ["n0", "n0", "n1", "n1", "n1"]
    assert [node.batch for node in two.nodes] == [32, 48], "samples of a node, all its ranks together"
    assert {node.threads for node in two.nodes} == {2}, "ten cores among five ranks"
    assert [node.ranks for node in one.nodes] == [2], "the first node by itself"


def test_seats_are_numbered_through_all_nodes(folder: Path) -> None:
    case = expanded(folder, "workload.ranks=2", "machines={n0: {ranks: 1}}")[1]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    seats = [[rank["env"][name] for name in names] for place in range(2) for rank in ordered(case, place)]
    assert seats == [["0", "3", "0", "1", "0"], ["1", "3", "0", "2", "1"], ["2", "3", "1", "2", "1"]]
    (first,) = ordered(case)
    assert first["argv"] == list(scripted(case).command)
    assert first["job"] is None, "there is nothing to read"
    assert first["env"]["MASTER_ADDR"] == case.nodes[0].address
    assert (first["env"]["RIG_WARMUP"], first["env"]["RIG_STEPS"]) == ("3", "0")
    assert launching.processes(case) == 3


def test_a_sibling_is_a_world_of_its_own(folder: Path) -> None:
    one = expanded(folder, "workload.ranks=2")[0]
    lab = Lab("none", cast(Fabric, None), {}, lambda *_: [], (), scratch="/scratch")
    (order,) = launching.beside(lab, one).values()
    assert [rank["env"]["WORLD_SIZE"] for rank in order["ranks"]] == ["2", "2"]
    assert {rank["env"]["MASTER_ADDR"] for rank in order["ranks"]} == {siblings(one)[0].address}
    assert order["script"] == {
        "folder": str(folder), "copied": False, "scratch": "/scratch", "first": 0, "count": 2,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["[python, train.py, -x]", "[train.py, -x]"])
def test_torchrun_starts_the_ranks_of_a_node(folder: Path, command: str) -> None:
    case = expanded(folder, "workload.ranks=2", "workload.torchrun=true", f"workload.command={command}")[1]
    (agent,) = ordered(case, 1)
    assert agent["argv"] == [
        "python", "-m", "torch.distributed.run", "--nnodes=2", "--node-rank=1", "--nproc-per-node=2",
        f"--master-addr={case.nodes[0].address}", f"--master-port={launching.PORT}", "train.py", "-x",
    ]  # fmt: skip
    assert agent["rank"] == 2
    assert "RANK" not in agent["env"], "it is no rank, and tells its own"
    assert launching.processes(case) == 2


@pytest.mark.parametrize(("cores", "own"), [(6, [[0, 1], [2, 3, 4, 5]]), (5, [None, None])])
def test_cpus_are_for_all_ranks_of_a_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int, own: Sequence[list[int] | None]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    case = expanded(folder, "threads=2", "workload.ranks=2", "machines={n0: {ranks: 1}}")[1]
    assert [launching.cpus(case, place) for place in range(2)] == own


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("sets", "value", "unit"), [((), 20.0, "batches/s"), (("workload.batch=16",), 320.0, "samples/s")]
)
def test_throughput_counts_batches_where_nobody_tells_their_samples(
    folder: Path, sets: Sequence[str], value: float, unit: str
) -> None:
    case = expanded(folder, *sets)[1]
    steps = [
        {
            "repeat": 0, "step": number, "node": node.name, "warmup": number < 3, "buckets": [],
            "payload": 0, "wire": 0, "run_delay": 0.0, "late": 0.0,
            "start": number * 0.1, "forward_start": number * 0.1,
            "forward_end": number * 0.1 + 0.03, "backward_end": number * 0.1 + 0.09, "end": (number + 1) * 0.1,
        }
        for node in case.nodes
        for number in range(6)
    ]  # fmt: skip
    found: Metric = measure.measure(case, steps)["throughput"]
    assert found.value == pytest.approx(value)
    assert found.unit == unit


def test_a_plan_says_when_it_will_know(folder: Path) -> None:
    cases = expanded(folder)
    told = outlook_cases.text("own", [outlook.expected(case, outlook.Basis()) for case in cases]).plain
    assert "unknown until a one-node run; then give --from RUN" in told


def test_advice_says_why_it_has_none(folder: Path) -> None:
    with pytest.raises(UsageError, match="the workload is script, of which no table of layers tells; write one of"):
        advice.chosen(expanded(folder), "*")
