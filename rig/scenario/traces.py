"""A bandwidth trace: lines of `time,rate`, as recorded on a real line, for a link to follow.

Times are seconds and grow; rates are bit/s, or written with a unit such as 5mbit; 0 is an outage until the next line.
A first line of words is a heading, and what follows a # is a comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from rig.errors import ScenarioError, UnitError
from rig.scenario.links import LEAST_RATE
from rig.scenario.reading import shown
from rig.units import Duration, Rate

MOST_LINES = 100_000
_MOST_BYTES = 64 * MOST_LINES
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,15})?", re.ASCII)
_NEGATIVE = re.compile(r"-\s*[0-9.]", re.ASCII)
_WORDS = re.compile(r"[A-Za-z][^0-9]*", re.ASCII)


@dataclass(frozen=True)
class Line:
    """From `at` on, counted from where the trace starts, the link has `rate`."""

    number: int  # in the file, from 1
    at: Duration
    rate: Rate


def trace(path: Path) -> tuple[Line, ...]:
    """A trace file's lines, at least one. Raises ScenarioError with the file and the line that is wrong."""
    try:
        if not path.is_file():
            text = "there is no such file; its path counts from the scenario's folder"
            raise ScenarioError(f"{shown(str(path), 200)}: read the trace: {text}")
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError) as error:
        text = f"{shown(str(path), 200)}: read the trace: {error}; name a text file of time,rate lines"
        raise ScenarioError(text) from error


@lru_cache(maxsize=8)  # every cell of a sweep asks
def _read(path: Path, changed: int, size: int) -> tuple[Line, ...]:
    if size > _MOST_BYTES:
        raise ScenarioError(f"{path}: read the trace: {size} bytes are more than {MOST_LINES} lines need; write fewer")
    lines: list[Line] = []
    headed = False
    for number, text in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        words = [word.strip() for word in text.partition("#")[0].split(",")]
        if words == [""]:
            continue
        if not lines and not headed and len(words) > 1 and all(_WORDS.fullmatch(word) for word in words):
            headed = True
            continue
        try:
            lines.append(_line(number, words, lines[-1] if lines else None))
        except ValueError as error:
            raise ScenarioError(f"{path}:{number}: {error}") from error
        if len(lines) > MOST_LINES:
            raise ScenarioError(f"{path}:{number}: more than {MOST_LINES} lines; write fewer")
    _check_ends(path, lines)
    return tuple(lines)


def _check_ends(path: Path, lines: list[Line]) -> None:
    if not lines:
        raise ScenarioError(f"{path}: the trace is empty; write lines of time,rate such as 0.5,5mbit")
    if lines[-1].rate == 0:
        raise ScenarioError(f"{path}:{lines[-1].number}: the last rate is 0, an outage that nothing ends; add a line")


def _line(number: int, words: list[str], before: Line | None) -> Line:
    """Raises ValueError in words that fit behind the place."""
    if len(words) != 2:
        raise ValueError(f"needs a time and a rate, found {shown(','.join(words))}; write it like 0.5,5mbit")
    at, rate = _time(words[0]), _rate(words[1])
    if before is not None and at <= before.at:
        raise ValueError(f"the time {at} is not after {before.at}, line {before.number}; times must grow")
    return Line(number, at, rate)


def _time(word: str) -> Duration:
    if _NEGATIVE.match(word):
        raise ValueError(f"the time {shown(word)} is negative; a trace starts at 0 or later")
    if not _SECONDS.fullmatch(word):
        raise ValueError(f"the time {shown(word)} is no number of seconds; write it like 0.5")
    return Duration(round(Decimal(word) * 10**9))


def _rate(word: str) -> Rate:
    if _NEGATIVE.match(word):
        raise ValueError(f"the rate {shown(word)} is negative; write 0 for an outage")
    try:
        rate = Rate(round(Decimal(word))) if _NUMBER.fullmatch(word) else Rate.parse(word)
    except UnitError as error:
        raise ValueError(f"{shown(str(error), 200)}; or a plain number of bits per second") from error
    if 0 < rate < LEAST_RATE:
        raise ValueError(f"{rate} is too slow for the token bucket; at least {Rate(LEAST_RATE)}, or 0 for an outage")
    return rate
