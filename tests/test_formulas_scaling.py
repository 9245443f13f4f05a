"""Times and what they say of scaling: limits, bounds, and break-even figures put back into the formulas they solve."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.formulas import exchange, scaling, timing
from rig.formulas.scaling import Training
from rig.formulas.timing import Level

SHARE = 1448 / 1538
spans = st.floats(1e-3, 1e3)
sizes = st.integers(10**3, 10**10)
rates = st.floats(1e6, 1e12)
alphas = st.floats(1e-7, 1e-1)
several = st.integers(2, 512)
shares = st.floats(0, 1)
losses = st.floats(1e-3, 0.5)


@st.composite
def trainings(draw: st.DrawFn, alpha: st.SearchStrategy[float] = alphas, least: float = 0.0) -> Training:
    compute = draw(spans)
    return Training(compute, compute * draw(st.floats(least, 1)), draw(sizes), draw(rates), draw(alpha))


# ── one all-reduce ───────────────────────────────────────────────────────────────────────────────────
@given(sizes, rates, alphas, several)
def test_an_all_reduce_takes_longer_with_more_of_anything_but_goodput(
    size: int, rate: float, alpha: float, n: int
) -> None:
    time = timing.alpha_beta_time(size, Level(n, rate, alpha))
    assert timing.alpha_beta_time(size, Level(1, rate, alpha)) == 0
    assert timing.alpha_beta_time(size, Level(n + 1, rate, alpha)) > time
    assert timing.alpha_beta_time(2 * size, Level(n, rate, alpha)) > time
    assert timing.alpha_beta_time(size, Level(n, rate, 2 * alpha)) > time
    assert timing.alpha_beta_time(size, Level(n, 2 * rate, alpha)) < time


@given(rates, alphas, several)
def test_at_the_alpha_bound_messages_take_as_long_as_bytes(rate: float, alpha: float, n: int) -> None:
    size = timing.alpha_bound_size(Level(n, rate, alpha))
    assert timing.alpha_beta_time(size, Level(n, rate, alpha)) == pytest.approx(4 * (n - 1) * alpha)


@given(sizes, rates, rates, several, st.integers(1, 16))
def test_two_levels(size: int, fast: float, slow: float, n: int, ranks: int) -> None:
    both = timing.two_level_time(size, Level(ranks, fast), Level(n, slow))
    assert both == pytest.approx(
        timing.alpha_beta_time(size, Level(ranks, fast)) + timing.alpha_beta_time(size, Level(n, slow))
    )
    assert timing.two_level_time(size, Level(1, fast), Level(n, slow)) == timing.alpha_beta_time(size, Level(n, slow))
    assert timing.two_level_time(size, Level(ranks, fast), Level(1, slow)) == pytest.approx(
        timing.alpha_beta_time(size, Level(ranks, fast))
    )


def test_eight_gpus_in_each_of_two_nodes() -> None:
    """What crosses a link at 10 Gb/s is half a flat ring's: S against 15/8·S; inside, 7/4·S at 100 Gb/s."""
    flat = timing.alpha_beta_time(10**9, Level(16, 1e10))
    assert flat == pytest.approx(1.5)
    assert timing.two_level_time(10**9, Level(8, 1e11), Level(2, 1e10)) == pytest.approx(0.8 + 0.14)


# ── a step ───────────────────────────────────────────────────────────────────────────────────────────
@given(spans, shares, st.floats(0, 1e3))
def test_a_step_lies_between_its_longer_part_and_their_sum(compute: float, share: float, comm: float) -> None:
    step = exchange.overlapped_step(compute, share * compute, comm)
    assert max(compute, comm) * (1 - 1e-12) <= step <= (compute + comm) * (1 + 1e-12)


