"""Numbers as people read them: 1.372 s, 153.4 MB, 941.5 Mb/s, +0.12 %; what is missing is "–", never a guess."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
_MINUS = "−"

# Every figure goes through one of these rows: the factor of a prefix, and the unit it makes.
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_BITS_A_SECOND = ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s"))


EXACT = 5e-6  # errors below it are not told apart


def number(value: object) -> float | None:
    """A finite float, or None for what is absent, not a number, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:  # an integer beyond any float
        return None
    return converted if math.isfinite(converted) else None


def seconds(value: float | None) -> str:
    """A span given in seconds."""
    return _scaled(value, _SECONDS)


def span(value: float | None) -> str:
    """A long time, given in seconds, in the unit that people would plan it in: 12.4 min, 3.27 h, 41.2 d."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value is not None and value >= 2 * length:
            return f"{value / length:.3g} {unit}"
    return seconds(value)


def size(value: float | None) -> str:
    """A count of bytes, in decimal multiples, as networks are counted."""
    return _scaled(value, _BYTES)


def rate(value: float | None) -> str:
    """A rate given in bit/s."""
    return _scaled(value, _BITS_A_SECOND)


def ratio(value: float | None) -> str:
    """A speed-up or an efficiency: two decimals."""
    return MISSING if value is None else f"{value:.2f}".replace("-", _MINUS)


def percent(value: float | None, signed: bool = True) -> str:
    """A fraction as per cent; three decimals below 0.1 %, so that a 0.05 % tolerance can be read off."""
    if value is None:
        return MISSING
    if value == 0:
        return "0 %"
    if abs(value) < EXACT:
        return "<0.001 %"
    decimals = 3 if abs(value) < 1e-3 else 2 if abs(value) < 0.1 else 1
    shown = f"{value * 100:{'+' if signed else ''}.{decimals}f} %"
    return shown.replace("-", _MINUS)


def plain(value: float | None) -> str:
    """A number without a unit of ours, four significant digits."""
    return MISSING if value is None else f"{value:.4g}".replace("-", _MINUS)


def in_unit(value: float | None, unit: str) -> str:
    """A figure in the unit a record names: s, bit/s, bytes (per step), or anything else as it stands."""
    word = unit.lower()
    if word in ("s", "seconds"):
        return seconds(value)
    if word.startswith("bit/s"):
        return rate(value)
    if word in ("b", "bytes", "byte", "b/step", "bytes/step", "bytes per step"):
        return size(value)
    if word in ("×", "x", "ratio"):
        return MISSING if value is None else f"{ratio(value)}×"
    if word in ("", "1"):
        return plain(value)
    return MISSING if value is None else f"{plain(value)} {unit}"


def _scaled(value: float | None, steps: Sequence[tuple[float, str]]) -> str:
    if value is None:
        return MISSING
    if value == 0:
        return f"0 {steps[0][1] if steps is _SECONDS else steps[-1][1]}"
    # 999.96 shows as 1000 at four digits: the factor a little below one keeps it out of the smaller unit.
    factor, unit = next((step for step in steps if abs(value) >= step[0] * 0.99995), steps[-1])
    digits = _four_digits(value / factor) if unit != "B" else f"{value:.0f}"
    return f"{digits} {unit}".replace("-", _MINUS)


def _four_digits(value: float) -> str:
    whole = len(str(int(abs(value) + 0.5)))
    return f"{value:.{max(0, 4 - whole)}f}"
