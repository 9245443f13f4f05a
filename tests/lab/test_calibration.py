"""`rig calibrate` measures this machine through a lab of its own, and what it finds is known to later runs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rig import calibration, pipeline
from rig.formulas.host import alpha
from rig.lab import calibration as measuring
from rig.lab import kept
from rig.model import Host
from rig.results import CaseResult
from rig.scenario import load
from tests.lab.conftest import new_run, processes_of
from tests.lab.runs import rig

SMALL = "name: small\nlink: {rate: 1gbit}\nnodes: 2\nworkload: {kind: allreduce, size: 64KiB, steps: 2, warmup: 1}\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this machine knows of itself shall not matter, nor be overwritten."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_a_machine_is_measured_and_known_from_then_on(cache: Path) -> None:
    told: list[str] = []
    run = new_run()
    host = measuring.measure(run, told.append)
    assert set(host.alpha) == {2, 4, 8}
    assert all(20e-6 < seconds < 1.0 for seconds in host.alpha.values()), host
    assert host.alpha[2] < host.alpha[8], "eight ranks tell one another more than two do"
    assert 1e-12 < host.reduce < 1e-7, host  # a byte is neither free nor a disk access
    assert 0 <= host.step < 0.05, host
    assert host.cores == len(os.sched_getaffinity(0))
    assert [line for line in told if "8 ranks" in line]
    assert processes_of(f"RIG_RUN={run}") == []
    path = measuring.keep(host)
    assert path.is_relative_to(cache)
    found = measuring.known_host(told.append)
    assert found is not None
    assert (found.alpha, found.reduce, found.step) == (host.alpha, host.reduce, host.step)
    assert alpha(found, 4) == host.alpha[4]


@pytest.mark.slow
def test_the_verb_prints_json_and_keeps_what_a_quiet_machine_gave(cache: Path) -> None:
    answer = rig("calibrate", "--json", "--no-lock", env={"XDG_CACHE_HOME": str(cache)}, within=150)
    assert answer.returncode in (0, calibration.UNKEPT), answer.stderr
    told = json.loads(answer.stdout)
    assert set(told["host"]["alpha"]) == {"2", "4", "8"}
    assert told["ceiling"]["bit_s"] > 1e8
    if answer.returncode == 0:
        assert told["kept"] == str(kept.file(measuring.NAME))
        assert {file.name for file in (cache / "rig").iterdir()} == {"calibration.json", "ceiling.json"}
    else:
        assert told["kept"] is None and "of the CPUs" in told["why"]
        assert not (cache / "rig").exists()


# ── what a run makes of it ───────────────────────────────────────────────────────────────────────────
class Quiet:
    """Looks on, and remembers only what it is warned of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def planned(self, cases: int, lab: str) -> None: ...
    def began(self, case: object) -> None: ...
    def stage(self, text: str) -> None: ...
    def ended(self, result: CaseResult) -> None: ...

    def warn(self, text: str) -> None:
        self.warnings.append(text)


HOST = Host({2: 0.4e-3, 4: 5e-3, 8: 20e-3}, 0.2e-9, 0.3e-3, 2, "", "", "")


def prepared(folder: Path) -> tuple[pipeline.Work, Quiet]:
    file, watch = folder / "small.yaml", Quiet()
    file.write_text(SMALL, encoding="utf-8")
    return pipeline.prepare(load(file, ()), pipeline.Request("netns", folder / "out"), watch), watch


def test_a_run_without_a_calibration_is_nominal_and_says_nothing_of_it(tmp_path: Path) -> None:
    work, watch = prepared(tmp_path)
    assert (work.host, work.book.document["environment"]["host"]) == (None, None)
    assert watch.warnings == work.book.document["warnings"] == []


def test_a_calibration_stands_whole_in_the_record(tmp_path: Path) -> None:
    measuring.keep(HOST)
    work, watch = prepared(tmp_path)
    told = work.book.document["environment"]["host"]
    assert (told["alpha"], told["reduce"], told["step"]) == ({"2": 0.4e-3, "4": 5e-3, "8": 20e-3}, 0.2e-9, 0.3e-3)
    assert told["cpu"] == kept.this_machine().cpu and told["date"].endswith("Z")
    assert work.host is not None
    assert watch.warnings == []


def test_one_that_does_not_fit_is_a_warning_in_the_record(tmp_path: Path) -> None:
    path = measuring.keep(HOST)
    path.write_text(path.read_text(encoding="utf-8").replace('"kernel": "', '"kernel": "not '), encoding="utf-8")
    work, watch = prepared(tmp_path)
    assert work.host is None
    (line,) = watch.warnings
    assert line.startswith(f"calibration: use {path}: it is of another machine (kernel not ")
    assert json.loads((work.book.folder / "record.json").read_text(encoding="utf-8"))["warnings"] == [line]


def test_curves_stand_in_the_record_and_a_defect_of_theirs_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, watch = prepared(tmp_path)
    work = replace(work, cases=())
    pipeline.run(work, watch)
    assert work.book.document["curves"] == []

    def broken(*_: object) -> list[object]:
        raise KeyError("rate")

    monkeypatch.setattr("rig.prospects.curves", broken)
    pipeline.run(work, watch)
    document = json.loads((work.book.folder / "record.json").read_text(encoding="utf-8"))
    (line,) = watch.warnings
    assert document["warnings"] == [line]
    assert line == "curves: predict speed-up against bandwidth: KeyError: 'rate'; left out"
    assert document["summary"]["exit"] == 0