@given(trainings())
def test_one_node_costs_nothing(one: Training) -> None:
    assert one.comm(1) == 0
    assert scaling.weak_step(one, 1) == scaling.strong_step(one, 1) == one.compute
    assert scaling.weak_speedup(one, 1) == scaling.strong_speedup(one, 1) == 1
    assert exchange.local_sgd_payload(one.size, 1, 1) == 0
    assert scaling.breakeven_bandwidth(one.size, 1, 1.0, SHARE) == 0


@given(trainings(), several)
def test_no_more_than_n_times_as_fast(one: Training, n: int) -> None:
    assert 0 < scaling.weak_speedup(one, n) <= n * (1 + 1e-12)
    assert 0 < scaling.strong_speedup(one, n) <= n * (1 + 1e-12)
    for step in (scaling.weak_step, scaling.strong_step):
        assert (
            step(replace(one, size=2 * one.size), n) >= step(one, n) >= step(replace(one, goodput=2 * one.goodput), n)
        )
    assert scaling.weak_step(one, n + 1) >= scaling.weak_step(one, n)


@given(trainings(alpha=st.just(0.0)), several)
def test_weak_steps_have_a_limit(one: Training, n: int) -> None:
    most = exchange.overlapped_step(one.compute, one.backward, 2 * one.size * 8 / one.goodput)
    assert scaling.weak_step(one, n) <= most * (1 + 1e-12)
    assert scaling.weak_step(one, 10**9) == pytest.approx(most, rel=1e-6)


@given(trainings(), several)
def test_amdahl_bounds_a_fixed_batch_without_overlap(one: Training, n: int) -> None:
    alone = replace(one, backward=0.0, alpha=0.0)
    serial = alone.comm(n) / (alone.compute + alone.comm(n))
    gain = (alone.compute + alone.comm(n)) / scaling.strong_step(alone, n)
    assert gain == pytest.approx(scaling.amdahl_bound(serial, n))
    assert scaling.amdahl_bound(serial) >= scaling.amdahl_bound(serial, n)
    assert scaling.amdahl_bound(0.0, n) == pytest.approx(n)
    assert scaling.amdahl_bound(1.0, n) == 1


def test_a_shared_batch_has_a_shared_backward_pass_to_hide_in() -> None:
    """12 s over 4 nodes, 8 of them backward, are 3 and 2; 3/2 · 2 GB at 8 Gb/s take 3, so 1 is exposed."""
    one = Training(12.0, 8.0, 2 * 10**9, 8e9)
    assert scaling.weak_step(one, 4) == 12
    assert scaling.strong_step(one, 4) == pytest.approx(4)
    assert scaling.strong_speedup(one, 4) == pytest.approx(3)


# ── where more nodes are slower ──────────────────────────────────────────────────────────────────────
@given(trainings())
def test_a_fixed_batch_falls_to_one_lowest_point(one: Training) -> None:
    best = scaling.fastest_nodes(one, most=600)
    steps = [scaling.strong_step(one, n) for n in range(1, 601)]
    assert steps[best - 1] == pytest.approx(min(steps), rel=1e-9)
    slack = 1e-12 * one.compute
    changes = [later - sooner for sooner, later in pairwise(steps)]
    assert all(change <= slack for change in changes[: best - 1])
    assert all(change >= -slack for change in changes[best - 1 :])


@given(trainings())
def test_without_overlap_it_is_the_square_root(one: Training) -> None:
    alone = replace(one, backward=0.0)
    room = alone.compute - 2 * alone.size * 8 / alone.goodput
    expected = sqrt(room / (2 * alone.alpha)) if room > 0 else 1.0
    if expected < scaling.MOST - 2:
        assert abs(scaling.fastest_nodes(alone) - max(1.0, expected)) <= 1 + 1e-3 * expected


def test_without_alpha_more_nodes_are_never_slower_or_always() -> None:
    small = Training(10.0, 0.0, 10**6, 1e9)
    assert scaling.fastest_nodes(small, most=1000) == 1000
    large = Training(0.01, 0.0, 10**9, 1e9)
    assert scaling.fastest_nodes(large) == 1


