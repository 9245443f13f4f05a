"""Every scenario in scenarios/, run and told: `make bench-experiments` rewrites docs/experiments.md.

    python -m tests.bench.experiments            run what has no kept record, write docs/experiments.md
    python -m tests.bench.experiments NAME…      run these again, write it
    python -m tests.bench.experiments --again    run all of them again
    python -m tests.bench.experiments --page     write the page from the kept records

Three quarters of an hour on a quiet machine of two cores, plus second and third chances for what was disturbed. A
record is kept after each scenario, without the raw steps; `rig report docs/records/experiments/*.json` reads them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rig import pipeline, progress, record, scenario
from rig.errors import RigError
from rig.report import figures, findings
from rig.report.findings import Finding, Point
from rig.report.reading import read
from rig.report.views import CaseView, RunView
from tests.bench.agreement import HERE, made_on

KEPT, PAGE = HERE / "docs" / "records" / "experiments", HERE / "docs" / "experiments.md"
SCENARIOS = HERE / "scenarios"
TRIES = 3
JUDGED = ("pass", "fail")
FULL, LORA = "dreambooth", "lora"
PARAMETERS = 859_520_964 / 797_184  # of the one over the other, as diffusers and peft count them
BYTES_WITHIN = 0.01
SLOW_LINK, USUAL = "rate=100mbit", "exchange=allreduce"

Document = dict[str, Any]


# ── running ──────────────────────────────────────────────────────────────────────────────────────────
def run(path: Path) -> Document:
    """A scenario's record without what is large; what was disturbed gets two more chances."""
    found = once(path, None)
    for _ in range(TRIES - 1):
        disturbed = {case["id"] for case in found["cases"] if case["status"] not in JUDGED}
        if not disturbed:
            break
        found = merged(found, once(path, disturbed))
    return found


def once(path: Path, names: set[str] | None) -> Document:
    """Run all cases, or those of these names with the one-node cases that they are compared with."""
    with tempfile.TemporaryDirectory() as folder, progress.watch(live=False) as watch:
        work = pipeline.prepare(scenario.load(path), pipeline.Request("netns", Path(folder)), watch)
        if names is not None:
            wanted = names | {case.baseline for case in work.cases if case.id in names}
            work = replace(work, cases=tuple(case for case in work.cases if case.id in wanted))
        pipeline.run(work, watch)
    return trimmed(work.book.document)


def trimmed(document: Mapping[str, Any]) -> Document:
    """The record without raw steps, samples and links' details: a hundredth of it, and a page needs no more."""
    source = document["scenario"]
    about = {"path": f"scenarios/{Path(source['path']).name}", "resolved": {"document": source["resolved"]["document"]}}
    cases = [
        {
            **{key: value for key, value in case.items() if key not in ("raw", "links", "paths")},
            "measured": {name: {**figure, "samples": []} for name, figure in case["measured"].items()},
            "predicted": {name: {**figure, "inputs": {}} for name, figure in case["predicted"].items()},
            "host": {name: case["host"].get(name) for name in ("cpu_busy", "cpu_stolen")},
        }
        for case in document["cases"]
    ]
    return {**document, "scenario": {**source, **about}, "cases": cases, "curves": []}


def merged(earlier: Document, later: Document) -> Document:
    """Cases as the later run judged them, those that it could not as they were."""
    better = {case["id"]: case for case in later["cases"] if case["status"] in JUDGED}
    cases = [case if case["status"] in JUDGED else better.get(case["id"], case) for case in earlier["cases"]]
    counts = {status: sum(case["status"] == status for case in cases) for status in record.STATUSES}
    seconds = earlier["summary"]["seconds"] + later["summary"]["seconds"]
    return {**earlier, "cases": cases, "summary": {**counts, "exit": record.exit_code(counts), "seconds": seconds}}


def keep(path: Path) -> None:
    """Run a scenario and keep its record; what cannot be run here is said, and the next one's turn comes."""
    try:
        document = run(path)
    except RigError as error:
        print(f"{path.stem}: {error}", file=sys.stderr)
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{path.stem}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────
def page(kept: Mapping[str, Document]) -> str:
    """The page, from the kept records alone, by their scenarios' names."""
    runs = {name: read(document) for name, document in kept.items()}
    first = next(iter(kept.values()))
    minutes = sum(view.seconds or 0.0 for view in runs.values()) / 60
    cases = [case for view in runs.values() for case in view.cases]
    lines = [
        "# Experiments",
        "",
        f"Written by `make bench-experiments` from `docs/records/{KEPT.name}/`, runs of `scenarios/*.yaml` in lab "
        f"netns: {made_on(first['environment'])}, {minutes:.0f} minutes in all. k is the dilation that `auto` found; "
        "times and bytes are those of the emulated machines. Predictions are nominal figures of model and link, and "
        "real compute's own one-node run; nothing is fitted.",
        "",
        f"{sum(case.status == 'pass' for case in cases)} of {len(cases)} cases pass.",
        "",
        "| scenario | question | verdicts |",
        "|---|---|---|",
        *(f"| [{name}](#{name}) | {view.question} | {verdicts(view)} |" for name, view in runs.items()),
    ]
    for name, view in runs.items():
        lines += section(name, view)
        lines += compared(runs) if name == LORA and FULL in runs else []
        lines += against_usual(view) if name == "send-less" else []
    return "\n".join(lines) + "\n"


