"""Rate, Duration, Size and Fraction: exact integers inside, one spelling out, no silent factor of 8.

>>> Rate.parse("2.5gbit"), str(Rate.parse("125MB/s")), Duration.parse("0.5ms")
(2500000000, '1gbit', 500000)
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rig.errors import UnitError

if TYPE_CHECKING:  # pydantic is needed at the scenario's edge only
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ/%]*)\s*", re.ASCII | re.IGNORECASE)
_LARGEST = 2**63 - 1
_DIGITS = 17  # times the largest unit still exact in Decimal's 28 digits


class Quantity(int):
    """An integer count of a base unit that is written, and printed, with a unit.

    Subclasses give `UNITS` (unit → base units, largest printed unit last), and `HINTS`, spellings that are
    refused because tools disagree on them. Raises UnitError on anything that is not exact.
    """

    UNITS: ClassVar[dict[str, Decimal]]
    PRINTED: ClassVar[tuple[str, ...]]
    EXAMPLE: ClassVar[str]
    HINTS: ClassVar[dict[str, str]] = {}

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read a quantity as written in a scenario, such as "2.5gbit" or "10ms"; raises UnitError."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise UnitError(cls._bare(text))
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise UnitError(f"{text[:60]!r} is not a {cls._noun()}; write it like {cls.EXAMPLE}")
        number, unit = match.groups()
        if len(number) > _DIGITS:  # Decimal would round it silently
            raise UnitError(f"{number[:10]}… has more digits than a {cls._noun()} needs; write it like {cls.EXAMPLE}")
        if unit == "":
            raise UnitError(cls._bare(number))
        scale = cls._scale(unit)
        if scale is None:
            raise UnitError(cls._unknown(number, unit))
        return cls._exact(text, Decimal(number) * scale)

    @classmethod
    def _exact(cls, text: str, value: Decimal) -> Self:
        if value != value.to_integral_value():
            raise UnitError(f"{text!r} is finer than the smallest {cls._noun()} kept, {cls(1)}")
        if value > _LARGEST:
            raise UnitError(f"{text!r} is beyond any {cls._noun()} there is")
        return cls(int(value))

    @classmethod
    def _noun(cls) -> str:
        return cls.__name__.lower()

    @classmethod
    def _scale(cls, unit: str) -> Decimal | None:
        return cls.UNITS.get(unit)

    @classmethod
    def _bare(cls, number: object) -> str:
        found = repr(number)[:60]
        if isinstance(number, bool) or not isinstance(number, int | float | str):
            return f"a {cls._noun()} needs a number and a unit, found {found}; write it like {cls.EXAMPLE}"
        plain = f"{str(number)[:60]}{cls.PRINTED[0]}"
        return f"a {cls._noun()} needs a unit, found {found}; write it like {cls.EXAMPLE}, or {plain} if you mean that"

    @classmethod
    def _unknown(cls, number: str, unit: str) -> str:
        hint, unit = cls.HINTS.get(unit), unit[:20]
        write = f"; did you mean {hint.replace('{}', number)}? Write" if hint else "; write"
        return f"{number}{unit} is no {cls._noun()}: unknown unit {unit!r}{write} it like {cls.EXAMPLE}"

    def __str__(self) -> str:
        """The shortest exact form, in the largest unit that needs at most three decimals."""
        for unit in reversed(self.PRINTED):
            scaled = Decimal(int(self)) / self.UNITS[unit]
            if scaled >= 1 and scaled == round(scaled, 3):
                return f"{scaled.normalize():f}{unit}"
        return f"{int(self)}{self.PRINTED[0]}"

    def __repr__(self) -> str:
        return str(int(self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "examples": [cls.EXAMPLE], "description": f"a {cls._noun()}, such as {cls.EXAMPLE}"}


def _scaled(*units: tuple[str, int | str]) -> dict[str, Decimal]:
    return {unit: Decimal(scale) for unit, scale in units}


class Rate(Quantity):
    """Bits per second. `gbit`, `Gbps` and `Gb/s` are bits; bytes are written `MB/s`, never `MBps`."""

    PRINTED = ("bit", "kbit", "mbit", "gbit")
    EXAMPLE = "2.5gbit"
    UNITS = _scaled(
        *((f"{prefix}{unit}", 10**power)
          for prefix, power in (("", 0), *zip("kKmMgGtT", (3, 3, 6, 6, 9, 9, 12, 12), strict=True))
          for unit in ("bit", "bps", "b/s", "bit/s")),
        *((f"{prefix}B/s", 8 * 10**power) for prefix, power in (("", 0), ("k", 3), ("K", 3), ("M", 6), ("G", 9))),
        *((f"{prefix}B/s", 8 * 2**power) for prefix, power in (("Ki", 10), ("Mi", 20), ("Gi", 30))),
    )  # fmt: skip
    HINTS: ClassVar[dict[str, str]] = {
        **{unit: f"{{}}{letter}bit" for letter in "kmg" for unit in (letter, letter.upper())},
        **{unit: f"{{}}{letter}bit" for letter in "kmg" for unit in (f"{letter}b", f"{letter.upper()}b")},
        **{
            f"{letter}{unit}": f"{{}}{letter.lower()}bit, or {{}}{letter}B/s for bytes"
            for letter in "kKmMgG"
            for unit in ("Bps", "BPS", "B")
        },
    }


class Duration(Quantity):
    """Nanoseconds."""

    PRINTED = ("ns", "us", "ms", "s")
    EXAMPLE = "10ms"
    UNITS = _scaled(
        ("ns", 1), ("us", 10**3), ("µs", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9), ("h", 3600 * 10**9)
    )
    HINTS: ClassVar[dict[str, str]] = {"m": "{}min (minutes) or {}ms", "sec": "{}s", "msec": "{}ms", "usec": "{}us"}

    @property
    def seconds(self) -> float:
        """The same span in seconds."""
        return int(self) / 1e9


class Size(Quantity):
    """Bytes."""

    PRINTED = ("B", "KiB", "MiB", "GiB")
    EXAMPLE = "25MiB"
    UNITS = _scaled(
        ("B", 1),
        ("kB", 10**3),
        ("KB", 10**3),
        ("MB", 10**6),
        ("GB", 10**9),
        ("KiB", 2**10),
        ("MiB", 2**20),
        ("GiB", 2**30),
    )
    HINTS: ClassVar[dict[str, str]] = {
        **{unit: f"{{}}{unit.upper()}iB" for unit in ("k", "K", "m", "M", "g", "G")},
        **{unit: f"{{}}{unit[0].upper()}B (bytes)" for unit in ("kb", "Kb", "mb", "Mb", "gb", "Gb")},
    }


class Fraction(Quantity):
    """Parts per billion. Written `0.05%`, or as a plain number from 0 to 1, which has no unit to get wrong."""

    PRINTED = ("%",)
    EXAMPLE = "2.5%"
    UNITS = _scaled(("%", 10**7))

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read "2.5%" or 0.025; raises UnitError outside 0 to 100 %."""
        if isinstance(text, float | int) and not isinstance(text, bool | Quantity):
            text = f"{Decimal(repr(text)) * 100:f}%" if 0 <= text <= 1 else repr(text)[:30]
        elif isinstance(text, str) and re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*", text, re.ASCII):
            text = f"{Decimal(text.strip()) * 100:f}%"
        value = super().parse(text)
        if value > 10**9:
            raise UnitError(f"{text!r} is more than 100 %")
        return value

    @property
    def ratio(self) -> float:
        """The same share as a float from 0 to 1."""
        return int(self) / 1e9

    def __str__(self) -> str:
        return f"{(Decimal(int(self)) / 10**7).normalize():f}%"
