"""The report: five files from one record, whatever the record holds."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import rig.report
from rig.errors import RecordError
from rig.report import curves, figures, reading, tables
from tests.report import sample

RECORDS: dict[str, Callable[[], Mapping[str, Any]]] = {
    "every status": sample.record,
    "all that newer records hold": sample.whole,
    "all-reduce": sample.allreduce,
    "hostile": sample.hostile,
    "nothing": dict,
    "no case": lambda: sample.document([]),
    "nonsense": lambda: {"cases": "none", "scenario": [], "summary": 3, "warnings": {}, "environment": None},
}
VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


class Page(HTMLParser):
    """What a test wants to know about a page: whether tags nest, its ids, its references and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id" and value]
        self.references += [value for key, value in attrs if key in ("href", "src", "xlink:href") and value]
        assert not any(key.startswith("on") for key in named)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag


@pytest.fixture(scope="module", params=RECORDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, Any], Path]:
    record = RECORDS[request.param]()
    folder = tmp_path_factory.mktemp("report")
    paths = rig.report.write(record, folder)
    assert [path.name for path in paths] == ["steps.csv", "links.csv", "trace.json", "junit.xml", "report.html"]
    return record, folder


def cases_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    cases = record.get("cases")
    return [case for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []


def raw_steps(record: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (case.get("id", ""), step)
        for case in cases_of(record)
        for step in (case.get("raw") or {}).get("steps", [])
        if isinstance(step, dict)
    ]


def test_page_is_whole_and_self_contained(written: tuple[Mapping[str, Any], Path]) -> None:
    text = (written[1] / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(text.encode()) < 3_000_000
    assert page.tags.count("h1") == 1
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert page.tags.count("caption") == page.tags.count("table")
    assert text.count('role="img" aria-label="') == page.tags.count("svg")
    assert "@import" not in text and "http:" not in text and "https:" not in text
    assert not {"nan", "inf", "None"} & set(re.split(r"[\s<>]+", text))


def test_step_rows(written: tuple[Mapping[str, Any], Path]) -> None:
    rows = list(csv.DictReader(io.StringIO((written[1] / "steps.csv").read_text(encoding="utf-8"))))
    assert len(rows) == len(raw_steps(written[0]))
    assert all(None not in row and None not in row.values() for row in rows)


def test_link_rows(written: tuple[Mapping[str, Any], Path]) -> None:
    rows = list(csv.DictReader(io.StringIO((written[1] / "links.csv").read_text(encoding="utf-8"))))
    links = [link for case in cases_of(written[0]) for link in case.get("links") or [] if isinstance(link, dict)]
    assert len(rows) == len(links)


def test_trace_is_what_perfetto_reads(written: tuple[Mapping[str, Any], Path]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    trace = json.loads((written[1] / "trace.json").read_text(encoding="utf-8"), parse_constant=refuse)
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M") and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert threads.keys() == named
    for spans in threads.values():
        assert_nested(spans)


def assert_nested(spans: list[tuple[float, float]]) -> None:
    """Within a thread, an event is inside another or beside it: Perfetto drops what overlaps."""
    around: list[float] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1] <= start + 0.002:
            around.pop()
        assert not around or end <= around[-1] + 0.002
        around.append(end)


def test_junit_counts(written: tuple[Mapping[str, Any], Path]) -> None:
    suite = ElementTree.parse(written[1] / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases) == len(cases_of(written[0]))
    for total, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[total]) == len(suite.findall(f"testcase/{kind}"))
    outcomes = [found for kind in ("failure", "error", "skipped") for found in suite.findall(f"testcase/{kind}")]
    assert all(outcome.get("message") for outcome in outcomes)


def test_terminal_summary_fits_80_columns_and_is_inert(written: tuple[Mapping[str, Any], Path]) -> None:
    screen = io.StringIO()
    Console(file=screen, width=80).print(tables.summary(written[0]))
    assert all(len(line.rstrip()) <= 80 for line in screen.getvalue().splitlines())
    assert "\x1b" not in screen.getvalue()
    for case in cases_of(written[0]):
        assert len(tables.plain(case).splitlines()) == 1 and "\x1b" not in tables.plain(case)


def test_terminal_summary_shows_every_column() -> None:
    screen = io.StringIO()
    Console(file=screen, width=80).print(tables.summary(sample.record()))
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["case", "k", "status", "step", "predicted", "error", "traffic", "speed-up"] in lines
    assert ["nodes=4,rate=10gbit", "16", "invalid*", "233.1", "ms", "232.1", "ms", "+0.40%", "0%", "3.21/3.22"] in lines


def test_page_says_what_the_record_says(tmp_path: Path) -> None:
    rig.report.write(sample.record(), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for fact in (
        "Does a faster link make data-parallel training scale?",
        "Compared with one node, 4 nodes train at 0.54× (1gbit) and 1.22× (2.5gbit) the speed",
        "no Docker engine answers",
        "n2 up: goodput 4 % below the wire&#39;s arithmetic",
        "rank 3 on n3 died with exit code 1",
        "rig run scenarios/bandwidth.yaml",
        "960.3 ms",
        "+6.00 %",
        "102.3 MB",
        "941.5 Mb/s",
        "one curve per link.rate",
    ):
        assert fact in text, fact


def test_hostile_text_is_inert(tmp_path: Path) -> None:
    rig.report.write(sample.hostile(), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text and "</style><" not in text and "&lt;script&gt;" in text
    assert "{{ 7 * 7 }}" in text  # shown, not computed
    assert not any(harmful in text for harmful in "\x00\x1b\u202e")


def test_a_large_sweep_stays_small(tmp_path: Path) -> None:
    case = {**sample.passed(4, "1gbit"), "reason": "x" * 5000}
    many = [{**case, "id": f"nodes=4,batch={index}", "params": {"nodes": 4, "batch": index}} for index in range(700)]
    for entry in many[20:]:
        entry["raw"] = {}
    rig.report.write(sample.document(many), tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert "200 more cases" in (tmp_path / "report.html").read_text(encoding="utf-8")


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a document."""
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: object) -> Any:
    """The document with another value at one place."""
    if not path:
        return value
    copied = document.copy()
    copied[path[0]] = replaced(document[path[0]], path[1:], value)
    return copied


_FEW = sample.passed(2, "1gbit")
_FEW["raw"]["steps"] = _FEW["raw"]["steps"][:6]
_CURVE = {"case": _FEW["id"], "nodes": 2, "points": [[1e8, 0.2], [1e9, 0.9], [1e10, 1.9]]}
SMALL = {**sample.document([sample.newer(_FEW)]), "curves": [_CURVE]}
ODD: list[object] = [None, True, "", "<b>", [], {}, [None], -1, 0, 1e300, -1e-300, 10**400, float("nan"), float("-inf")]


ODD_PLACES = st.lists(st.tuples(st.sampled_from(list(places(SMALL))), st.sampled_from(ODD)), min_size=1, max_size=8)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(odd=ODD_PLACES)
def test_odd_values_anywhere_are_survived(odd: list[tuple[tuple[Any, ...], object]]) -> None:
    record = SMALL
    for path, value in sorted(odd, key=lambda place: -len(place[0])):  # the deepest first: later ones take them away
        record = replaced(record, path, value)
    with TemporaryDirectory() as folder:
        report, junit = (rig.report.write(record, Path(folder))[index] for index in (4, 3))
        Page(report.read_text(encoding="utf-8"))
        ElementTree.parse(junit)
    tables.summary(record)


def test_junit_failure_holds_the_checks(tmp_path: Path) -> None:
    rig.report.write(sample.record(), tmp_path)
    failure = ElementTree.parse(tmp_path / "junit.xml").getroot().find("testsuite/testcase/failure")
    assert failure is not None and failure.text is not None
    assert failure.text.splitlines() == [
        "step_time +6.0 % off the prediction, tolerance ±2.5 %",
        "metric      measured  predicted  error    tolerance  status  note",
        "step_time   645.3 ms  608.8 ms   +6.00 %  2.50 %     fail",
        "payload_tx  153.5 MB  153.5 MB   0 %      0.050 %    pass",
        "speedup     1.22×     1.23×      −0.40 %  2.50 %     pass",
    ]


def test_optimizer_starts_after_the_last_bucket() -> None:
    step = reading.read_case(sample.passed(2, "1gbit")).steps[0]
    phases = list(step.phases())
    assert [name for name, _, _ in phases] == ["forward", "backward", "waiting"]
    assert phases[2][2] == pytest.approx(max(bucket.end for bucket in step.buckets))


def test_baseline_added_by_the_plan_starts_every_curve() -> None:
    cases = [{**sample.passed(nodes, rate), "baseline": "one"} for rate in ("1gbit", "10gbit") for nodes in (2, 4)]
    baseline = {**sample.passed(1, "1gbit"), "id": "one", "role": "baseline", "params": {"nodes": 1}}
    found = curves.curves(reading.read(sample.document([baseline, *cases])))
    assert [(curve.label, [nodes for nodes, _ in curve.points]) for curve in found] == [
        ("1gbit", [1, 2, 4]),
        ("10gbit", [1, 2, 4]),
    ]


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        ({}, "The run holds no case."),
        (sample.document([sample.broken("a", "skipped", "")]), "No case could be judged, so the question stays open."),
        (sample.allreduce(), "All-reduce reaches 940.0 Mb/s of bus bandwidth."),
        (
            sample.document([sample.passed(2, "10gbit")]),
            "Compared with one node, 2 nodes train at 1.91× (10gbit) the speed; "
            "step time within 0.40 % of the prediction and traffic equal to the prediction.",
        ),
    ],
)
def test_answer(record: Mapping[str, Any], answer: str) -> None:
    assert curves.answer(reading.read(record)) == answer


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (figures.seconds(1.3717), "1.372 s"),
        (figures.seconds(0.1637), "163.7 ms"),
        (figures.seconds(0.99996), "1.000 s"),
        (figures.seconds(87e-6), "87.00 µs"),
        (figures.seconds(0.0), "0 s"),
        (figures.seconds(-0.002), "−2.000 ms"),
        (figures.size(153_365_520), "153.4 MB"),
        (figures.size(767), "767 B"),
        (figures.size(999_990), "1.000 MB"),
        (figures.rate(941_547_464), "941.5 Mb/s"),
        (figures.rate(2.5e9), "2.500 Gb/s"),
        (figures.percent(0.0005), "+0.050 %"),
        (figures.percent(-0.58), "−58.0 %"),
        (figures.percent(None), "–"),
        (figures.in_unit(12.0, "samples/s"), "12 samples/s"),
        (figures.in_unit(1.2263, "×"), "1.23×"),
    ],
)
def test_figures(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize("value", [None, True, "3", float("nan"), float("inf"), 10**400])
def test_not_a_number(value: object) -> None:
    assert figures.number(value) is None


def test_heavy_imports_are_lazy() -> None:
    heavy = "('matplotlib', 'pandas', 'jinja2', 'rich')"
    code = f"import sys, rig.report, rig.report.tables; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"steps\.csv: writing the report: .*rig report"):
        rig.report.write({}, tmp_path / "file")
