"""How far a count may be from its probability by chance alone: exact binomial, widened for bursts."""

from __future__ import annotations

from math import exp, lgamma, log

from rig.model import Loss

NEGLIGIBLE = 1e-15  # a tail's terms below this share of its sum are left out


def likely(count: float, trials: float, share: float, confidence: float, inflation: float = 1.0) -> bool:
    """Whether `count` of `trials` may well come of a probability `share`: neither tail of the binomial from `count`
    on is less likely than (1 − confidence)/2. So the share lies in the count's Clopper–Pearson interval.

    Trials that come in bursts tell as much as trials ÷ inflation would alone (see inflation).
    """
    trials, count = round(trials / inflation), round(count / inflation)
    half = (1 - confidence) / 2
    if share <= 0 or share >= 1:
        return count == round(trials * share)
    return min(_tail(count, trials, share, -1), _tail(count, trials, share, 1)) >= half


def _tail(count: int, trials: int, share: float, step: int) -> float:
    """P(X ≤ count), or P(X ≥ count) for a step of +1: terms are summed outwards from `count` until they vanish."""
    if (count - trials * share) * step < 0:  # beyond the mean: the other tail is the one that can be small
        return 1.0
    total, at = 0.0, count
    while 0 <= at <= trials:
        term = exp(_log_term(at, trials, share))
        total += term
        if term <= total * NEGLIGIBLE:
            break
        at += step
    return total


def _log_term(count: int, trials: int, share: float) -> float:
    ways = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
    return ways + count * log(share) + (trials - count) * log(1 - share)


def inflation(loss: Loss) -> float:
    """How many times the variance of independent losses a Gilbert–Elliott chain's losses have, over many packets.

    Losses j packets apart covary by (bad − good)²·π·(1 − π)·ρ^j, with π the share of time in the bad state and
    ρ = 1 − enter − leave; summed over j, against p·(1 − p). With good = 0 and bad = 1 that is (1 + ρ)/(1 − ρ).
    Never below 1: a chain that alternates is judged as if it were independent.
    """
    mean = loss.mean
    if not loss.enter or not 0 < mean < 1:
        return 1.0
    enter, leave = loss.enter.ratio, loss.leave.ratio
    in_bad = enter / (enter + leave)
    rho = 1 - enter - leave
    covaries = (loss.bad.ratio - loss.good.ratio) ** 2 * in_bad * (1 - in_bad)
    return max(1.0, 1 + 2 * covaries / (mean * (1 - mean)) * rho / (1 - rho))
