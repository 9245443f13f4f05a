"""Advice as people read it, in 80 columns, and as JSON data. The first sentence answers the question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from rig import whatif
from rig.advice import HARDLY_MORE, NO_GAIN, Advice, Outcome, Weighed, Worth
from rig.breakeven import NEARLY, TARGET, BreakEven, break_even
from rig.formulas.predict import unknown
from rig.plan import resolved
from rig.record import plain
from rig.remedies import KINDS, speed
from rig.report import figures

WIDTH = 80
NAME = 19  # characters of a change's name, before the figures
COLUMNS = {"batch": 6, "step": 8, "samples/s": 9, "gain": 7, "a step": 8, "a sample": 8, "exposed": 7}
TIMELESS = ("batch", "a step", "a sample")  # what is known where no time is


def text(name: str, advice: Advice) -> str:
    """Everything: the answer, the case as it is, each kind of change with what it means, and where things turn."""
    turns = break_even(advice.case)
    lines = [*_folded(_answer(advice)), "", *_table(name, advice), *_others(advice)]
    if turns:
        lines += ["", "what one thing would have to be, everything else as it is:", *_turns(turns)]
    return "\n".join([*lines, "", *_folded(_assumed(advice))])


def document(name: str, advice: Advice) -> dict[str, Any]:
    """All of it as JSON data: every change in rank, with every prediction and its inputs."""
    turns = break_even(advice.case)
    return dict(
        plain(
            {
                "scenario": name,
                "case": resolved(advice.case),
                "answer": _answer(advice),
                "now": _outcome(advice, advice.now),
                "changes": [_change(advice, one) for one in advice.changes],
                "together": _change(advice, advice.together) if advice.together else None,
                "break_even": asdict(turns) if turns else None,
                "assumed": _assumed(advice),
            }
        )
    )


def _change(advice: Advice, one: Weighed) -> dict[str, Any]:
    kinds = [option.kind for option in one.options]
    told = {"name": one.name, "kinds": kinds, "means": [KINDS[kind] for kind in kinds], "worth": one.worth}
    return {**told, "gain": one.gain, **_outcome(advice, one.outcome)}


def _outcome(advice: Advice, outcome: Outcome) -> dict[str, Any]:
    return {
        "nodes": outcome.nodes, "samples": outcome.samples, "step_time": outcome.step,
        "throughput": outcome.throughput, "job_seconds": _job(advice, outcome), "exposed_share": outcome.share,
        "sent_per_step": outcome.sent, "sent_per_sample": outcome.sent_per_sample,
        "predicted": {name: asdict(figure) for name, figure in outcome.predicted.items()},
    }  # fmt: skip


def _job(advice: Advice, outcome: Outcome) -> float | None:
    return advice.work / outcome.throughput if advice.work and outcome.throughput else None


# ── the answer ───────────────────────────────────────────────────────────────────────────────────────
def _answer(advice: Advice) -> str:
    now, helping = advice.now, advice.of_worth("helps")
    if now.throughput is None:
        return f"{_who(advice)} send {figures.size(now.sent)} a node and step; how long that takes is not known."
    first = f"{_who(advice)} {_stands(advice)}."
    if not helping and advice.together:
        both = f"{advice.together.name} together would ({_times(advice.together)} the samples a second)"
        return f"{first} No single change helps; {both}."
    if not helping:
        return f"{first} Nothing weighed here would help."
    parts = [
        f"{first} What would help most: {helping[0].name} ({_times(helping[0])} the samples a second{_sooner(advice)})"
    ]
    kept = next((one for one in helping if one.leaves_training and (one.gain or 0.0) >= HARDLY_MORE), None)
    if kept and kept is not helping[0]:
        parts.append(f"with the training as it is: {kept.name} ({_times(kept)})")
    return "; ".join(parts) + "."


def _who(advice: Advice) -> str:
    case = advice.case
    named = f"{case.size} node{'s' if case.size > 1 else ''} at {speed(whatif.slowest(case))}"
    return f"{named}, {speed(whatif.slowest(case, between=True))} between clusters," if case.wans else named


def _stands(advice: Advice) -> str:
    now = advice.now
    if advice.case.size == 1:
        return f"trains {figures.plain(now.throughput)} samples a second by itself"
    gain, share = now.predicted["speedup"].value, 100 * (now.share or 0.0)
    return f"are {figures.ratio(gain)} times one machine: communication takes {share:.0f} % of a step"


def _times(one: Weighed) -> str:
    times = 1 + (one.gain or 0.0)
    return f"{times:.{2 if times < 2 else 1 if times < 10 else 0}f} times"


def _sooner(advice: Advice) -> str:
    """What becomes of the job by the best change."""
    if not advice.work:
        return ""
    before, after = (
        figures.span(_job(advice, outcome)) for outcome in (advice.now, advice.of_worth("helps")[0].outcome)
    )
    return f": {before} become {after}"


# ── the table ────────────────────────────────────────────────────────────────────────────────────────
def _table(name: str, advice: Advice) -> Iterator[str]:
    yield f"{name}: {advice.case.id}"[:WIDTH]
    yield _row(advice, "change", {**{heading: heading for heading in COLUMNS}, **_job_heading(advice)})
    yield _row(advice, "as it is", _cells(advice, advice.now))
    for kind, several in _groups(advice).items():
        yield ""
        for one in several:
            yield _row(advice, one.name, _cells(advice, one.outcome, one.gain))
        yield from _folded(KINDS[kind], "    ")
    if advice.together:
        yield ""
        said = "the best, and what adds most to it" if advice.of_worth("helps") else "what helps together"
        yield from _folded(f"{said}: {advice.together.name}")
        yield _row(advice, "both", _cells(advice, advice.together.outcome, advice.together.gain))


def _groups(advice: Advice) -> dict[str, list[Weighed]]:
    """The changes that help, or at least send less a sample, by kind: the best kind first, and in it the best."""
    least = advice.now.sent_per_sample
    fewer = [one for one in advice.of_worth("unknown") if one.outcome.sent_per_sample < least * (1 - NO_GAIN)]
    groups: dict[str, list[Weighed]] = {}
    for one in (*advice.of_worth("helps"), *fewer):
        groups.setdefault(one.options[0].kind, []).append(one)
    return groups


def _cells(advice: Advice, outcome: Outcome, gain: float | None = None) -> dict[str, str]:
    rate, share = outcome.throughput, outcome.share
    return {
        "batch": str(outcome.samples) if outcome.samples < 10**6 else f"{outcome.samples / 1e6:.3g}M",
        "step": figures.seconds(outcome.step),
        "samples/s": figures.span(_job(advice, outcome)) if advice.work else figures.plain(rate),
        "gain": "" if gain is None else _gain(gain),
        "a step": figures.size(outcome.sent),
        "a sample": figures.size(outcome.sent_per_sample),
        "exposed": figures.MISSING if share is None else f"{share * 100:.0f} %",
    }


def _job_heading(advice: Advice) -> dict[str, str]:
    return {"samples/s": "job"} if advice.work else {}


def _gain(gain: float) -> str:
    return f"×{1 + gain:.0f}" if gain >= 99 else f"{gain * 100:+.0f} %".replace("-", "−")


def _row(advice: Advice, name: str, cells: Mapping[str, str]) -> str:
    """A line; a name that is too long has one of its own above it."""
    shown = COLUMNS if advice.now.step else TIMELESS
    above = f"{name}\n" if len(name) > NAME else ""
    first = "" if above else name
    return above + " ".join([first.ljust(NAME), *(cells[column].rjust(COLUMNS[column]) for column in shown)])


def _others(advice: Advice) -> Iterator[str]:
    for worth, said in _SAID.items():
        if advice.now.step and (some := advice.of_worth(worth)):
            yield ""
            yield from _folded(f"{said}: " + ", ".join(map(_brief, some)))


_SAID: Mapping[Worth, str] = {
    "hardly more": "hardly more than a smaller step of the same kind",
    "no gain": "no gain",
    "unknown": "no formula tells the time of",
}


def _brief(one: Weighed) -> str:
    return one.name if one.gain is None else f"{one.name} ({_gain(one.gain)})"


def _folded(sentence: str, indent: str = "") -> list[str]:
    kept = re.sub(r"(?<=\d) (?=[a-zA-Z%])", "\u00a0", sentence)  # a figure and its unit stay together
    lines = wrap(kept, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


# ── where things turn ────────────────────────────────────────────────────────────────────────────────
def _turns(turns: BreakEven) -> Iterator[str]:
    goal = f"for {TARGET * 100:.0f} % efficiency"
    rate = speed(turns.rate) if turns.rate else "none: another thing sets the pace"
    yield _turn(f"node links {goal}", rate)
    yield _turn(f"accumulation {goal}", str(turns.accumulate or "no number is enough"))
    yield _turn("bandwidth for full overlap", f"{speed(turns.hidden)}: bytes take one backward pass")
    yield _turn("nodes for the present batch", _most(turns))


def _most(turns: BreakEven) -> str:
    if turns.nodes == 1:
        return "1 is fastest: more take longer for a step"
    fastest = f"{turns.nodes} or more" if turns.nodes_bound else str(turns.nodes)
    if turns.nodes_enough < turns.nodes:
        return f"{turns.nodes_enough}: within {NEARLY * 100 - 100:.0f} % of the fastest, {fastest}"
    return f"{fastest} are fastest"


def _turn(what: str, found: str) -> str:
    return f"  {what:<32} {found}"


# ── what it rests on ─────────────────────────────────────────────────────────────────────────────────
_COLUMNS = (
    "batch: samples a step of all nodes; where it changes, the learning rate must follow. A node sends so much a "
    "step, and for each sample that it trains on."
)
_EXPOSED = "exposed: the share of a step that waits for the network."


def _assumed(advice: Advice) -> str:
    case = advice.case
    if advice.now.step is not None:
        rests = "Nominal figures, nothing fitted; what a change does to the loss, or costs to buy, is not weighed."
        return f"{_COLUMNS} {_EXPOSED} {rests}"
    if why := unknown(case):
        return f"{_COLUMNS} No formula tells how long an exchange takes there ({why})."
    return f"{_COLUMNS} How long real compute takes is unknown until a one-node run; then give --from RUN."
