"""One page about several runs: what it shows of each, the sentence that answers it, and what it survives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rig.record import load
from rig.report import experiments, findings, reading
from rig.report.findings import Finding
from tests.bench import experiments as bench
from tests.report import sample
from tests.test_report import RECORDS, Page


def shown(record: Mapping[str, Any], **show: str) -> Mapping[str, Any]:
    """The record of a scenario with that `show:`."""
    scenario = {**record["scenario"], "resolved": {"document": {"show": show}}}
    return {**record, "scenario": scenario}


def found(record: Mapping[str, Any], **show: str) -> Finding:
    finding = findings.finding(reading.read(shown(record, **show)))
    assert finding is not None
    return finding


def answer(record: Mapping[str, Any], **show: str) -> str:
    return findings.answer(reading.read(shown(record, **show)))


def both() -> sample.Document:
    """Three numbers of nodes at two rates, all as predicted but for some 0.4 %."""
    return sample.document([sample.passed(nodes, rate) for rate in ("1gbit", "10gbit") for nodes in (1, 2, 4)])


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────
def test_a_figure_over_a_swept_path_for_each_value_of_another() -> None:
    rates = found(both(), x="link.rate", y="step_time", by="nodes")
    assert (rates.x, rates.places, rates.ordered) == ("link.rate", ("1gbit", "10gbit"), True)
    assert [series.label for series in rates.series] == ["1", "2", "4"]
    assert [point.figure.unit for point in rates.points] == ["s"] * 6
    assert rates.formulas == ("overlap",)


def test_what_the_scenario_does_not_say_suits_its_cases() -> None:
    usual = found(both())
    assert (usual.x, usual.y, usual.places) == ("nodes", "speedup", ("1", "2", "4"))
    assert [series.label for series in usual.series] == ["1gbit", "10gbit"]
    sizes = found(sample.allreduce())
    assert (sizes.x, sizes.y, len(sizes.series)) == ("workload.size", "busbw", 1)


def test_what_a_set_took_out_of_the_sweep_is_done_without() -> None:
    usual = found(both(), x="workload.batch", y="step_time", by="link.delay")
    assert (usual.x, [series.label for series in usual.series]) == ("nodes", ["1gbit", "10gbit"])


def test_numbers_stand_in_order_and_words_as_they_are_written() -> None:
    cases = [sample.passed(nodes, "1gbit") for nodes in (4, 1, 2)]
    assert found(sample.document(cases), x="nodes").places == ("1", "2", "4")
    words = [{"powersgd": {"rank": 4}}, "fp16", {"local_sgd": {"every": 8}}]
    for case, word in zip(cases, words, strict=True):
        case["params"] = {"nodes": 2, "workload.exchange": word}
    ways = found(sample.document(cases), x="workload.exchange", y="payload_tx")
    assert ways.places == ("powersgd rank 4", "fp16", "local_sgd every 8")
    assert not ways.ordered


def test_a_baseline_that_only_came_along_is_no_point() -> None:
    cases = [sample.passed(nodes, "1gbit") for nodes in (1, 2)]
    cases[0]["role"] = "baseline"
    assert [point.case.nodes for point in found(sample.document(cases)).points] == [2]


def test_a_share_of_a_sample_is_of_those_that_a_node_has() -> None:
    (point,) = found(sample.document([sample.passed(4, "1gbit")]), x="nodes", y="payload_per_sample").points
    payload = sample.passed(4, "1gbit")["predicted"]["payload_tx"]["value"]
    assert point.figure.predicted == pytest.approx(payload / 32)
    assert point.figure.measured == pytest.approx(payload / 32)
    assert point.figure.unit == "B/step"


# ── the sentence ─────────────────────────────────────────────────────────────────────────────────────────────
def test_the_answer_has_the_ends_the_extremes_and_the_error() -> None:
    assert answer(both()) == (
        "From 1 to 4 nodes, speed-up goes from 1.00× to 0.54× (1gbit) and from 1.00× to 3.21× (10gbit); "
        "best 3.21× at nodes=4,rate=10gbit, worst 0.39× at nodes=2,rate=1gbit; "
        "measured within 0.40 % of its formula; bytes as predicted."
    )
    assert answer(both(), x="link.rate", y="step_time", by="nodes").startswith(
        "With link.rate from 1gbit to 10gbit, step time goes from 187.2 ms to 187.2 ms (1), "
    )


def test_the_shortest_time_is_the_best() -> None:
    assert "best 187.2 ms at nodes=1,rate=1gbit, worst 1.397 s at nodes=4,rate=1gbit" in answer(both(), y="step_time")


def test_what_was_invalid_answers_nothing() -> None:
    record = both()
    for case in record["cases"][3:]:
        case["status"] = "invalid"
    assert "10gbit" not in answer(record)
    for case in record["cases"]:
        case["status"] = "skipped"
    assert answer(record) == "No case could be judged, so the question stays open."


def test_what_is_not_judged_counts_only_where_nothing_is() -> None:
    record = both()
    record["cases"][1]["measured"]["speedup"]["value"] *= 2
    record["cases"][1]["checks"] = []
    assert "measured, where that is judged, within 0.40 % of its formula" in answer(record)
    for case in record["cases"]:
        case["checks"] = []
    assert "measured within 99.2 % of its formula" in answer(record)


def test_what_nothing_predicts_is_said_to_be_so() -> None:
    assert answer(sample.allreduce()).endswith("no formula predicts it.")


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_page_is_whole_whatever_the_records_hold() -> None:
    text = experiments.page([(make(), "../run/report.html") for make in RECORDS.values()])
    page = Page(text)
    assert (page.tags.count("h1"), page.tags.count("h2")) == (1, len(RECORDS))
    assert "script" not in page.tags and "img" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    others = [reference for reference in page.references if not reference.startswith("#")]
    assert others == ["../run/report.html"] * len(RECORDS)
    assert all(reference[1:] in page.ids for reference in page.references if reference not in others)
    assert page.tags.count("caption") == page.tags.count("table")
    assert not {"nan", "inf", "None"} & set(re.split(r"[\s<>]+", text))


def test_a_section_has_question_answer_formula_verdicts_and_reasons() -> None:
    text = experiments.page([(sample.record(), "")])
    assert "Does a faster link make data-parallel training scale?" in text
    assert '<li class="pass"><b>7</b> pass</li>' in text
    assert "Formula: <code>overlap</code>: " in text
    assert "rank 3 on n3 died with exit code 1; its last line: CUDA out of memory" in text
    assert "interrupted before it began" in text


def test_no_run_is_a_page_too() -> None:
    assert "There is no run to tell about." in experiments.page([])


def test_measured_points_and_predicted_lines_are_drawn() -> None:
    lines = experiments.draw(found(both()), "x").svg
    assert len(re.findall(r"<title>nodes=", lines)) == 6
    words = [label for _, _, label in experiments.draw(found(both()), "x").legend]
    assert words == ["1gbit", "10gbit", "measured, 95 % interval", "predicted"]
    ticks = re.findall(r"<text[^>]*>(.*?)</text>", lines)
    assert {"1", "2", "4", "nodes", "speed-up"} <= set(ticks)


def test_figures_far_apart_are_on_a_logarithmic_axis() -> None:
    record = both()
    for kind in ("measured", "predicted"):
        record["cases"][5][kind]["step_time"]["value"] = 100.0
    ticks = re.findall(r"<text[^>]*>(.*?)</text>", experiments.draw(found(record, y="step_time"), "x").svg)
    assert {"200 ms", "500 ms", "1 s", "2 s", "50 s"} <= set(ticks)


def test_a_link_leads_to_the_runs_own_page_where_there_is_one(tmp_path: Path) -> None:
    own, kept = tmp_path / "own run", tmp_path / "kept"
    own.mkdir()
    (own / "report.html").touch()
    path = experiments.write([(sample.record(), own), (sample.record(), kept)], tmp_path / "out")
    assert re.fullmatch(r"\d{8}T\d{6}Z-experiments", path.parent.name)
    others = [reference for reference in Page(path.read_text(encoding="utf-8")).references if reference[0] != "#"]
    assert [(path.parent / other).resolve() for other in others] == [own / "report.html"]


# ── docs/experiments.md ──────────────────────────────────────────────────────────────────────────────────────
def kept(name: str, cases: list[sample.Document], **show: str) -> sample.Document:
    """What `make bench-experiments` keeps of a run with these cases."""
    record = dict(shown(sample.document(cases, name), **show))
    record["environment"] = {"kernel": "6.18.0", "cores": 2, "versions": {"torch": "2.13.0"}}
    return bench.trimmed(record)


def sent(case: sample.Document, payload: float) -> sample.Document:
    """The same case, but for what a node sends in a step (B)."""
    for kind in ("measured", "predicted"):
        case[kind]["payload_tx"]["value"] = payload
    return case


def test_a_kept_record_is_small_and_still_says_the_same(tmp_path: Path) -> None:
    small = kept("bandwidth", both()["cases"], x="link.rate", y="step_time", by="nodes")
    assert len(json.dumps(small)) < len(json.dumps(both())) / 4
    assert findings.answer(reading.read(small)) == answer(both(), x="link.rate", y="step_time", by="nodes")
    (tmp_path / "bandwidth.json").write_text(json.dumps(small), encoding="utf-8")
    assert load(tmp_path / "bandwidth.json").document == small


def test_the_page_has_every_scenario_and_the_figures_that_were_asked_for() -> None:
    full = [sample.passed(1, "1gbit"), sent(sample.passed(2, "1gbit"), 3.4389e9)]
    lora = [sample.passed(1, "1gbit"), sent(sample.passed(2, "1gbit"), 3.1893e6)]
    ways = [sample.passed(2, "1gbit") for _ in range(2)]
    for case, way, seconds in zip(ways, ("allreduce", "fp16"), (20.0, 8.0), strict=True):
        case |= {"id": f"nodes=2,exchange={way},rate=100mbit", "params": {"nodes": 2, "workload.exchange": way}}
        case["measured"]["time_to_loss"] = {"value": seconds, "unit": "s"}
    records = {"dreambooth": kept("dreambooth", full), "lora": kept("lora", lora), "send-less": kept("send-less", ways)}
    lines = bench.page(records).splitlines()
    assert "6 of 6 cases pass." in lines
    assert [line[3:] for line in lines if line.startswith("## ")] == list(records)
    (ratios,) = (line for line in lines if line.startswith("| 2 |"))
    assert ratios.endswith("| 1.00 | 1.00 | 1078.3 | 1078.2: +0.006 %, within 1% |")
    assert "| nodes=2,exchange=fp16,rate=100mbit | 8.000 s | 0.40 |" in lines


def test_what_was_disturbed_is_taken_from_the_later_run() -> None:
    spoiled = both()["cases"]
    spoiled[0] |= {"status": "invalid", "reason": "busy"}
    spoiled[1] |= {"status": "fail"}
    found = bench.merged(kept("x", spoiled), kept("x", both()["cases"][:2]))
    assert [case["status"] for case in found["cases"]] == ["pass", "fail", "pass", "pass", "pass", "pass"]
    assert (found["summary"]["pass"], found["summary"]["exit"]) == (5, 1)
