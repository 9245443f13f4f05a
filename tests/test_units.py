"""Quantities: exact, one meaning for each spelling, and a way out for each spelling that is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig.errors import UnitError
from rig.units import Duration, Fraction, Quantity, Rate, Size


@pytest.mark.parametrize("text", ["1Gbps", "1gbps", "1gbit", "1 Gbit/s", "1Gb/s", "1000mbit", "125MB/s", "0.125GB/s"])
def test_one_rate_has_many_spellings(text: str) -> None:
    assert Rate.parse(text) == 10**9


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Rate, "2.5gbit", 2_500_000_000),
        (Rate, "256kbps", 256_000),  # bits: tc reads bytes here
        (Rate, "1MiB/s", 8 * 2**20),
        (Duration, "0.5ms", 500_000),
        (Duration, "100µs", 100_000),
        (Duration, "10min", 600 * 10**9),
        (Size, "25MiB", 25 * 2**20),
        (Size, "25MB", 25 * 10**6),
        (Size, "1.5KiB", 1536),
        (Fraction, "0.05%", 500_000),
        (Fraction, 0.0005, 500_000),
        (Fraction, "0.0005", 500_000),
        (Fraction, 1, 10**9),
    ],
)
def test_value(kind: type[Quantity], text: object, value: int) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "way_out"),
    [
        (Rate, 1000, "1000bit"),
        (Rate, "1000", "1000bit"),
        (Rate, "1G", "did you mean 1gbit?"),
        (Rate, "1GBps", "did you mean 1gbit, or 1GB/s for bytes?"),
        (Rate, "1Gb", "did you mean 1gbit?"),
        (Rate, "1parsec", "write it like 2.5gbit"),
        (Rate, "-1gbit", "write it like 2.5gbit"),
        (Rate, "0.5bit", "finer than the smallest rate kept, 1bit"),
        (Rate, "1.00000000000000000000000000001gbit", "more digits than a rate needs"),
        (Rate, "99999999999gbit", "beyond any rate"),
        (Rate, True, "needs a number and a unit"),
        (Rate, [1], "needs a number and a unit"),
        (Rate, None, "needs a number and a unit"),
        (Duration, "1m", "1min (minutes) or 1ms"),
        (Duration, 10, "10ns"),
        (Size, "25M", "did you mean 25MiB?"),
        (Size, "5Mb", "did you mean 5MB (bytes)?"),
        (Fraction, "101%", "more than 100 %"),
        (Fraction, 5, "5% if you mean that"),
        (Fraction, -0.1, "write it like 2.5%"),
        (Fraction, float("nan"), "write it like 2.5%"),
    ],
)
def test_refused_with_a_way_out(kind: type[Quantity], text: object, way_out: str) -> None:
    with pytest.raises(UnitError) as refusal:
        kind.parse(text)
    assert way_out in str(refusal.value)


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from([Rate, Duration, Size, Fraction]), value=st.integers(0, 10**9))
def test_printed_form_reads_back(kind: type[Quantity], value: int) -> None:
    assert kind.parse(str(kind(value))) == value


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from([Rate, Duration, Size, Fraction]),
    text=st.one_of(
        st.text(max_size=30),
        st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,6})? ?[a-zA-Zµ/%]{0,6}", fullmatch=True),
        st.floats(),
        st.integers(-(10**30), 10**30),
        st.none(),
    ),
)
def test_anything_is_read_exactly_or_refused(kind: type[Quantity], text: object) -> None:
    with contextlib.suppress(UnitError):
        value = kind.parse(text)
        assert int(kind.parse(str(value))) == int(value) >= 0
