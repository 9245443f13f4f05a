"""How near the prediction scenario comes to its predictions: 36 cells, nothing fitted.

    python -m tests.bench.prediction            run what the kept figures lack, write docs/accuracy.md
    python -m tests.bench.prediction --again    run all of it
    python -m tests.bench.prediction --page     write the page from the kept figures

`make bench-prediction`; about an hour on a quiet machine of two cores. The cells with two nodes at 1 Gb/s or less are
run a second time without dilation, unless they had none. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rig import pipeline, progress, record, scenario
from rig.lab.ceiling import here
from rig.model import Case
from rig.plan import expand
from tests.bench.agreement import HERE, made_on, off, shortened

RECORD, PAGE = HERE / "docs" / "records" / "prediction.json", HERE / "docs" / "accuracy.md"
SCENARIO = HERE / "scenarios" / "accuracy" / "prediction.yaml"
SLOW = 1e9  # bit/s: up to here two nodes run undilated as well
TARGETS = {0.0: (0.005, 0.015), 0.005: (0.03, 0.08)}  # round trip (s) → mean and worst error of step time, of speed-up
PAYLOAD = 1e-4
TRIES = 3

Cell = dict[str, Any]
Say = tuple[str, ...]


def run(found: dict[str, Any], overrides: Say, wanted: Callable[[Case], bool]) -> Iterator[None]:
    """Those cases that are wanted and have no verdict yet, with their one-node cases, group by group; `found` grows
    after each. What was disturbed gets two more chances.
    """
    for _ in range(TRIES):
        for one_node in dict.fromkeys(case.baseline for case in planned(overrides) if wanted(case)):
            has = {cell["id"] for cell in found.setdefault("cells", []) if judged(cell)}
            group = {case.id for case in planned(overrides) if case.baseline == one_node and wanted(case)}
            if group - has:
                some(found, overrides, (group - has) | {one_node})
                yield


def planned(overrides: Say) -> tuple[Case, ...]:
    return expand(scenario.load(SCENARIO, overrides), *here())


def some(found: dict[str, Any], overrides: Say, names: set[str]) -> None:
    """Run the cases of these names, and file what is needed of their record."""
    with tempfile.TemporaryDirectory() as folder, progress.watch(live=False) as watch:
        work = pipeline.prepare(scenario.load(SCENARIO, overrides), pipeline.Request("netns", Path(folder)), watch)
        work = replace(work, cases=tuple(case for case in work.cases if case.id in names))
        pipeline.run(work, watch)
    document, resolved = work.book.document, {case.id: case for case in work.cases}
    found["environment"] = document["environment"]
    found["seconds"] = found.get("seconds", 0.0) + document["summary"]["seconds"]
    cells = {one["id"]: one for one in found["cells"]}
    cells |= {case["id"]: cell(case, resolved[case["id"]]) for case in document["cases"]}
    found["cells"] = list(cells.values())


def cell(found: dict[str, Any], case: Case) -> Cell:
    """One case's figures, or why it has none."""
    about = {"id": case.id, "nodes": case.size, "rtt": round_trip(case), "dilation": case.dilation}
    if not {"step_time", "lateness"} <= set(found["measured"]):
        return {**about, "status": found["status"], "reason": found["reason"]}
    host = {name: found["host"].get(name) for name in ("cpu_busy", "cpu_stolen")}
    return {**about, **shortened(found), "reason": found["reason"], **host}


def round_trip(case: Case) -> float:
    """From node to node over one switch (s)."""
    link = case.nodes[0].link
    return 2 * (link.up.delay + link.down.delay) / 1e9


def many(case: Case) -> bool:
    """What the scenario is about; its one-node cases come along."""
    return case.size > 1


def two_slow(case: Case) -> bool:
    """Two nodes on links no faster than 1 Gb/s."""
    return case.size == 2 and max(link.up.rate for link in case.links) <= SLOW


