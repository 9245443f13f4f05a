"""Pictures that hold predictions against measurements: what is drawn, what is told, and what is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rig.report
from rig.report import agreement, breakeven, plots, reading
from rig.report.plots import Picture
from rig.report.views import CaseView, Prospect, RunView
from tests.report import sample


def run(record: Mapping[str, Any] | None = None) -> RunView:
    return reading.read(record or sample.whole())


def hovers(picture: Picture) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", picture.svg)


def words(picture: Picture) -> list[str]:
    """Every text in a picture, in drawing order."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.svg)


# ── measured over predicted ──────────────────────────────────────────────────────────────────────────────────
def test_a_point_for_every_case_tells_what_it_is() -> None:
    step_time, speedup = agreement.scatters(run().cases)
    assert hovers(step_time) == [
        "nodes=1,rate=2.5gbit: measured 187.2 ms, predicted 187.0 ms, +0.100 %",
        "nodes=2,rate=2.5gbit: measured 436.7 ms, predicted 434.9 ms, +0.40 %",
        "nodes=4,rate=2.5gbit: measured 611.2 ms, predicted 608.8 ms, +0.40 %",
    ]
    assert len(hovers(speedup)) == 2  # of one node it is 1 by definition


def test_axes_are_logarithmic_beyond_a_decade() -> None:
    near = agreement.scatters(run().cases)[0]
    slow = [sample.passed(nodes, rate) for nodes, rate in ((1, "1gbit"), (4, "1gbit"))]
    slow[1]["measured"]["step_time"]["value"] = 187.0
    slow[1]["predicted"]["step_time"]["value"] = 186.0
    far = agreement.scatters(run(sample.document(slow)).cases)[0]
    assert words(near)[:5] == ["200", "300", "400", "500", "600"]
    assert words(far)[:3] == ["1000", "10000", "100000"]


def test_nothing_predicted_is_nothing_drawn() -> None:
    cases = run(sample.allreduce()).cases
    assert (agreement.scatters(cases), agreement.errors(cases)) == ((), None)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_errors_are_sorted_and_beside_their_tolerance() -> None:
    picture = agreement.errors(run(sample.record()).cases)
    assert picture is not None
    rows = [word for word in words(picture) if word.startswith("nodes=")]
    assert rows[0] == "nodes=4,rate=2.5gbit" and len(rows) == 9  # +6 %; those that broke have none
    assert ("line", "block", "within the tolerance") in picture.legend
    assert "nodes=4,rate=2.5gbit: measured 645.3 ms, predicted 608.8 ms, +6.00 %" in hovers(picture)


def test_of_many_errors_the_largest_are_drawn() -> None:
    one = run().cases[1]
    many = [replace(one, index=index, id=f"case {index}", figures=off(one, index / 1000)) for index in range(60)]
    picture = agreement.errors(many)
    assert picture is not None
    rows = [word for word in words(picture) if word.startswith("case ")]
    assert rows == [f"case {index}" for index in range(59, 19, -1)]
    assert agreement.left_out(many) == 20


def off(case: CaseView, error: float) -> dict[str, Any]:
    return {"step_time": replace(case.figure("step_time"), error=error)}


# ── one step, predicted and measured ─────────────────────────────────────────────────────────────────────────
def test_the_predicted_step_stands_above_the_slowest_rank() -> None:
    case = run().cases[2]
    steps = plots.typical(case)
    late = replace(steps[2], end=(steps[2].end or 0.0) + 0.01)
    picture = plots.timeline(case, (*steps[:2], late, *steps[3:]))
    rows = [word for word in words(picture) if word == "predicted" or word.startswith("rank")]
    assert rows == ["predicted", "rank 2 · n2 (slowest)", "rank 0 · n0", "rank 1 · n1", "rank 3 · n3"]
    assert ("earlier", "block", "earlier micro-batches") in picture.legend


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_the_predicted_step_is_as_long_as_predicted(nodes: int) -> None:
    """In real seconds, as raw steps are; 3 ms of buffers and optimizer are not in the sample's prediction."""
    case = next(case for case in run().cases if case.nodes == nodes)
    assert case.expected is not None and case.expected.end is not None
    assert case.expected.end / case.dilation == pytest.approx((case.figure("step_time").predicted or 0) + 0.003)
    phases = [name for name, _, _ in case.expected.phases()]
    assert phases == ["earlier", "forward", "backward", *(["waiting"] if nodes > 1 else []), "optimizer"]
    assert [bucket.bytes for bucket in case.expected.buckets] == (list(sample.BUCKETS) if nodes > 1 else [])


