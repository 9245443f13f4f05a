"""The one-node case of real compute runs beside silent siblings, so that it shares the host as the others' nodes do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rig.errors import WorkloadError
from rig.lab import Order, open_lab
from rig.lab.launching import cpus
from rig.lab.ranks import Outcome, run_ranks
from rig.lab.siblings import crowded, siblings
from rig.model import Case
from rig.plan import expand
from rig.scenario import load
from rig.units import Duration
from tests.cases import case
from tests.lab.conftest import new_run, processes_of
from tests.lab.runs import inhabited, now, start_of, until

REAL = """\
name: small
link: {rate: 1gbit}
threads: 1
workload: {kind: ddp, model: cnn, batch: 16, compute: real, steps: 12, warmup: 2}
timeout: 120s
probe: {goodput: 60%, slack: 200ms}  # what runs is looked at here, not how well
sweep: {nodes: [1, 2]}
expect: {traffic: 0.05%}
"""


def expanded(folder: Path, *sets: str, cores: int = 2) -> tuple[Case, ...]:
    file = folder / "small.yaml"
    file.write_text(REAL, encoding="utf-8")
    return expand(load(file, sets), cores=cores)


# ── what is planned ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("sets", "beside"),
    [
        (["sweep.nodes=[1, 2, 4]"], {"nodes=1": 3, "nodes=2": 0, "nodes=4": 0}),
        (["sweep.nodes=[3]"], {"nodes=1": 2, "nodes=3": 0}),
        (["sweep.nodes=[1]"], {"nodes=1": 0}),
        (["workload.compute={forward: 1ms, backward: 2ms}"], {"nodes=1": 0, "nodes=2": 0}),
    ],
)
def test_as_many_beside_it_as_its_largest_case_has(tmp_path: Path, sets: Sequence[str], beside: dict[str, int]) -> None:
    assert {one.id: one.siblings for one in expanded(tmp_path, *sets)} == beside


def test_siblings_are_nodes_like_the_first() -> None:
    one = case(1, siblings=2)
    assert siblings(case(1)) == ()
    assert crowded(case(1)) == case(1)
    assert crowded(one).nodes == case(3).nodes
    assert [node.name for node in one.nodes] == ["n0"], "the case itself is measured, probed and judged as before"


@pytest.mark.parametrize("cores", [{0, 1, 2}, {0, 1}])
def test_the_case_has_the_cpus_it_would_have_among_many(monkeypatch: pytest.MonkeyPatch, cores: set[int]) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    crowd = [cpus(case(1, siblings=2), place) for place in range(3)]
    assert crowd == [cpus(case(3), place) for place in range(3)]
    assert crowd[0] == ([0] if len(cores) == 3 else None)


# ── what runs ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_the_baseline_runs_beside_a_sibling_and_is_measured_alone(tmp_path: Path) -> None:
    run = start_of(REAL, tmp_path)
    seen: set[tuple[bool, bool]] = set()  # n0's rank and the sibling's, at every look while the first case ran
    try:
        late = time.monotonic() + 120
        while run.process.poll() is None and not run.cases():
            ranks = [run.processes("rig.workloads.ddp", f"RIG_NODE={node}", "WORLD_SIZE=1") for node in ("n0", "n1")]
            seen.add((bool(ranks[0]), bool(ranks[1])))
            run.note_spaces()
            assert time.monotonic() < late, "the first case did not end"
            time.sleep(0.05)
        code, _, told = run.end(120)
        ended = now()
    finally:
        run.kill()
    assert (True, True) in seen
    assert code in (0, 4), told  # 4: this machine was too busy
    one, two = run.record()["cases"]
    assert (one["host"]["siblings"], two["host"]["siblings"]) == (1, 0)
    assert {step["node"] for step in one["raw"]["steps"]} == {"n0"}
    assert [step["step"] for step in one["raw"]["steps"]] == list(range(14))
    assert {link["name"] for link in one["links"]} == {"n0"}
    assert set(one["host"]["nodes"]) == {"n0"}
    assert {step["node"] for step in two["raw"]["steps"]} == {"n0", "n1"}
    until(lambda: not run.descendants(), 5)
    until(lambda: not run.spaces & inhabited(ended), 5)


def sibling_case(folder: Path) -> Case:
    return next(one for one in expanded(folder) if one.siblings)


def test_the_sibling_computes_before_the_first_step_and_ends_with_the_last(tmp_path: Path) -> None:
    run, one = new_run(), sibling_case(tmp_path)
    with open_lab("netns", Order(run, one, print)) as lab:
        assert set(lab.pids) == {"n0", "n1"}
        outcome = Outcome(0, time.monotonic())
        run_ranks(lab, one, run, outcome)
        assert not [pid for pid in processes_of(f"RIG_RUN={run}") if b"rig.workloads" in command(pid)]
    assert [note["node"] for note in outcome.notes if note["event"] == "done"] == ["n0"]
    assert {one["node"] for one in outcome.exits} == {"n0"}
    assert processes_of(f"RIG_RUN={run}") == []


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────
def run_once(one: Case) -> None:
    run = new_run()
    with open_lab("netns", Order(run, one, print)) as lab:
        run_ranks(lab, one, run, Outcome(0, time.monotonic()))


def test_a_sibling_that_cannot_start_is_an_error_that_names_it(tmp_path: Path) -> None:
    one = sibling_case(tmp_path)
    broken = replace(one, env={"PYTHONHOME": "/nowhere"})
    with pytest.raises(WorkloadError, match=r"node n1: run ddp beside the one-node case nodes=1: exit code 1; its "):
        run_once(broken)


def test_a_sibling_that_does_not_get_going_is_an_error(tmp_path: Path) -> None:
    hurried = replace(sibling_case(tmp_path), timeout=Duration.parse("200ms"))
    with pytest.raises(WorkloadError, match=r"node n1: run ddp beside .* not one step within 200ms; give a longer"):
        run_once(hurried)