# ── break-even ───────────────────────────────────────────────────────────────────────────────────────
@given(trainings(alpha=st.just(0.0), least=0.01), several)
def test_at_break_even_bandwidth_all_is_just_hidden(one: Training, n: int) -> None:
    rate = scaling.breakeven_bandwidth(one.size, n, one.backward, SHARE)
    at = replace(one, goodput=rate * SHARE)
    assert scaling.weak_step(at, n) == pytest.approx(one.compute)
    assert at.comm(n) == pytest.approx(one.backward)
    assert scaling.weak_step(replace(one, goodput=0.9 * rate * SHARE), n) > one.compute * (1 + 1e-4)


@given(trainings(alpha=st.just(0.0)), several)
def test_at_the_worthwhile_bandwidth_n_nodes_are_just_as_fast_as_one(one: Training, n: int) -> None:
    rate = scaling.worthwhile_bandwidth(one, n, SHARE)
    assert scaling.weak_speedup(replace(one, goodput=rate * SHARE), n) == pytest.approx(1)
    assert scaling.weak_speedup(replace(one, goodput=1.1 * rate * SHARE), n) > 1
    assert scaling.weak_speedup(replace(one, goodput=0.9 * rate * SHARE), n) < 1


@given(trainings(least=0.01), several, st.integers(1, 256))
def test_at_the_break_even_batch_all_is_just_hidden(one: Training, n: int, batch: int) -> None:
    times = scaling.breakeven_batch(one, n, batch) / batch
    larger = replace(one, compute=one.compute * times, backward=one.backward * times)
    assert larger.comm(n) == pytest.approx(larger.backward)
    assert scaling.weak_step(larger, n) == pytest.approx(larger.compute)


# ── exchanging less often ────────────────────────────────────────────────────────────────────────────
@given(spans, spans, losses)
def test_the_accumulation_needed_is_the_least(compute: float, exposed: float, loss: float) -> None:
    synchronising = compute + exposed
    least = exchange.accumulation_needed(compute, synchronising, loss)
    assert 1 - least * compute / exchange.accumulated_step(compute, synchronising, least) <= loss * (1 + 1e-9)
    if least > 1:
        fewer = least - 1
        assert 1 - fewer * compute / exchange.accumulated_step(compute, synchronising, fewer) > loss * (1 - 1e-9)


@given(spans, spans)
def test_for_a_small_loss_the_rule_of_thumb_holds(compute: float, exposed: float) -> None:
    least = exchange.accumulation_needed(compute, compute + exposed, 1e-4)
    assert least == pytest.approx(max(1.0, exposed / (1e-4 * compute)), rel=1e-3, abs=1)


@given(spans, spans, st.integers(1, 1000), st.integers(1, 64))
def test_accumulating_spreads_what_is_exposed(compute: float, exposed: float, k: int, batch: int) -> None:
    one, many = compute + exposed, exchange.accumulated_step(compute, compute + exposed, k)
    assert exchange.accumulated_step(compute, one, 1) == pytest.approx(one)
    assert many / k == pytest.approx(compute + exposed / k)
    assert exchange.communication_per_sample(exposed, k, batch) == pytest.approx(exposed / k / batch)


@given(spans, spans, losses)
def test_the_exchange_interval_is_the_least(compute: float, comm: float, share: float) -> None:
    least = exchange.local_sgd_interval(compute, comm, share)
    assert 1 - compute / exchange.local_sgd_step(compute, comm, least) <= share * (1 + 1e-9)
    if least > 1:
        assert 1 - compute / exchange.local_sgd_step(compute, comm, least - 1) > share * (1 - 1e-9)


@given(sizes, several, st.integers(1, 1000))
def test_averaging_every_so_many_steps_sends_so_much_less(size: int, n: int, interval: int) -> None:
    often = exchange.local_sgd_payload(size, n, 1)
    assert exchange.local_sgd_payload(size, n, interval) == pytest.approx(often / interval)
