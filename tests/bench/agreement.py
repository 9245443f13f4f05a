"""How near the bandwidth scenario comes to its predictions, in each lab, and what the rig itself costs.

    python tests/bench/agreement.py            run it in every lab there is, keep the figures, write docs/agreement.md
    python tests/bench/agreement.py --page     write the page from the kept figures

`make bench-agreement`; ten minutes on a quiet machine, as root for lab docker.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from rig import pipeline, progress, record, scenario
from tests.bench.bring_up import labs

HERE = Path(__file__).resolve().parents[2]
RECORD, PAGE = HERE / "docs" / "records" / "agreement.json", HERE / "docs" / "agreement.md"


def run(lab: str) -> dict[str, Any]:
    """One run of the scenario: what is needed of its record."""
    with tempfile.TemporaryDirectory() as folder, progress.watch(live=False) as watch:
        request = pipeline.Request(lab, Path(folder))
        work = pipeline.prepare(scenario.load(HERE / "scenarios" / "bandwidth.yaml"), request, watch)
        pipeline.run(work, watch)
    document = work.book.document
    return {
        "lab": lab,
        "environment": document["environment"],
        "seconds": document["summary"]["seconds"],
        "useful": sum(useful(case) for case in document["cases"]),
        "cases": [shortened(case) for case in document["cases"]],
    }


def useful(case: dict[str, Any]) -> float:
    """Real seconds a case spent in its steps, warm-up included, and in probing."""
    steps = case["raw"]["steps"]
    ranks = len({step["rank"] for step in steps})
    return float(sum(step["end"] - step["start"] for step in steps) / ranks + case["host"]["spent"]["probe"])


def shortened(case: dict[str, Any]) -> dict[str, Any]:
    """One case's figures."""

    def pick(kind: str, metric: str) -> Any:
        return case[kind].get(metric, {}).get("value")

    return {
        "id": case["id"], "nodes": case["params"]["nodes"], "dilation": case["dilation"], "status": case["status"],
        **{f"{metric}_{kind}": pick(kind, metric) for metric in METRICS for kind in ("measured", "predicted")},
        "late": case["measured"]["lateness"]["value"] / case["measured"]["step_time"]["value"],
        "links": [link["measured"]["goodput"] / link["asked"]["goodput"] - 1 for link in case["links"]],
    }  # fmt: skip


METRICS = ("step_time", "payload_tx", "speedup")


def made_on(environment: dict[str, Any]) -> str:
    """The machine that figures were measured on, in a record's words."""
    kernel, torch = environment["kernel"].split("-")[0], environment["versions"]["torch"]
    return f"{environment['cores']} cores, Linux {kernel}, PyTorch {torch}"


def page(runs: list[dict[str, Any]]) -> str:
    """The page, from the kept figures alone."""
    lines = [
        "# Agreement of the labs",
        "",
        f"Written by `make bench-agreement` from `docs/records/{RECORD.name}`: "
        f"{made_on(runs[0]['environment'])}. k is the dilation that `auto` found; where it is 1, the figure is "
        "undilated. Nothing is fitted.",
    ]
    for found in runs:
        lines += section(found)
    if len(runs) == 2:
        lines += agreement(*runs)
    return "\n".join(lines) + "\n"


def section(found: dict[str, Any]) -> list[str]:
    """One lab's table and sums."""
    many = [case for case in found["cases"] if case["nodes"] > 1]
    errors = [off(case, "step_time") for case in many]
    links = [abs(link) for case in found["cases"] for link in case["links"]]
    lines = [
        "", f"## Lab {found['lab']}", "",
        f"* Step time, N ≥ 2: mean error {fmean(map(abs, errors)):.2%}, worst {max(map(abs, errors)):.2%}.",
        f"* Payload, N ≥ 2: worst error {max(abs(off(case, 'payload_tx')) for case in many):.4%}.",
        f"* Link goodput against the wire arithmetic: worst {max(links):.2%}, mean {fmean(links):.2%}.",
        f"* Wall time {found['seconds']:.0f} s, of which {found['useful']:.0f} s in steps and probes: "
        f"the rig's own cost is a factor of {found['seconds'] / found['useful']:.2f}.",
        "",
        "| case | k | verdict | step (ms) | predicted | error | speed-up | predicted | late |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    return lines + [row(case) for case in found["cases"]]


def row(case: dict[str, Any]) -> str:
    """One case."""
    figures = [
        case["id"], case["dilation"], case["status"],
        f"{case['step_time_measured'] * 1e3:.1f}", f"{case['step_time_predicted'] * 1e3:.1f}",
        f"{off(case, 'step_time'):+.2%}", f"{case['speedup_measured']:.3f}", f"{case['speedup_predicted']:.3f}",
        f"{case['late']:.2%}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, figures))} |"


def agreement(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """How far the labs are apart in step time."""
    apart = {
        mine["id"]: mine["step_time_measured"] / its["step_time_measured"] - 1
        for mine, its in zip(one["cases"], other["cases"], strict=True)
    }
    worst = max(apart, key=lambda name: abs(apart[name]))
    return [
        "",
        f"## {one['lab']} against {other['lab']}",
        "",
        f"Step times differ by at most {abs(apart[worst]):.2%} ({worst}).",
    ]


def off(case: dict[str, Any], metric: str) -> float:
    """Relative error of a case's figure."""
    return float(case[f"{metric}_measured"] / case[f"{metric}_predicted"] - 1)


def main() -> None:
    """Run unless only the page is wanted."""
    if "--page" not in sys.argv:
        RECORD.parent.mkdir(exist_ok=True)
        runs = []
        for lab in labs():
            runs.append(record.plain(run(lab)))
            RECORD.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
