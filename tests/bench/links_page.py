"""docs/fidelity.md and its picture, from the record of `make bench-links` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rig.formulas import chance

Row = Mapping[str, Any]

GOODPUT = 0.01  # of the arithmetic
RTT, RTT_SLACK = 0.01, 0.2e-3  # of what was asked, or seconds: whichever is more
FAMILY = 0.99  # confidence that no cell of a right emulator lies outside its interval
NAMES = {"rig": "rig", "htb": "tc htb", "tbf": "tc tbf", "mininet": "Mininet"}
TARGETS = {("netns", 64): 1.0, ("docker", 8): 3.0}  # seconds
AHEAD = 1.3  # times as fast as Mininet
TICKS = (-100, -10, -1, 0, 1, 10, 100)  # percent, of the picture's left half


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """The page, and the picture beside it where there is something to draw."""
    parts = found["parts"]
    lines = head(found)
    for part, section in SECTIONS.items():
        if part in parts:
            lines += ["", *section(parts[part], parts)]
    (folder / "fidelity.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if "delay" in parts and "plain" in parts:
        draw(folder / "fidelity.svg", parts["delay"], parts["plain"])


def head(found: Mapping[str, Any]) -> list[str]:
    machine = found["environment"]
    drawn = "delay" in found["parts"] and "plain" in found["parts"]
    picture = ["", "![Goodput against the arithmetic](fidelity.svg)"] if drawn else []
    return [
        "# Fidelity of links",
        "",
        f"Written by `make bench-links` from `docs/records/links.json`: {machine['cores']} cores, Linux "
        f"{machine['kernel'].split('-')[0]}, lab netns, one node and its switch. Medians of {found['repeats']} "
        "readings (least – most), none left out. All figures are emulated ones. k is the dilation that "
        "`dilation: auto` chose: where it is above 1, this host cannot carry the link in real time, and does it k "
        "times slower.",
        *picture,
    ]


# ── rate and delay ───────────────────────────────────────────────────────────────────────────────────
def rates(rows: Sequence[Row], _: Mapping[str, Any]) -> list[str]:
    ideal = {row["rate"]: median(row["rtt"]) for row in rows if row["delay"] == "0ms"}
    streams = [row for row in rows if not row["window_bound"]]
    true = sum(abs(off(row)) <= GOODPUT for row in streams)
    near = sum(rtt_near(row, ideal.get(row["rate"], 0.0)) for row in rows)
    lines = [
        "## Rate and delay",
        "",
        f"* TCP goodput within {GOODPUT:.0%} of the arithmetic: {true} of {len(streams)} cells"
        f"{window_note(rows)}. Worst {max(abs(off(row)) for row in streams):.2%}.",
        f"* RTT within {RTT_SLACK * 1e3:g} ms or {RTT:.0%} of what was asked, added to the RTT that the same rate has "
        f"without delay: {near} of {len(rows)} cells.",
        "",
        "The delay is each way, so the RTT asked is twice it. Streams go up and down by turns.",
        "",
        "| rate | delay | k | shaper | goodput due (Mb/s) | measured | error | RTT asked (ms) | measured | more |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [rate_row(row, ideal.get(row["rate"], 0.0)) for row in rows]


def rate_row(row: Row, ideal: float) -> str:
    asked, streams, trip = row["asked"], row["goodput"], median(row["rtt"])
    miss = "" if row["window_bound"] or abs(off(row)) <= GOODPUT else " **over**"
    late = "" if rtt_near(row, ideal) else " **over**"
    bound = " (window-bound)" if row["window_bound"] else ""
    return table_row(
        row["rate"], row["delay"], row["dilation"], row["shaper"], f"{asked['goodput'] / 1e6:.2f}",
        spread(streams, 1e6, 2), f"{off(row):+.2%}{miss}{bound}", f"{asked['rtt'] * 1e3:g}",
        spread(row["rtt"], 1e-3, 3), f"{(trip - asked['rtt']) * 1e3:+.3f} ms{late}",
    )  # fmt: skip


def off(row: Row) -> float:
    """Relative error of the median goodput."""
    return float(median(row["goodput"]) / row["asked"]["goodput"] - 1)


def rtt_near(row: Row, ideal: float) -> bool:
    """`ideal`: the RTT of the same rate without delay, which is the hosts' own work."""
    asked = row["asked"]["rtt"]
    return bool(abs(median(row["rtt"]) - asked - ideal) <= max(RTT_SLACK, RTT * asked))


def window_note(rows: Sequence[Row]) -> str:
    bound = sum(row["window_bound"] for row in rows)
    why = "the kernel's largest socket buffer, 2 GiB, holds less than twice what is in flight"
    return f"; {bound} more are window-bound: {why}" if bound else ""