def verdicts(run: RunView) -> str:
    return ", ".join(f"{count} {status}" for status, count in run.counts.items() if count)


def section(name: str, run: RunView) -> list[str]:
    """One scenario: its question, the answer, a row for each case, and why any did not pass."""
    found = findings.finding(run)
    lines = ["", f"## {name}", "", f"{run.question} `rig run {run.path}`: {verdicts(run)}.", "", findings.answer(run)]
    if found is not None:
        lines += ["", *table(found)]
    troubled = [case for case in run.cases if case.status != "pass"]
    return lines + ([""] if troubled else []) + [f"* {case.id}: {case.status}: {case.reason}" for case in troubled]


def table(found: Finding) -> list[str]:
    """The figure that the scenario shows, case by case, and how far bytes were off."""
    cited = ", ".join(f"`{name}`" for name in found.formulas)
    return [
        f"| case | k | verdict | {found.quantity.noun} | predicted{f', by {cited}' if cited else ''} "
        "| error | bytes’ error |",
        "|---|---|---|---|---|---|---|",
        *(row(point) for point in found.points),
    ]


def row(point: Point) -> str:
    """One case."""
    case, shown = point.case, point.figure
    cells = [
        case.id, f"{case.dilation:g}", case.status, figures.in_unit(shown.measured, shown.unit),
        figures.in_unit(shown.predicted, shown.unit), figures.percent(shown.error),
        figures.percent(case.figure("payload_tx").error),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def compared(runs: Mapping[str, RunView]) -> list[str]:
    """Full fine-tuning over LoRA, case by case: steps and bytes."""
    lines = [
        "", "### Full fine-tuning against LoRA, 1 Gb/s", "",
        "| nodes | full: step | predicted | LoRA: step | predicted | ratio | predicted | bytes: ratio | parameters’ |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    pairs = [(case, other) for case in runs[FULL].cases for other in runs[LORA].cases if case.id == other.id]
    return lines + [pair for case, other in pairs if (pair := ratios(case, other))]


def ratios(full: CaseView, lora: CaseView) -> str:
    """One number of nodes; nothing where nodes exchange nothing, or a figure is lacking."""
    steps = [case.figure("step_time") for case in (full, lora)]
    sent = [case.figure("payload_tx").measured for case in (full, lora)]
    known = [value for step in steps for value in (step.measured, step.predicted)]
    if None in known or not all(sent):
        return ""
    a, b, c, d = (value or 0.0 for value in known)
    of_bytes = (sent[0] or 0.0) / (sent[1] or 1.0)
    off = figures.percent(of_bytes / PARAMETERS - 1)
    within = "within" if abs(of_bytes / PARAMETERS - 1) <= BYTES_WITHIN else "beyond"
    shown = (*map(figures.seconds, (a, b, c, d)), f"{a / c:.2f}", f"{b / d:.2f}", f"{of_bytes:.1f}")
    return f"| {full.nodes} | {' | '.join(shown)} | {PARAMETERS:.1f}: {off}, {within} {BYTES_WITHIN:.0%} |"


def against_usual(run: RunView) -> list[str]:
    """Time to the target loss on the slow link, with DDP's own all-reduce as one."""
    slow = [case for case in run.cases if case.role != "baseline" and SLOW_LINK in case.id]
    times = {case.id: case.figure("time_to_loss").measured for case in slow}
    usual = next((value for name, value in times.items() if USUAL in name), None)
    if not usual:
        return []
    lines = ["", "### Time to the same loss at 100 Mb/s, DDP as 1.00", "", "| case | seconds | × |", "|---|---|---|"]
    rows = (
        (name, figures.seconds(value), figures.ratio(value / usual if value else None)) for name, value in times.items()
    )
    return lines + [f"| {' | '.join(cells)} |" for cells in rows]


def kept() -> dict[str, Document]:
    """The records there are, by scenario."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))}


def wanted(arguments: Sequence[str]) -> Iterator[Path]:
    """The scenarios to be run."""
    for path in sorted(SCENARIOS.glob("*.yaml")):
        lacking = not arguments and not (KEPT / f"{path.stem}.json").exists()
        if lacking or path.stem in arguments or "--again" in arguments:
            yield path


def main() -> None:
    """Run what is wanted, unless only the page is."""
    arguments = sys.argv[1:]
    for path in wanted(arguments) if "--page" not in arguments else ():
        keep(path)
    PAGE.write_text(page(kept()), encoding="utf-8")


if __name__ == "__main__":
    main()