def test_measured_micro_batches_end_a_span_after_they_began() -> None:
    step = run().cases[1].steps[0]
    assert step.earlier_end == pytest.approx((step.forward_start or 0) + 0.02)
    assert next(iter(step.phases()))[0] == "earlier"


@pytest.mark.parametrize(
    "damage",
    [{"forward": None}, {"ends": [0.1]}, {"ready": "soon"}, {"ends": [None] * 5}, {"backward": float("nan")}],
)
def test_a_damaged_predicted_step_is_left_out(damage: dict[str, Any]) -> None:
    case = sample.newer(sample.passed(2, "1gbit"))
    case["predicted"]["step_time"]["inputs"]["timeline"] |= damage
    view = reading.read_case(case)
    assert view.expected is None
    assert "predicted" not in words(plots.timeline(view, plots.typical(view)))


def test_buckets_under_way_together_do_not_hide_each_other() -> None:
    """Four wait from 0.1 s on: each is drawn from where the one before it ends."""
    step = plots.typical(run().cases[1])[0]
    begun = [start for _, start in plots.next_to_end(step.buckets)]
    ends = sorted(bucket.end for bucket in step.buckets)
    assert all(start >= end for start, end in zip(begun[1:], ends, strict=False))


# ── break-even ───────────────────────────────────────────────────────────────────────────────────────────────
def test_curves_with_the_measured_points_on_them() -> None:
    (chart,), left_out = breakeven.charts(run())
    assert left_out == 0 and chart.title == ""
    assert [label for _, shape, label in chart.picture.legend if shape == "line"] == [
        "2 nodes, worth it from about 1100 Mb/s",
        "4 nodes, worth it from about 800 Mb/s",
        "8 nodes, worth it from about 570 Mb/s",
    ]
    assert hovers(chart.picture) == [
        "nodes=2,rate=2.5gbit: 0.86× at 2.500 Gb/s",
        "nodes=4,rate=2.5gbit: 1.22× at 2.500 Gb/s",
    ]


def test_other_kinds_of_case_get_a_chart_of_their_own() -> None:
    cases = [sample.passed(2, "1gbit"), sample.passed(2, "10gbit")]
    for case, batch in zip(cases, (8, 32), strict=True):
        case["params"]["workload.batch"] = batch
        case["id"] = f"batch={batch}"
    drawn = [{**sample.curve(2), "case": f"batch={batch}"} for batch in (8, 32)]
    charts, _ = breakeven.charts(run({**sample.document(cases), "curves": drawn}))
    assert [chart.title for chart in charts] == ["workload.batch 8", "workload.batch 32"]
    assert [len(hovers(chart.picture)) for chart in charts] == [1, 1]


@pytest.mark.parametrize(
    ("points", "rate"),
    [
        (((1e8, 0.5), (1e10, 2.0)), 1e9),
        (((1e8, 0.5), (1e9, 1.5), (1e10, 0.5), (1e11, 2.0)), 10**10.5),  # where it stays above
        (((1e8, 1.1), (1e9, 1.5)), None),
        (((1e8, 0.1), (1e9, 0.5)), None),
    ],
)
def test_break_even(points: tuple[tuple[float, float], ...], rate: float | None) -> None:
    found = breakeven.even(Prospect("a", 2, points))
    assert found == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize(
    "curves", [None, 3, [None], [{"nodes": 2}], [{"nodes": 2, "points": [[1e9, 1.0], ["fast", 2], [1e10]]}]]
)
def test_damaged_curves_are_left_out(curves: object) -> None:
    assert run({**sample.whole(), "curves": curves}).curves == ()


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_page_tells_why_each_case_is_bound_and_what_a_prediction_lies_between(tmp_path: Path) -> None:
    rig.report.write(sample.whole(), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<td>link: n0 up</td>" in text and "bytes fill 98% of it, at 2.5gbit" in text
    assert '<th scope="col" class="n">between</th>' in text and "421.9 ms … 448.0 ms" in text
    assert "bottleneck" not in text  # not told a second time among the host's facts


def test_older_records_have_none_of_it(tmp_path: Path) -> None:
    rig.report.write(sample.record(), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ">between</th>" not in text and 'id="even"' not in text
    assert not re.search(r"<text[^>]*>predicted</text>", text)
    assert "What bounds the step" in text  # the kind is there since the first version
