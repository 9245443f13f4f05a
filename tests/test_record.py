"""A record is whole or not there: never half, never lying about what cannot be written as JSON."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rig import record
from rig.errors import RecordError
from rig.results import CaseResult, Metric
from rig.units import Duration, Rate

SAVE_FOR_EVER = """
import sys
from pathlib import Path
from rig import record
book = record.start(Path(sys.argv[1]), "0", {"text": ""}, {})
number = 0
while True:
    number += 1
    book.document["cases"] = [{"id": str(number), "status": "pass", "fill": "x" * 100_000}]
    book.save()
    if number == 1:
        print("saved", flush=True)
"""


def new(folder: Path) -> record.Record:
    scenario = {"path": "x.yaml", "name": "x", "description": "", "text": "name: x\n", "resolved": {}}
    return record.start(folder, "0123abcd", scenario, {"cores": 2})


def result(case: str = "nodes=1", **changes: Any) -> CaseResult:
    fields: dict[str, Any] = {
        "id": case, "params": {"nodes": 1}, "role": "case", "baseline": case, "lab": "netns", "dilation": 1,
        "status": "pass",
    }  # fmt: skip
    return CaseResult(**(fields | changes))


# ── atomic ───────────────────────────────────────────────────────────────────────────────────────────
def test_a_kill_at_any_moment_leaves_a_whole_record(tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            assert writer.stdout.readline() == b"saved\n"
            time.sleep(draw.uniform(0, 0.05))
            writer.kill()
        loaded = record.load(tmp_path).document
        assert len(loaded["cases"][0]["fill"]) == 100_000


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    book = new(tmp_path)
    book.add(result("one"))
    before = (tmp_path / record.NAME).read_text(encoding="utf-8")
    limits = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    code = (
        f"{limits}\nimport signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path; from rig import record\n"
        "record.write_atomically(Path(sys.argv[1]), 'x' * 5000)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / record.NAME)], check=False, capture_output=True, text=True
    )
    assert "RecordError" in answer.stderr
    assert "save it: File too large; what was saved before is safe there; make room or use --out" in answer.stderr
    assert (tmp_path / record.NAME).read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == [record.NAME]


def test_others_may_read_it(tmp_path: Path) -> None:
    new(tmp_path).save()
    assert os.stat(tmp_path / record.NAME).st_mode & 0o777 == 0o644


# ── what it holds ────────────────────────────────────────────────────────────────────────────────────
def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    book = new(tmp_path)
    book.add(result("one", measured={"step_time": Metric(0.1, "s", samples=(0.1, 0.1))}))
    book.add(result("two", status="error", reason="grüße 🛰"))
    assert record.load(tmp_path).document == book.document
    assert record.load(tmp_path / record.NAME).document == book.document
    summary = book.document["summary"]
    assert {name: summary[name] for name in record.STATUSES} == {
        "pass": 1, "fail": 0, "invalid": 0, "error": 1, "skipped": 0,
    }  # fmt: skip


def test_a_case_that_is_run_again_replaces_the_first(tmp_path: Path) -> None:
    book = new(tmp_path)
    book.add(result("one", status="error"))
    book.add(result("one"))
    assert [case["status"] for case in book.document["cases"]] == ["pass"]
    assert book.document["summary"]["error"] == 0


def test_no_number_is_null(tmp_path: Path) -> None:
    """JSON has neither NaN nor infinity; a reader in another language would refuse the whole record."""
    book = new(tmp_path)
    book.add(result(measured={"a": Metric(math.nan, "s", -math.inf, math.inf)}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (tmp_path / record.NAME).read_text(encoding="utf-8")
    (case,) = json.loads(text, parse_constant=refuse)["cases"]
    assert [case["measured"]["a"][name] for name in ("value", "low", "high")] == [None, None, None]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Rate(10**9), 1000000000),
        (Duration(5), 5),
        ((1, (2.5, None)), [1, [2.5, None]]),
        ({1: True}, {"1": True}),
        (math.inf, None),
        (Path("/x"), "/x"),
    ],
)
def test_plain_data(value: object, expected: object) -> None:
    assert record.plain(value) == expected
    assert type(record.plain(value)) is type(expected)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is damaged or no record"),
        ('{"schema": 1, "cases": [', "it is damaged or no record"),
        ("[]", "it is damaged or no record"),
        ("null", "it is damaged or no record"),
        ("{}", "no 'schema'; it is damaged or no record"),
        ('{"schema": 99, "cases": [], "summary": {}, "scenario": {"text": ""}}', "its schema is 99, this rig reads 1"),
        ('{"schema": 1, "summary": {}, "scenario": {"text": ""}}', "no 'cases'"),
        ('{"schema": 1, "cases": [], "summary": {}, "scenario": 3}', "it is damaged or no record"),
    ],
)
def test_no_record_is_said_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / record.NAME).write_text(text, encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        record.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / record.NAME}: read a record: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / record.NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="read a record"):
        record.load(tmp_path)


def test_a_missing_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is none; give the folder of a run"):
        record.load(tmp_path)
    with pytest.raises(RecordError, match="there is none; give the folder of a run"):
        record.load(tmp_path / "nowhere")


def test_folders_of_two_runs_differ(tmp_path: Path) -> None:
    ids = {record.new_run_id() for _ in range(100)}
    assert len(ids) == 100
    one, other = (record.new_folder(tmp_path, "x", run) for run in sorted(ids)[:2])
    assert one != other
    assert (one / "logs").is_dir()


def test_the_environment_is_plain_data() -> None:
    found = record.environment()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1
    assert found["versions"]["pydantic"]
