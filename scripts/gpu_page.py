"""Writes docs/gpu.md's table from the records of scripts/gpu.sh, and keeps their figures in docs/records/gpu.json.

    python scripts/gpu_page.py RECORD…            keep the figures, write the table
    python scripts/gpu_page.py --print RECORD…    print it instead
    python scripts/gpu_page.py                    write it from the kept figures

A step's share of its GPU and the memory of all nodes on it are NVML's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PAGE, KEPT = HERE / "docs" / "gpu.md", HERE / "docs" / "records" / "gpu.json"
BEGIN, END = "<!-- figures: scripts/gpu_page.py -->\n", "<!-- end of figures -->\n"
COLUMNS = ("case", "over", "verdict", "step (ms)", "predicted", "payload (MB)", "predicted", "GPU busy", "GPU memory")
METRICS = ("step_time", "payload_tx")

Figures = dict[str, Any]


def kept(document: Mapping[str, Any]) -> Figures:
    """What is needed of a record."""
    environment = document["environment"]
    machine = {key: environment[key] for key in ("cpu", "cores", "kernel")}
    resolved = {case["id"]: case for case in document["scenario"]["resolved"]["cases"]}
    return {
        "machine": {**machine, "torch": environment["versions"]["torch"]},
        "seconds": document["summary"].get("seconds"),
        "cases": [_case(case, resolved[case["id"]]) for case in document["cases"]],
    }


def _case(case: Mapping[str, Any], resolved: Mapping[str, Any]) -> Figures:
    figures = {
        f"{metric}_{kind}": case[kind].get(metric, {}).get("value")
        for metric in METRICS
        for kind in ("measured", "predicted")
    }
    host = case["host"]
    told = {"gpu": host.get("gpu", {}), "nccl": host.get("nccl", {})}
    backend = resolved["workload"]["devices"]["backend"]
    return {"id": case["id"], "backend": backend, "status": case["status"], "reason": case["reason"], **figures, **told}


def table(runs: Sequence[Figures]) -> str:
    """The figures as Markdown: a line on the machine, the cases, and in words what failed and how NCCL spoke."""
    machine = runs[0]["machine"]
    cards = {f"{card['name']}, driver {card['driver']}" for run in runs for card in _cards(run)}
    lines = [
        f"{', '.join(sorted(cards)) or 'no GPU'}; {machine['cpu'] or 'an unnamed CPU'}, {machine['cores']} cores, "
        f"Linux {machine['kernel'].split('-')[0]}, PyTorch {machine['torch']}; "
        f"{sum(run['seconds'] or 0 for run in runs):.0f} s in all.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    every = [case for run in runs for case in run["cases"]]
    lines += [_row(case) for case in every]
    said = [_said(case) for case in every if case["nccl"]]
    lines += ["", *said] if said else []
    reasons = [f"* {case['id']} over {case['backend']}: {case['reason']}" for case in every if case["reason"]]
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def _cards(run: Figures) -> list[Figures]:
    return [card for case in run["cases"] for cards in case["gpu"].values() for card in cards]


def _row(case: Figures) -> str:
    cards = [card for of_node in case["gpu"].values() for card in of_node]
    busy = max((card["busy"] for card in cards if card["busy"] is not None), default=None)
    used = max((card["used"] for card in cards), default=None)
    cells = [
        case["id"], case["backend"], case["status"],
        *(_scaled(case[f"step_time_{kind}"], 1e3, ".1f") for kind in ("measured", "predicted")),
        *(_scaled(case[f"payload_tx_{kind}"], 1e-6, ".3f") for kind in ("measured", "predicted")),
        "–" if busy is None else f"{busy:.0%}",
        "–" if used is None else f"{used / 2**30:.1f} GiB",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _scaled(value: float | None, factor: float, form: str) -> str:
    return "–" if value is None else format(value * factor, form)


def _said(case: Figures) -> str:
    nccl = case["nccl"]
    return (
        f"* {case['id']}: NCCL {nccl['version']} says {', '.join(nccl['choices']) or 'nothing of its choices'}, by "
        f"{', '.join(nccl['transports']) or 'no channel'} on {', '.join(nccl['interfaces']) or 'no interface'}."
    )


def written(page: str, figures: str) -> str:
    """The page with the figures between its two marks. Raises ValueError where these are not there."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def main(arguments: Sequence[str]) -> None:
    """See above."""
    files = [Path(one) for one in arguments if one != "--print"]
    runs = [kept(json.loads(file.read_text(encoding="utf-8"))) for file in files]
    if "--print" in arguments:
        sys.stdout.write(table(runs))
        return
    if runs:
        KEPT.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    figures = table(json.loads(KEPT.read_text(encoding="utf-8")))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
