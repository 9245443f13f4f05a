"""How true links are, measured: `make bench-links` rewrites docs/fidelity.md, its picture and its record.

    python -m tests.bench.links                                 measure all parts, keep the record, write the page
    python -m tests.bench.links --only loss --only bring-up     measure these again, keep the rest
    python -m tests.bench.links --page                          write the page from the kept record
    python -m tests.bench.links --rates 1gbit --delays 0ms 10ms --repeats 1 --out /tmp/try      a quick look

About fifteen minutes on a quiet machine, as root for Mininet and lab docker. Nothing is measured twice to please: every
reading counts, and the page shows the median and the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

from rig import plan, record, scenario
from rig.formulas.timing import goodput
from rig.lab import Lab, Order, open_lab
from rig.lab.due import due
from rig.model import WAYS, Case
from tests import cases
from tests.bench import bring_up, links_page
from tests.bench.plain import PLAIN, mininet, mininet_lack
from tests.ruler import rulers

DOCS = Path(__file__).resolve().parents[2] / "docs"
RATES = ("10mbit", "100mbit", "1gbit", "2.5gbit", "10gbit")
DELAYS = ("0ms", "1ms", "10ms", "50ms")  # each way, of the one cable: the RTT asked for is twice that
LOSSES = ("0.1%", "1%")
COUNT_FOR, COUNT = 6.0, 40_000  # seconds and packets of counting, a reading
SIZES = (("netns", 32), ("mininet", 32), ("netns", 64), ("docker", 8))  # labs that come up, by number of nodes

SCENARIO = """\
name: links
nodes: 1
link: {rate: 1gbit}
workload: {kind: allreduce, size: 1MiB, steps: 2, warmup: 2}
"""

Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What to measure of all there is."""

    rates: Sequence[str]
    delays: Sequence[str]
    repeats: int


def cell(*settings: str) -> Case:
    """One link as a user's scenario gets it: burst, queue, buffers and dilation are the plan's."""
    written = scenario.loads(SCENARIO, "links.yaml", settings)
    return plan.expand(written, os.cpu_count() or 1)[0]


def order(case: Case) -> Order:
    return Order(record.new_run_id(), case, lambda text: None)


def alternating(number: int) -> Literal["up", "down"]:
    """Readings of both directions by turns; they are alike, and the median stands for both."""
    return WAYS[number % 2]


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────
def delays(wanted: Wanted) -> list[Row]:
    """TCP goodput and RTT of every rate and delay."""
    return [delayed(rate, delay, wanted.repeats) for rate in wanted.rates for delay in wanted.delays]


def delayed(rate: str, delay: str, repeats: int) -> Row:
    """One cell; emulated bit/s and seconds."""
    case = cell(f"link.rate={rate}", f"link.delay={delay}")
    k, link = case.dilation, case.nodes[0].link
    this, streams, trips = order(case), [], []
    with open_lab("netns", this) as lab, rulers(lab, case, this.run) as by_name:
        ruler = by_name["n0"]
        asked = due(link, "up", ruler.shaper)
        for number in range(repeats):
            trips.append(median(ruler.rtt()) / k)
            streams.append(ruler.goodput(alternating(number)) * k)
    product = int(link.up.rate) * asked["rtt"] / 8
    return {
        "rate": rate, "delay": delay, "dilation": k, "shaper": ruler.shaper, "asked": asked, "goodput": streams,
        "rtt": trips, "window_bound": int(case.tcp.buffer) < 2 * product,
    }  # fmt: skip


def losses(wanted: Wanted) -> list[Row]:
    """Delivery of UDP at 80 % of every rate, and what TCP makes of such a link."""
    cells = enumerate(product(wanted.rates, LOSSES))
    return [lossy(rate, loss, number, wanted.repeats) for number, (rate, loss) in cells]


