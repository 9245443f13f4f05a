"""junit.xml: a test suite per scenario, a test case per case, for whatever CI shows such files."""

from __future__ import annotations

from xml.etree import ElementTree

from rig.report import figures
from rig.report.reading import metric_of
from rig.report.views import CaseView, RunView

_ELEMENT = {"fail": "failure", "error": "error", "invalid": "skipped", "skipped": "skipped"}


def document(run: RunView) -> str:
    """The suite as XML text. Invalid cases count as skipped: nothing failed, but nothing was shown either."""
    suite = ElementTree.Element("testsuite", {"name": run.name, "tests": str(len(run.cases)), **_totals(run)})
    if run.started:
        suite.set("timestamp", run.started.removesuffix("Z"))
    if run.seconds is not None:
        suite.set("time", f"{run.seconds:.3f}")
    suite.append(_properties({"rig": run.rig, "run": run.run, "scenario": run.path}))
    suite.extend(_testcase(run, case) for case in run.cases)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _totals(run: RunView) -> dict[str, str]:
    counts = run.counts
    totals = {"failures": counts["fail"], "errors": counts["error"], "skipped": counts["invalid"] + counts["skipped"]}
    return {name: str(count) for name, count in totals.items()}


def _testcase(run: RunView, case: CaseView) -> ElementTree.Element:
    element = ElementTree.Element("testcase", {"classname": f"rig.{run.name}", "name": case.id})
    spent = _seconds(case)
    if spent is not None:
        element.set("time", f"{spent:.3f}")
    element.append(_properties(_facts(case)))
    kind = _ELEMENT.get(case.status)
    if kind:
        reason = case.reason or f"{case.status}, without a reason in the record"
        outcome = ElementTree.SubElement(element, kind, {"type": case.status, "message": reason[:1000]})
        outcome.text = "\n".join((reason, *check_lines(case)))
    return element


def check_lines(case: CaseView) -> tuple[str, ...]:
    """The case's checks as an aligned text table; nothing where it has none."""
    rows: list[tuple[str, ...]] = [("metric", "measured", "predicted", "error", "tolerance", "status", "note")]
    for check in case.checks:
        numbers = [figures.number(check.get(key)) for key in ("measured", "predicted", "error", "tolerance")]
        unit = case.figure(metric_of(check)).unit
        rows.append(
            (
                str(check.get("metric") or ""),
                *(figures.in_unit(value, unit) for value in numbers[:2]),
                figures.percent(numbers[2]),
                figures.percent(numbers[3], signed=False),
                str(check.get("status") or ""),
                str(check.get("note") or ""),
            )
        )
    if len(rows) == 1:
        return ()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _seconds(case: CaseView) -> float | None:
    """Real seconds its steps took, all repeats together; None where it has none."""
    spent = None
    for repeat in {step.repeat for step in case.steps}:
        times = [(step.start, step.end) for step in case.steps if step.repeat == repeat]
        whole = [(start, end) for start, end in times if start is not None and end is not None]
        if whole:
            spent = (spent or 0.0) + max(end for _, end in whole) - min(start for start, _ in whole)
    return spent


def _facts(case: CaseView) -> dict[str, str]:
    facts = {"lab": case.lab, "dilation": f"{case.dilation:g}", "bottleneck": case.bound.kind}
    if case.unstable:
        facts["unstable"] = "true"
    for metric, figure in case.figures.items():
        for kind, value in (("measured", figure.measured), ("predicted", figure.predicted), ("error", figure.error)):
            if value is not None:
                facts[f"{metric}.{kind}"] = f"{value:.9g}"
    return facts


def _properties(facts: dict[str, str]) -> ElementTree.Element:
    element = ElementTree.Element("properties")
    for name, value in facts.items():
        ElementTree.SubElement(element, "property", {"name": name, "value": value})
    return element
