"""How a step changes with the number of machines, and where it stops to pay. One rank a node, a ring, links alike.

All of it in the limit of many small buckets (see exchange.overlapped_step) and without what a library adds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import inf

from rig.formulas.collectives import ring_payload
from rig.formulas.exchange import overlapped_step
from rig.formulas.timing import Level, alpha_beta_time

MOST = 2**20  # nodes


@dataclass(frozen=True)
class Training:
    """One machine's step, and what a network makes of its gradients.

    `compute` (s) is of the whole batch on one machine, of which `backward` (s) can hide communication (0: none);
    `size` is S, the gradients' bytes; `goodput` in bit/s; `alpha` (s) what each message takes besides its bytes.
    """

    compute: float
    backward: float
    size: float
    goodput: float
    alpha: float = 0.0

    def comm(self, nodes: int) -> float:
        """Seconds of one all-reduce over so many nodes, by itself."""
        return alpha_beta_time(self.size, Level(nodes, self.goodput, self.alpha))


def weak_step(training: Training, nodes: int) -> float:
    """A step where every node has the whole batch: c + max(0, T_comm(N) − t_b) (s). For α = 0 it has the limit
    c + max(0, 2·8S/B − t_b) as N grows, so that throughput then grows with N.
    """
    return overlapped_step(training.compute, training.backward, training.comm(nodes))


def weak_speedup(training: Training, nodes: int) -> float:
    """Samples per second over one node's, each node with the whole batch: N·c/T(N)."""
    return nodes * training.compute / weak_step(training, nodes)


def strong_step(training: Training, nodes: int) -> float:
    """A step where the nodes share a fixed batch: c/N + max(0, T_comm(N) − t_b/N) (s). Assumes that compute divides
    evenly, so not below a batch that fills the machine.
    """
    return overlapped_step(training.compute / nodes, training.backward / nodes, training.comm(nodes))


def strong_speedup(training: Training, nodes: int) -> float:
    """How many times sooner so many nodes are done with a fixed batch: T(1)/T(N)."""
    return strong_step(training, 1) / strong_step(training, nodes)


def fastest_nodes(training: Training, most: int = MOST) -> int:
    """The number of nodes beyond which more of them make a fixed batch slower; `most` where that is not reached.

    With V = 8S/B, strong_step is the larger of c/N, which falls, and (c − t_b − 2V)/N + 2αN + 2V − 2α, which is convex
    in N for c − t_b ≥ 2V and rises otherwise. So it falls to one lowest point and rises from there: bisection finds it.
    Without overlap (t_b = 0) it is next to N* = √((c − 2V)/(2α)), or N = 1 for c ≤ 2V; there is none for α = 0.
    """
    slower = bisect_left(range(1, most), True, key=lambda n: strong_step(training, n + 1) >= strong_step(training, n))
    return slower + 1


def amdahl_bound(serial: float, nodes: float = inf) -> float:
    """The most that N machines gain where `serial` (0 to 1) of one machine's time does not shrink: 1/(s + (1−s)/N).

    Of data-parallel training on a fixed batch s is at least (2·8S/B)(N−1)/N ÷ c without overlap (Amdahl, 1967).
    """
    return 1 / (serial + (1 - serial) / nodes)


def breakeven_bandwidth(size: float, nodes: int, backward: float, share: float) -> float:
    """The rate (bit/s, nominal) from which on the backward pass hides all communication:
    B* = 2(N−1)/N·8S/(g·t_b), g = `share` of the rate that is payload (wire.wire_share); 0 for one node.

    T_comm = 2(N−1)/N·8S/(g·B) = t_b solved for B.
    """
    return ring_payload(size, nodes) * 8 / (share * backward)


def worthwhile_bandwidth(training: Training, nodes: int, share: float) -> float:
    """The rate (bit/s, nominal) from which on N nodes with the whole batch each beat one: weak_speedup ≥ 1.

    T(N) ≤ N·c ⇔ T_comm ≤ (N−1)·c + t_b; for α = 0, solved for B as breakeven_bandwidth. 0 for one node.
    """
    return breakeven_bandwidth(training.size, nodes, (nodes - 1) * training.compute + training.backward, share)


def breakeven_batch(training: Training, nodes: int, batch: int) -> float:
    """Samples per node and step from which on the backward pass hides all communication, from `batch` samples' times.

    T_comm does not depend on the batch, t_b grows with it: b* = T_comm(N)/(t_b/b). Assumes that time per sample stays
    the same, so from a batch that fills the machine on.
    """
    return training.comm(nodes) / (training.backward / batch)
