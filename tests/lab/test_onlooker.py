"""Scripts that know nothing of the rig, in a lab: what several nodes send is what one of them alone would have sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rig import measure
from rig.formulas import traffic
from tests.lab.runs import ROOT, rig

SHORT = {
    "ddp": '["python","ddp_tutorial.py","--epochs","1","--samples","512"]',
    "accelerate": '["python","accelerate_tutorial.py","--samples","384"]',
}


def run(folder: Path, name: str, *settings: str) -> dict[str, dict[str, Any]]:
    """Cases of a shipped scenario on one and two nodes, by id, its script doing as little as will do."""
    given = [f"workload.command={SHORT[name]}", "probe.goodput=10%", *settings]  # other tests may run at the same time
    answer = rig(
        "run", ROOT / f"scenarios/scripts/{name}.yaml", "--lab", "netns", "--only", "nodes=2*", "--json", "--no-lock",
        *(word for setting in given for word in ("--set", setting)), cwd=folder,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return {case["id"]: case for case in json.loads(answer.stdout)["cases"]}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings", "ranks"), [
    ("accelerate", (), 1), ("ddp", ("workload.ranks=2", "workload.torchrun=true"), 2),
])  # fmt: skip
def test_bytes_are_those_that_one_node_would_have_sent(
    name: str, settings: tuple[str, ...], ranks: int, tmp_path: Path
) -> None:
    cases = run(tmp_path, name, *settings)
    alone, both = cases["nodes=1"], cases["nodes=2"]
    assert (alone["status"], both["status"]) == ("pass", "pass")
    assert alone["measured"]["payload_tx"]["per_node"] == [0]
    phases = measure.phases(alone["raw"]["steps"], alone["raw"]["notes"])
    due = traffic.node_step_payload(phases.buckets, phases.broadcasts, [ranks, ranks])
    assert both["predicted"]["payload_tx"]["per_node"] == list(due)
    assert both["measured"]["payload_tx"]["per_node"] == pytest.approx(due, rel=5e-4)
    assert {note["event"] for note in both["raw"]["notes"]} >= {"hello", "group", "layout", "done"}
    assert set(both["predicted"]) >= {"step_time", "speedup", "comm_time", "exposed_comm", "throughput"}
    assert 0 < both["measured"]["comm_time"]["value"] < both["measured"]["step_time"]["value"]
