"""Other people's measurements, predicted from their own columns; docs/formulas.md tells of the same figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from rig.formulas import FORMULAS
from rig.formulas.outside import Row, predict_row, row

ROOT = Path(__file__).resolve().parent.parent
CELLS = list(csv.DictReader((ROOT / "tests/data/published.csv").read_text(encoding="utf-8").splitlines()))
PAGE = (ROOT / "docs/formulas.md").read_text(encoding="utf-8")
MEDIAN, EXPLAINED = 0.05, 0.10  # what the median error may be, and the error from which on a row needs a reason


def error(cells: dict[str, str]) -> float:
    return predict_row(row(cells)) / float(cells["measured"]) - 1


def line(cells: dict[str, str]) -> str:
    """A row as docs/formulas.md has it."""
    unit = {"samples_per_s_total": "samples/s", "step_s": "s"}[cells["metric"]]
    figures = f"{float(cells['measured']):.5g} {unit} | {predict_row(row(cells)):.5g} {unit} | {error(cells):+.1%}"
    return f"| {cells['id']} | {cells['nodes']} × {cells['gpus_per_node']} | {figures} | {cells['fitted']} |"


def test_the_median_row_is_within_five_per_cent() -> None:
    print(*map(line, CELLS), sep="\n")
    counted = [abs(error(cells)) for cells in CELLS if cells["fitted"] == "no"]
    assert len(counted) == 9
    assert median(counted) <= MEDIAN


@pytest.mark.parametrize("cells", CELLS, ids=[cells["id"] for cells in CELLS])
def test_a_row_far_off_is_explained(cells: dict[str, str]) -> None:
    explained = f"\n| {cells['id']} | " in PAGE.partition("**Why a row is off")[2]
    assert explained == (abs(error(cells)) > EXPLAINED), f"{cells['id']} is off by {error(cells):+.1%}"


def test_the_page_has_the_figures_of_today() -> None:
    told = PAGE.partition("## Other people's hardware")[2].partition("**Why a row is off")[0]
    assert [text for text in told.splitlines() if text.startswith("|")][2:] == list(map(line, CELLS))
    counted = median(abs(error(cells)) for cells in CELLS if cells["fitted"] == "no")
    assert f"median error of those that are not fitted is {counted:.1%}" in told


def test_the_page_lists_every_formula_once() -> None:
    tables = PAGE.partition("## Other people's hardware")[0].splitlines()
    assert sorted(text.split("`")[1] for text in tables if text.startswith("| `")) == sorted(FORMULAS)


ONE = Row(10**8, 4, 1, 1e9, "wire1500", "ring", True, 1, 0.3, 32, "step_s")


def test_nothing_to_reduce_takes_compute_alone() -> None:
    assert predict_row(replace(ONE, nodes=1, gpus_per_node=8)) == pytest.approx(0.3)
    assert predict_row(replace(ONE, nodes=1, accumulate=4)) == pytest.approx(1.2)


def test_a_row_lies_between_its_longer_part_and_their_sum() -> None:
    apart = predict_row(replace(ONE, overlap=False))
    assert apart - 0.3 < predict_row(ONE) < apart
    assert predict_row(replace(ONE, accumulate=8)) == pytest.approx(7 * 0.3 + predict_row(ONE))


def test_samples_are_of_all_gpus() -> None:
    samples = predict_row(replace(ONE, gpus_per_node=8, metric="samples_per_s_total"))
    assert samples == pytest.approx(32 * 32 / predict_row(replace(ONE, gpus_per_node=8)))


def test_a_cell_that_is_none_of_the_words_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        row({**CELLS[0], "algorithm": "mesh"})
