"""docs/gpu.md and the script that writes its table: from a record, whatever became of its cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import gpu_page

CARD = {"name": "Card 0", "driver": "580.65.06", "memory": 24 * 2**30, "used": 6 * 2**30, "busy": 0.61}
NCCL = {"version": "2.28.9", "interfaces": ["eth0"], "choices": ["AllReduce Ring/Simple"], "transports": ["NET/Socket"]}


def case(name: str, **changes: Any) -> dict[str, Any]:
    measured = {"step_time": {"value": 0.5234}, "payload_tx": {"value": 497_759_232.0}}
    fields = {"id": name, "status": "pass", "reason": "", "measured": measured, "predicted": measured, "host": {}}
    return {**fields, **changes}


def document(backend: str, *cases: dict[str, Any]) -> dict[str, Any]:
    resolved = [{"id": one["id"], "workload": {"devices": {"backend": backend}}} for one in cases]
    environment = {"cpu": "CPU", "cores": 16, "kernel": "6.18.44-x", "versions": {"torch": "2.11.0+cu130"}}
    scenario = {"resolved": {"cases": resolved}}
    return {"environment": environment, "scenario": scenario, "summary": {"seconds": 99.6}, "cases": list(cases)}


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    host = {"gpu": {"n0": [CARD], "n1": [{**CARD, "busy": None}]}, "nccl": NCCL}
    broken = case("nodes=4", status="error", reason="rank 3 died", measured={}, predicted={})
    documents = [document("gloo", case("nodes=1"), broken), document("nccl", case("nodes=2", host=host))]
    files = [tmp_path / f"{number}.json" for number in range(len(documents))]
    for file, one in zip(files, documents, strict=True):
        file.write_text(json.dumps(one), encoding="utf-8")
    return files


def test_the_table_of_two_records(records: list[Path]) -> None:
    answer = subprocess.run(
        [sys.executable, gpu_page.__file__, "--print", *records], check=True, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.splitlines() == [
        "Card 0, driver 580.65.06; CPU, 16 cores, Linux 6.18.44, PyTorch 2.11.0+cu130; 199 s in all.",
        "",
        "| case | over | verdict | step (ms) | predicted | payload (MB) | predicted | GPU busy | GPU memory |",
        "|---|---|---|---|---|---|---|---|---|",
        "| nodes=1 | gloo | pass | 523.4 | 523.4 | 497.759 | 497.759 | – | – |",
        "| nodes=4 | gloo | error | – | – | – | – | – | – |",
        "| nodes=2 | nccl | pass | 523.4 | 523.4 | 497.759 | 497.759 | 61% | 6.0 GiB |",
        "",
        "* nodes=2: NCCL 2.28.9 says AllReduce Ring/Simple, by NET/Socket on eth0.",
        "",
        "* nodes=4 over gloo: rank 3 died",
    ]


def test_the_page_has_a_place_for_it() -> None:
    page = gpu_page.PAGE.read_text(encoding="utf-8")
    once = gpu_page.written(page, "| a |\n")
    assert "\n\n| a |\n\n" in once
    assert gpu_page.written(once, "| b |\n") == once.replace("| a |", "| b |")