def lossy(rate: str, loss: str, seed: int, repeats: int) -> Row:
    """One cell, with a seed of its own, else every cell would draw the same; packets of all readings together."""
    case = cell(f"link.rate={rate}", f"link.loss={loss}", f"seed={seed}")
    k, link = case.dilation, case.nodes[0].link
    this, streams, sent, lost, overflowed = order(case), [], 0, 0, 0
    count = min(COUNT, int(COUNT_FOR * 0.8 * link.up.rate / k / 8 / 1538))
    with open_lab("netns", this) as lab, rulers(lab, case, this.run) as by_name:
        ruler = by_name["n0"]
        asked = due(link, "up", ruler.shaper)
        for number in range(repeats):
            found = ruler.counted(alternating(number), count)
            sent, overflowed = sent + found["sent"], overflowed + found["overflowed"]
            lost += found["sent"] - found["received"] - found["overflowed"]
            streams.append(ruler.goodput(alternating(number)) * k)
    return {
        "rate": rate, "loss": loss, "dilation": k, "shaper": ruler.shaper, "asked": asked, "sent": sent, "lost": lost,
        "overflowed": overflowed, "goodput": streams,
    }  # fmt: skip


def plain(wanted: Wanted) -> list[Row]:
    """TCP goodput without delay or loss, and in real time, as the rig, tc and Mininet shape it."""
    ways: dict[str, Callable[[Order], AbstractContextManager[Lab]]] = {
        "rig": lambda this: open_lab("netns", this),
        **{name: opener for name, opener in PLAIN.items() if name != "mininet" or not mininet_lack()},
    }
    return [unimpaired(name, ways[name], rate, wanted.repeats) for rate in wanted.rates for name in ways]


def unimpaired(name: str, opener: Callable[[Order], AbstractContextManager[Lab]], rate: str, repeats: int) -> Row:
    """One cell: real time is emulated time."""
    case = cell(f"link.rate={rate}", "dilation=1")
    this, link = order(case), case.nodes[0].link
    with opener(this) as lab, rulers(lab, case, this.run) as by_name:
        streams = [by_name["n0"].goodput(alternating(number)) for number in range(repeats)]
        trip = median(by_name["n0"].rtt())
    asked = {framing: goodput(link.up.rate, link.mtu, framing) for framing in ("ethernet", "none")}
    return {"by": name, "rate": rate, "asked": asked, "goodput": streams, "rtt": trip}


def bring_ups(wanted: Wanted) -> list[Row]:
    """Seconds until all links of a lab are shaped and open. By turns, so that a busy moment hits all alike."""
    there = {*bring_up.labs(), *(() if mininet_lack() else ("mininet",))}
    rows: list[Row] = [{"lab": lab, "nodes": nodes, "up": []} for lab, nodes in SIZES if lab in there]
    for _ in range(wanted.repeats):
        for row in rows:
            row["up"].append(once(row["lab"], row["nodes"]))
    return rows


def once(lab: str, nodes: int) -> float:
    """The rig's time is all of it; Mininet's is what it takes once its Python runs and has imported it."""
    if lab != "mininet":
        return bring_up.once(lab, nodes)[0]
    with mininet(order(cases.case(nodes))) as built:
        return float(built.facts["seconds"])


PARTS: Mapping[str, Callable[[Wanted], list[Row]]] = {
    "delay": delays, "loss": losses, "plain": plain, "bring-up": bring_ups,
}  # fmt: skip


# ── running them ─────────────────────────────────────────────────────────────────────────────────────
def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.links", description="How true links are, measured.")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part; may be given several times")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the page from the kept record")
    parser.add_argument("--rates", nargs="+", default=RATES, metavar="RATE")
    parser.add_argument("--delays", nargs="+", default=DELAYS, metavar="DELAY")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder that gets the page, docs/ by default")
    return parser.parse_args()


def main() -> None:
    """Measure part by part, saving after each; then write page and picture."""
    given = options()
    kept = given.out / "records" / "links.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"parts": {}}
    for part in () if given.page else given.only or PARTS:
        began = time.monotonic()
        rows = PARTS[part](Wanted(given.rates, given.delays, given.repeats))
        print(f"{part}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        found |= {"environment": record.environment(), "load": os.getloadavg(), "repeats": given.repeats}
        found["parts"][part] = record.plain(rows)
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    links_page.write(given.out, found)


if __name__ == "__main__":
    main()