def page(kept: dict[str, Any]) -> str:
    """The page, from the kept figures alone."""
    dilated = kept["dilated"]
    lines = [
        "# Accuracy of predictions",
        "",
        f"Written by `make bench-prediction` from `docs/records/{RECORD.name}`, a run of "
        f"`scenarios/accuracy/prediction.yaml` in lab netns: {made_on(dilated['environment'])}, "
        f"{dilated['seconds'] / 60:.0f} minutes. "
        "k is the dilation that `auto` found. Predictions are nominal figures of model and link; nothing is fitted.",
        "",
        "| round trip | cells | figure | mean error | allowed | worst error | allowed |",
        "|---|---|---|---|---|---|---|",
    ]
    cells = [one for one in kept["dilated"]["cells"] if one["nodes"] > 1]
    for rtt, allowed in TARGETS.items():
        lines += [summary(cells, rtt, metric, allowed) for metric in ("step_time", "speedup")]
    payload = max((abs(off(one, "payload_tx")) for one in cells if "payload_tx_measured" in one), default=0.0)
    left_out = [one for one in cells if not judged(one)]
    if len(cells) < (asked := sum(case.size > 1 for case in planned(()))):
        lines += ["", f"{len(cells)} of {asked} cells have been measured so far."]
    lines += ["", f"Payload: worst error {payload:.4%} ({PAYLOAD:.2%} allowed)."]
    lines += [f"Not counted: {one['id']}: {one['status']}: {one['reason']}" for one in left_out]
    lines += ["", "## Every cell", "", *table(kept["dilated"]["cells"])]
    if "undilated" in kept:
        lines += [
            "",
            "## Two nodes at 1 Gb/s or less, undilated (k = 1)",
            "",
            *table(_of_two(kept["undilated"]["cells"])),
        ]
    return "\n".join(lines) + "\n"


def _of_two(cells: Sequence[Cell]) -> list[Cell]:
    slow = {case.id for case in planned(()) if two_slow(case)}
    return [one for one in cells if one["id"] in slow]


def judged(one: Cell) -> bool:
    """Whether the rig found network and host good enough to say pass or fail."""
    return one["status"] in ("pass", "fail")


def summary(cells: Sequence[Cell], rtt: float, metric: str, allowed: tuple[float, float]) -> str:
    """One line of the table of targets."""
    errors = [abs(off(one, metric)) for one in cells if judged(one) and abs(one["rtt"] - rtt) < 1e-6]
    if not errors:
        return f"| {rtt * 1e3:g} ms | 0 | {metric} | | | | |"
    mean, worst = allowed
    return (
        f"| {rtt * 1e3:g} ms | {len(errors)} | {metric} | {fmean(errors):.2%} | {mean:.1%} "
        f"| {max(errors):.2%} | {worst:.1%} |"
    )


def table(cells: Sequence[Cell]) -> list[str]:
    """A row for each case that has figures."""
    lines = [
        "| case | k | verdict | step (ms) | predicted | error | speed-up | error | late | CPU busy |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [row(one) for one in cells if "step_time_measured" in one]


def row(one: Cell) -> str:
    """One case."""
    figures = [
        one["id"], one["dilation"], one["status"],
        f"{one['step_time_measured'] * 1e3:.1f}", f"{one['step_time_predicted'] * 1e3:.1f}",
        f"{off(one, 'step_time'):+.2%}",
        *((f"{one['speedup_measured']:.3f}", f"{off(one, 'speedup'):+.2%}") if one["speedup_measured"] else ("", "")),
        f"{one['late']:.2%}", f"{one['cpu_busy'] or 0:.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, figures))} |"


def main() -> None:
    """Run what the kept figures lack unless only the page is wanted."""
    if "--again" in sys.argv:
        RECORD.unlink(missing_ok=True)
    kept: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if "--page" not in sys.argv:
        for _ in run(kept.setdefault("dilated", {}), (), many):
            keep(kept)
        plain = [one for one in kept["dilated"]["cells"] if one["dilation"] == 1 and judged(one)]
        kept.setdefault("undilated", {"cells": plain})
        for _ in run(kept["undilated"], ("dilation=1",), two_slow):
            keep(kept)
        keep(kept)
    PAGE.write_text(page(kept), encoding="utf-8")


def keep(kept: dict[str, Any]) -> None:
    """As soon as there is something: an hour's figures must not be lost to what comes after."""
    RECORD.write_text(json.dumps(record.plain(kept), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
