"""What a calibration of this machine tells a prediction, and when it is not to be believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rig import calibration as verb
from rig.formulas.host import alpha, host_time
from rig.lab import calibration, kept
from rig.lab.ceiling import Ceiling
from rig.model import Host

HERE = kept.this_machine()
HOST = Host({2: 0.4e-3, 4: 5e-3, 8: 20e-3}, 0.2e-9, 0.3e-3, HERE.cores, HERE.cpu, HERE.kernel, "2026-01-01T00:00:00Z")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this machine knows of itself shall not matter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


# ── the formulas ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("nodes", "seconds"), [(1, 0.0), (2, 0.4e-3), (3, 2.7e-3), (4, 5e-3), (6, 12.5e-3), (8, 20e-3), (16, 50e-3)]
)
def test_alpha_lies_on_lines_between_the_measured_points(nodes: int, seconds: float) -> None:
    assert alpha(HOST, nodes) == pytest.approx(seconds)


def test_alpha_of_a_single_point_is_proportional_and_of_none_nothing() -> None:
    one = replace(HOST, alpha={2: 1e-3})
    assert [alpha(one, nodes) for nodes in (1, 2, 4)] == pytest.approx([0.0, 1e-3, 3e-3])
    assert alpha(replace(HOST, alpha={}), 8) == 0.0


def test_alpha_never_falls_beyond_what_was_measured() -> None:
    assert alpha(replace(HOST, alpha={2: 2e-3, 4: 1e-3}), 64) == 1e-3


@given(st.dictionaries(st.integers(2, 64), st.floats(1e-5, 0.1), max_size=4), st.integers(1, 500))
def test_alpha_is_finite_and_no_less_than_the_least_measured(points: dict[int, float], nodes: int) -> None:
    found = alpha(replace(HOST, alpha=points), nodes)
    assert 0 <= found < 0.1 * 500
    if points and nodes >= min(points):
        assert found >= min(points.values()) * (1 - 1e-9)


def test_a_hosts_time_is_that_of_all_ranks_bytes() -> None:
    assert host_time(HOST, 1e9, 4) == pytest.approx(0.8)
    assert host_time(HOST, 1e9, 1) == 0.0


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────
def known() -> tuple[Host | None, list[str]]:
    said: list[str] = []
    return calibration.known_host(said.append), said


def test_what_is_kept_is_known_from_then_on(cache: Path) -> None:
    assert known() == (None, []), "no calibration is no reason to warn"
    path = calibration.keep(HOST)
    assert path == cache / "rig" / "calibration.json"
    host, said = known()
    assert said == []
    assert host is not None
    assert replace(host, date=HOST.date) == HOST
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, tuple[Change, str]] = {
    "another machine": (lambda one: one["machine"].update(cpu="Z80", memory=0), "of another machine (cpu Z80, here"),
    "other cores": (lambda one: one["machine"].update(cores=999), f"(cores 999, here {HERE.cores})"),
    "another kernel": (lambda one: one["machine"].update(kernel="1.0"), f"(kernel 1.0, here {HERE.kernel})"),
    "another schema": (lambda one: one.update(schema=99), f"its schema is 99, this rig reads {kept.SCHEMA}"),
    "no machine": (lambda one: one.pop("machine"), "it is damaged (KeyError('machine'))"),
    "nothing found": (lambda one: one.update(found={}), "it is damaged (KeyError('alpha'))"),
    "alpha is a list": (lambda one: one["found"].update(alpha=[1]), "it is damaged (AttributeError"),
    "alpha is a word": (lambda one: one["found"].update(alpha={"2": "x"}), "it is damaged (ValueError"),
    "no time at all": (lambda one: one["found"].update(reduce=-1.0), "is not above 0"),
    "not a number": (lambda one: one["found"].update(step=float("nan")), "is not above 0"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_does_not_fit_is_ignored_with_one_line(what: str) -> None:
    change, why = WRONG[what]
    path = calibration.keep(HOST)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    host, said = known()
    assert host is None
    (line,) = said
    assert line.startswith(f"calibration: use {path}: ") and why in line
    assert line.endswith("; predictions are nominal; run `rig calibrate`") and "\n" not in line


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "7", "\x00", '{"schema": 1}'])
def test_a_damaged_file_is_ignored_with_one_line(text: str) -> None:
    calibration.keep(HOST).write_text(text, encoding="utf-8")
    host, said = known()
    assert host is None
    assert len(said) == 1 and ("it cannot be read" in said[0] or "it is damaged" in said[0])


def test_a_file_that_may_not_be_read_is_ignored_with_one_line() -> None:
    path = calibration.keep(HOST)
    path.unlink()
    path.mkdir()
    assert known() == (None, [f"calibration: use {path}: it cannot be read (Is a directory); "
                              "predictions are nominal; run `rig calibrate`"])  # fmt: skip


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────
FOUND = verb.Calibrated(replace(HOST, cpu="A processor of some maker, " * 3), Ceiling(1e10, 0.1, 2), Path("/x/y.json"))


@pytest.mark.parametrize("found", [FOUND, replace(FOUND, kept=None, why="others took 29 % of the CPUs; end them")])
def test_a_table_fits_80_columns(found: verb.Calibrated) -> None:
    console = Console(width=80)
    with console.capture() as drawn:
        console.print(verb.table(found))
    assert max(len(line) for line in drawn.get().splitlines()) <= 80
    for words in ("of 2 ranks", "400.0 µs", "of 8 ranks", "20.00 ms", "200.0 ms", "300.0 µs", "10.00 Gb/s"):
        assert words in drawn.get()
    assert ("kept in /x/y.json" in drawn.get()) == (found.kept is not None)
    assert found.exit_code == (0 if found.kept else 4)


def test_json_has_it_all() -> None:
    told = json.loads(json.dumps(verb.document(FOUND)))
    assert told["host"]["alpha"] == {"2": 0.4e-3, "4": 5e-3, "8": 20e-3}
    assert told["ceiling"]["bit_s"] == 1e10
    assert (told["kept"], told["why"]) == ("/x/y.json", "")
