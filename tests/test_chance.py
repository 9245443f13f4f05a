"""Chance: exact binomial tails against their definition, and a Gilbert–Elliott chain against a simulation."""

from __future__ import annotations

from math import comb
from random import Random
from statistics import fmean, pvariance

import pytest

from rig.formulas.chance import inflation, likely
from rig.model import Loss
from rig.units import Fraction

CONFIDENCE = 0.9999


def loss(**shares: str) -> Loss:
    return Loss(**{name: Fraction.parse(share) for name, share in shares.items()})


def by_definition(count: int, trials: int, share: float) -> bool:
    terms = [comb(trials, at) * share**at * (1 - share) ** (trials - at) for at in range(trials + 1)]
    return min(sum(terms[: count + 1]), sum(terms[count:])) >= (1 - CONFIDENCE) / 2


@pytest.mark.parametrize(("trials", "share"), [(1, 0.5), (40, 0.01), (60, 0.2), (200, 0.03), (50, 0.97)])
def test_likely_is_the_binomial_distribution(trials: int, share: float) -> None:
    found = [likely(count, trials, share, CONFIDENCE) for count in range(trials + 1)]
    assert found == [by_definition(count, trials, share) for count in range(trials + 1)]


@pytest.mark.parametrize(
    ("count", "trials", "share", "is_likely"),
    [
        (0, 1000, 0.0, True), (1, 1000, 0.0, False),  # a clean cable loses nothing
        (1000, 1000, 1.0, True), (999, 1000, 1.0, False),
        (200, 20_000, 0.01, True), (150, 20_000, 0.01, True), (140, 20_000, 0.01, False), (260, 20_000, 0.01, False),
        (2000, 200_000, 0.01, True), (1800, 200_000, 0.01, False), (0, 2000, 0.01, False), (0, 500, 0.01, True),
    ],
)  # fmt: skip
def test_what_is_likely(count: int, trials: int, share: float, is_likely: bool) -> None:
    assert likely(count, trials, share, CONFIDENCE) is is_likely


def test_bursts_widen_what_is_likely() -> None:
    assert not likely(300, 20_000, 0.01, CONFIDENCE)
    assert likely(300, 20_000, 0.01, CONFIDENCE, inflation=9.0)


def test_inflation_of_simple_chains() -> None:
    assert inflation(loss(good="1%")) == 1.0
    assert inflation(loss()) == 1.0
    chain = loss(bad="100%", enter="1%", leave="19%")  # ρ = 0.8
    assert inflation(chain) == pytest.approx(1.8 / 0.2)
    assert inflation(loss(bad="100%", enter="90%", leave="90%")) == 1.0  # it alternates


@pytest.mark.parametrize(
    "chain",
    [loss(bad="100%", enter="2%", leave="20%"), loss(good="1%", bad="50%", enter="5%", leave="25%")],
)
def test_inflation_is_the_variance_of_simulated_counts(chain: Loss) -> None:
    """Counts of 400 runs of 2000 packets; their variance has a standard error of 7 %."""
    packets, random = 2000, Random(1)
    counts = []
    for _ in range(400):
        bad, lost = random.random() < chain.enter / (chain.enter + chain.leave), 0
        for _ in range(packets):
            if random.random() < (chain.leave if bad else chain.enter).ratio:
                bad = not bad
            lost += random.random() < (chain.bad if bad else chain.good).ratio
        counts.append(lost)
    assert fmean(counts) / packets == pytest.approx(chain.mean, rel=0.03)
    independent = packets * chain.mean * (1 - chain.mean)
    assert pvariance(counts) / independent == pytest.approx(inflation(chain), rel=0.28)
