"""What collectives, hooks and wires carry: by hand, limits, and each against the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import models
from rig.formulas import collectives, compression, timing, traffic, wire
from rig.formulas.wire import Framing

MIB = 2**20
sizes = st.integers(4, 2**32)
several = st.integers(2, 256)
framings = st.builds(
    Framing, st.integers(576, 9216), st.booleans(), st.sampled_from([14, 38]), st.sampled_from([0, 50])
)


# ── collectives ──────────────────────────────────────────────────────────────────────────────────────
@given(sizes)
def test_one_rank_sends_nothing(size: int) -> None:
    assert collectives.ring_payload(size, 1) == 0
    assert collectives.nccl_ring_payload(size, 1, "LL") == 0
    assert collectives.nccl_tree_payload(size, 1) == (0,)
    assert collectives.allgather_payload(size, 1) == 0
    assert collectives.reduce_scatter_payload(size, 1) == 0
    assert collectives.sparse_allreduce_payload(size, 8, 1) == 0
    assert collectives.sharded_server_payload(size, 1) == 0
    assert collectives.node_link_payload(size, 1, 8) == 0
    assert compression.fp16_payload(size, 1) == compression.quantized_payload(size, 1) == 0
    assert compression.topk_payload(size, 0.01, 1) == 0
    assert traffic.unused_map_payload(size, 1) == 0


@given(sizes, several)
def test_a_ring_is_a_reduce_scatter_and_an_all_gather(size: int, n: int) -> None:
    halves = collectives.reduce_scatter_payload(size, n) + collectives.allgather_payload(size / n, n)
    assert collectives.ring_payload(size, n) == pytest.approx(halves)
    assert collectives.ring_payload(size, n) == pytest.approx(collectives.sharded_server_payload(size, n))
    assert size <= collectives.ring_payload(size, n) < collectives.ring_payload(size, n + 1) < 2 * size


@given(st.integers(MIB, 2**32), several)
def test_gloo_sends_what_a_ring_must_and_little_more(size: int, n: int) -> None:
    least = collectives.ring_payload(size, n)
    assert least <= traffic.gloo_allreduce_payload(size, n) <= least * (1 + 1e-3 * n)


def test_protocols_of_nccl() -> None:
    assert collectives.nccl_ring_payload(120, 2) == 120
    assert collectives.nccl_ring_payload(120, 2, "LL128") == 128
    assert collectives.nccl_ring_payload(120, 2, "LL") == 240


@pytest.mark.parametrize(
    ("n", "sent"),
    [  # by hand from the drawings in NCCL's src/graph/trees.cc
        (2, [1, 1]),
        (3, [1.5, 1, 1.5]),
        (4, [1, 2, 2, 1]),
        (5, [1.5, 1, 2, 2, 1.5]),
        (12, [1, *[2] * 10, 1]),
    ],
)
def test_two_trees_by_hand(n: int, sent: list[float]) -> None:
    assert collectives.nccl_tree_payload(1, n) == tuple(sent)


@given(sizes, several)
def test_a_tree_sends_as_much_as_a_ring_but_not_all_alike(size: int, n: int) -> None:
    sent = collectives.nccl_tree_payload(size, n)
    assert sum(sent) == pytest.approx(n * collectives.ring_payload(size, n))
    assert max(sent) == 2 * size if n > 3 else max(sent) <= 2 * size
    assert min(sent) >= size / 2


@given(sizes, several)
def test_a_server_carries_all_its_workers(size: int, n: int) -> None:
    server, worker = collectives.parameter_server_payload(size, n)
    assert (server, worker) == (n * size, size)
    assert worker <= collectives.ring_payload(size, n) < server


@given(sizes, st.integers(1, 64), several)
def test_a_ring_over_full_nodes_crosses_each_link_once(size: int, ranks: int, n: int) -> None:
    crossing = collectives.node_link_payload(size, n, ranks)
    assert crossing == collectives.ring_payload(size, n * ranks)
    assert collectives.ring_payload(size, n) <= crossing < 2 * size


def test_a_dense_all_reduce_is_less_where_rows_are_many() -> None:
    vocabulary, width, n = 30_000, 768, 4
    dense = collectives.ring_payload(vocabulary * width * 4, n)
    most = int(2 * vocabulary * 4 * width / (n * (8 + 4 * width)))
    assert collectives.sparse_allreduce_payload(most, width, n) <= dense
    assert collectives.sparse_allreduce_payload(most + 1, width, n) > dense


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────────
@given(st.integers(MIB, 2**30).map(lambda size: 4 * size), several)
def test_fp16_halves_a_bucket(size: int, n: int) -> None:
    assert compression.fp16_payload(size, n) == pytest.approx(traffic.gloo_allreduce_payload(size // 2, n), rel=1e-9)


def test_powersgd_by_hand() -> None:
    shapes = [(64, 3, 7, 7), (512, 256), (512,), (10, 4)]  # the second and the first are worth it at rank 2
    assert compression.powersgd_sizes(shapes, 2) == (4 * (512 + 40), 4 * (64 + 512) * 2, 4 * (147 + 256) * 2)
    assert compression.powersgd_sizes(shapes, 1000) == (4 * sum([64 * 147, 512 * 256, 512, 40]), 0, 0)


@given(st.integers(1, 8), several)
def test_powersgd_sends_a_part_of_resnet50(rank: int, n: int) -> None:
    tensors = models.load("resnet50").parameters
    shapes = [tensor.shape for tensor in tensors]
    assert sum(compression.powersgd_sizes(shapes, rank)) < sum(tensor.nbytes for tensor in tensors) / 5
    assert compression.powersgd_payload(shapes, rank, n) < compression.powersgd_payload(shapes, rank + 1, n)


@given(st.integers(1, 2**20).map(lambda size: 1024 * size), several)
def test_where_gathering_is_more_than_reducing(size: int, n: int) -> None:
    """Eight bits up to seven nodes; the largest gradients as long as they are less than 1/N of all."""
    plain = collectives.ring_payload(size, n)
    if n < 8:
        assert compression.quantized_payload(size, n) < plain + 292 * n
    else:
        assert compression.quantized_payload(size, n) > plain
    assert compression.topk_payload(size, 0.9 / n, n) <= plain + 296 * n
    assert compression.topk_payload(size, 1.1 / n, n) > plain


@given(st.floats(1, 1e12), st.integers(1, 64), st.integers(1, 512))
def test_accumulation_divides_bytes_per_sample(sent: float, accumulate: int, batch: int) -> None:
    once = traffic.payload_per_sample(sent, 1, batch)
    assert traffic.payload_per_sample(sent, accumulate, batch) == pytest.approx(once / accumulate)


# ── wires ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("framing", "payload", "whole"),
    [
        (Framing(), 1448, 1538),
        (Framing(timestamps=False), 1460, 1538),
        (Framing(9000), 8948, 9038),
        (Framing(1450, tunnel=wire.VXLAN), 1398, 1538),
        (Framing(around=14), 1448, 1514),
        (Framing(9001, around=14), 8949, 9015),
    ],
)
def test_a_full_packet(framing: Framing, payload: int, whole: int) -> None:
    assert framing.segment == payload
    assert wire.wire_bytes(payload, framing) == whole
    assert wire.wire_share(framing) == payload / whole


@pytest.mark.parametrize(
    ("framing", "ack"), [(Framing(), 90), (Framing(around=14), 66), (Framing(timestamps=False), 84)]
)
def test_acknowledgements_are_small_but_not_nothing(framing: Framing, ack: int) -> None:
    assert wire.ack_bytes(1, framing) == ack
    assert wire.ack_bytes(100 * framing.segment, framing) == 50 * ack
    assert wire.ack_bytes(100 * framing.segment, framing, 45) == 3 * ack


@given(st.integers(0, 2**40), framings)
def test_there_and_back(payload: int, framing: Framing) -> None:
    on_the_wire = wire.wire_bytes(payload, framing)
    assert wire.wire_bytes(payload + 1, framing) > on_the_wire >= payload
    assert wire.payload_bytes(on_the_wire, framing) == pytest.approx(payload, rel=1e-9, abs=framing.segment)


@given(st.sampled_from([1500, 9000]), st.floats(1e6, 1e11))
def test_goodput_is_the_wires_share(mtu: int, rate: float) -> None:
    assert timing.goodput(rate, mtu, "ethernet") == pytest.approx(rate * wire.wire_share(Framing(mtu)))
    assert timing.goodput(rate, mtu, "none") == pytest.approx(rate * wire.wire_share(Framing(mtu, around=14)))
