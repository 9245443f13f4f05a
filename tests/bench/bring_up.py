"""How long a lab takes to come up, shaped and read back, and to go: `make bench-lab` rewrites docs/bring-up.md.

    python tests/bench/bring_up.py            measure, keep the record, write the page
    python tests/bench/bring_up.py --page     write the page from the kept record

Medians of five; run it on a quiet machine, as root for lab docker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rig import record
from rig.lab import Order, choose, open_lab
from tests.cases import case

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORD, PAGE = DOCS / "records" / "bring-up.json", DOCS / "bring-up.md"
REPEATS = 5
SIZES = {"netns": (2, 8, 32, 64), "docker": (2, 8)}
TARGETS = {("netns", 64): (2.0, 0.5), ("docker", 8): (4.0, None)}  # seconds up, down


def labs() -> tuple[str, ...]:
    """The labs this machine has; says why docker is left out."""
    best, why = choose("auto", lambda text: None)
    print(why, file=sys.stderr)
    return ("netns", "docker") if best == "docker" else ("netns",)


def once(kind: str, nodes: int) -> tuple[float, float]:
    """Seconds until every link is open, and seconds until all is gone."""
    order = Order(record.new_run_id(), case(nodes), lambda text: None)
    began = time.monotonic()
    with open_lab(kind, order):
        opened = time.monotonic()
    return opened - began, time.monotonic() - opened


def measure() -> dict[str, Any]:
    """All sizes in all labs that this machine has."""
    rows = []
    for kind, sizes in SIZES.items():
        if kind == "docker" and kind not in labs():
            continue
        once(kind, 2)  # the image, and the files of pyroute2, are in the cache from here on
        for nodes in sizes:
            samples = [once(kind, nodes) for _ in range(REPEATS)]
            up, down = ([sample[way] for sample in samples] for way in (0, 1))
            rows.append({"lab": kind, "nodes": nodes, "up": up, "down": down})
            print(f"{kind} {nodes}: up {median(up):.3f} s, down {median(down):.3f} s", file=sys.stderr)
    return {"environment": record.environment(), "load": os.getloadavg(), "rows": rows}


def page(found: dict[str, Any]) -> str:
    """The page, from the record alone."""
    machine = found["environment"]
    lines = [
        "# Bring-up and tear-down",
        "",
        f"Written by `make bench-lab` from `docs/records/{RECORD.name}`: {machine['cores']} cores, "
        f"Linux {machine['kernel'].split('-')[0]}. Seconds, median of {REPEATS} (least – most). "
        "Up: nodes made, links shaped both ways, read back, compared, opened.",
        "",
        "| lab | nodes | up | down | target |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        up, down = (f"{median(row[w]):.2f} ({min(row[w]):.2f} – {max(row[w]):.2f})" for w in ("up", "down"))
        target = TARGETS.get((row["lab"], row["nodes"]))
        wanted = f"up {target[0]:g}" + (f", down {target[1]:g}" if target[1] else "") if target else ""
        lines.append(f"| {row['lab']} | {row['nodes']} | {up} | {down} | {wanted} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure unless only the page is wanted."""
    if "--page" not in sys.argv:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
