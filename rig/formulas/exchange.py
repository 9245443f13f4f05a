"""What exchanging gradients or parameters less often gains. Seconds; c is one machine's compute on a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from rig.formulas.collectives import ring_payload
from rig.formulas.traffic import gloo_allreduce_payload


def overlapped_step(compute: float, backward: float, comm: float) -> float:
    """A step whose communication goes on during the backward pass: c + max(0, T_comm − t_b) (s).

    The timeline of `overlap` with gradients that are ready, and sent, evenly: the limit of many small buckets. Real
    buckets end later, by at most one bucket's filling and one's transfer. t_b = 0 is no overlap.
    max(c, T_comm) ≤ step ≤ c + T_comm.
    """
    return compute + max(0.0, comm - backward)


def accumulated_step(compute: float, synchronising: float, accumulate: int) -> float:
    """A step of k micro-batches: T_k = (k−1)·c + T_sync (s). Only the last one's backward pass exchanges gradients."""
    return (accumulate - 1) * compute + synchronising


def communication_per_sample(comm: float, accumulate: int, batch: int) -> float:
    """Amortised communication overhead: T_comm/(k·b), seconds a sample, for k micro-batches of b samples a step.

    About 20 ms a sample parts high from low ("Data Parallel Best Practices on Google Cloud", PyTorch's blog, 2022).
    """
    return comm / (accumulate * batch)


def accumulation_needed(compute: float, synchronising: float, loss: float) -> int:
    """The least number of micro-batches a step with which at most `loss` (ε, 0 to 1) of the time is not computing.

    Of a step of T_k = k·c + (T_sync − c), k·c is compute: k·c/T_k ≥ 1 − ε ⇔ k ≥ (T_sync − c)(1 − ε)/(ε·c). With
    T_sync − c = T_comm − t_b and a small ε that is the usual (T_comm − t_b)/(ε·c). The optimizer counts as compute.
    """
    return max(1, ceil((synchronising - compute) * (1 - loss) / (loss * compute)))


def local_sgd_step(compute: float, comm: float, interval: int) -> float:
    """The mean step where parameters are averaged every H steps: c + T_comm/H (s).

    Averaging comes after a step and nothing hides it (torch's PeriodicModelAverager). With several exchanges in H steps
    T_comm is that of all of them. How H changes what is learnt is not said here.
    """
    return compute + comm / interval


def local_sgd_payload(size: float, nodes: int, interval: int) -> float:
    """Payload of a rank per step, on average, where S bytes of parameters are averaged every H steps: 2(N−1)/N·S/H."""
    return ring_payload(size, nodes) / interval


def periodic_payload(size: int, rounds: Sequence[int], period: int) -> float:
    """Payload of a rank per step over gloo, on average, where S bytes of parameters are exchanged several times in a
    period of so many steps: Σ all-reduce(S, N_i)/period, `rounds` (N_i) being how many ranks take part in each.

    One round of all N for local SGD and DiLoCo: an all-reduce of the parameters, or of their differences. For
    hierarchical SGD rounds of groups, and the last one of all.
    """
    return sum(gloo_allreduce_payload(size, ranks) for ranks in rounds) / period


def local_sgd_interval(compute: float, comm: float, share: float) -> int:
    """The least H with which averaging takes at most `share` (ε, 0 to 1) of the time.

    (T_comm/H)/(c + T_comm/H) ≤ ε ⇔ H ≥ T_comm·(1 − ε)/(ε·c).
    """
    return max(1, ceil(comm * (1 - share) / (share * compute)))