# ── loss ─────────────────────────────────────────────────────────────────────────────────────────────
def losses(rows: Sequence[Row], _: Mapping[str, Any]) -> list[str]:
    confidence = 1 - (1 - FAMILY) / len(rows)
    right = sum(chance.likely(row["lost"], row["sent"], row["asked"]["loss"], confidence) for row in rows)
    lines = [
        "## Loss",
        "",
        f"* UDP at 80 % of the rate: packets lost within the binomial interval in {right} of {len(rows)} cells. The "
        f"intervals are those of {FAMILY:.0%} confidence in all cells together ({confidence:.3%} in each).",
        "",
        "TCP goodput is what cubic makes of such a link, and not judged.",
        "",
        "| rate | loss | k | shaper | packets | lost | interval | share | TCP goodput (Mb/s) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [loss_row(row, confidence) for row in rows]


def loss_row(row: Row, confidence: float) -> str:
    low, high = interval(row["sent"], row["asked"]["loss"], confidence)
    miss = "" if low <= row["lost"] <= high else " **out**"
    return table_row(
        row["rate"], row["loss"], row["dilation"], row["shaper"], row["sent"], f"{row['lost']}{miss}",
        f"{low} – {high}", f"{row['lost'] / row['sent']:.3%}", spread(row["goodput"], 1e6, 1),
    )  # fmt: skip


def interval(sent: int, share: float, confidence: float) -> tuple[int, int]:
    """The counts that may well come of a share: outwards from the mean to the last likely one."""
    low = high = round(sent * share)
    while low > 0 and chance.likely(low - 1, sent, share, confidence):
        low -= 1
    while high < sent and chance.likely(high + 1, sent, share, confidence):
        high += 1
    return low, high


# ── others ───────────────────────────────────────────────────────────────────────────────────────────
def others(rows: Sequence[Row], _: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys(row["by"] for row in rows)
    lines = [
        "## Side by side: no delay, no loss, in real time",
        "",
        "TCP goodput over that of a real cable of the rate (1448 of 1538 bytes), all read by the same probe with the "
        "same congestion control (cubic). *tc htb*: `htb default 1`, `class … htb rate R`, tc's own burst. *tc tbf*: "
        "`tbf rate R burst 32kbit latency 400ms`, as its manual shows. *Mininet*: `TCLink(bw=R)` on a `LinuxBridge`; "
        "it passes over rates above 1000 Mbit/s. At best tc's own way of counting gives 1448 of 1514 bytes, +1.59 %.",
        "",
        table_row("rate", *(NAMES[name] for name in names)),
        "|---" * (1 + len(names)) + "|",
    ]
    for rate in dict.fromkeys(row["rate"] for row in rows):
        by = {row["by"]: row for row in rows if row["rate"] == rate}
        lines.append(table_row(rate, *(against_cable(by[name]) for name in names)))
    return lines


def against_cable(row: Row) -> str:
    errors = [stream / row["asked"]["ethernet"] - 1 for stream in row["goodput"]]
    return f"{median(errors):+.2%} ({min(errors):+.1%} – {max(errors):+.1%})"


def bring_ups(rows: Sequence[Row], _: Mapping[str, Any]) -> list[str]:
    times = {(row["lab"], row["nodes"]): row["up"] for row in rows}
    lines = [
        "## Bring-up",
        "",
        "Seconds until every link is shaped both ways and open. The rig's include starting its processes, and reading "
        "all links back; Mininet's (TCLink, LinuxBridge) begin when its Python has imported it. Taken by turns.",
        "",
        "| lab | nodes | up | target |",
        "|---|---|---|---|",
    ]
    for (lab, nodes), up in times.items():
        target = f"{TARGETS[lab, nodes]:g}" if (lab, nodes) in TARGETS else ""
        lines.append(table_row(f"rig {lab}" if lab != "mininet" else "Mininet", nodes, spread(up, 1, 2), target))
    if ("mininet", 32) in times and ("netns", 32) in times:
        ratio = median(times["mininet", 32]) / median(times["netns", 32])
        lines += ["", f"At 32 nodes the rig is {ratio:.1f} times as fast as Mininet (target {AHEAD:g})."]
    return lines


SECTIONS = {"delay": rates, "loss": losses, "plain": others, "bring-up": bring_ups}


# ── words and lines ──────────────────────────────────────────────────────────────────────────────────
def table_row(*values: object) -> str:
    return f"| {' | '.join(map(str, values))} |"


def spread(values: Iterable[float], unit: float, digits: int) -> str:
    """Median (least – most), in a unit."""
    shown = [value / unit for value in values]
    return f"{median(shown):.{digits}f} ({min(shown):.{digits}f} – {max(shown):.{digits}f})"


def draw(path: Path, delayed: Sequence[Row], plain: Sequence[Row]) -> None:
    """Left: goodput against a real cable's by everybody. Right: the rig's, by delay, with the band it must keep."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "rig", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        curves(left, plain, "by", lambda row: median(row["goodput"]) / row["asked"]["ethernet"] - 1)
        left.set_title("no delay, no loss, in real time")
        left.set_yscale("symlog", linthresh=1)
        left.set_yticks(TICKS, [f"{tick:+d}" if tick else "0" for tick in TICKS])
        curves(right, delayed, "delay", off)
        right.set_title("the rig, by delay each way")
        right.axhspan(-100 * GOODPUT, 100 * GOODPUT, alpha=0.12)
        for axes in (left, right):
            axes.axhline(0, color="grey", linewidth=0.8)
            axes.set_ylabel("goodput against the arithmetic (%)")
            axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def curves(axes: Any, rows: Sequence[Row], key: str, error: Any) -> None:
    """One line a value of `key`, over the rates."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    for name in dict.fromkeys(row[key] for row in rows):
        at = {row["rate"]: 100 * error(row) for row in rows if row[key] == name}
        axes.plot([rates.index(rate) for rate in at], list(at.values()), marker="o", label=NAMES.get(name, name))
    axes.set_xticks(range(len(rates)), rates)
