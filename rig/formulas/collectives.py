"""How many bytes of TCP payload collectives other than gloo's all-reduce and broadcast send. Bytes throughout.

S is what every rank holds, N how many take part, one rank a node unless said. What a library adds of its own (144 B
per segment in gloo) is left out unless the name tells the library: right to 0.1 % above about 1 MiB.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rig.formulas.rings import Edge, ring_time
from rig.formulas.traffic import COPY, RECEIPT

Protocol = Literal["Simple", "LL128", "LL"]
SENT: dict[Protocol, float] = {"Simple": 1.0, "LL128": 128 / 120, "LL": 2.0}  # bytes on the way per byte of data
INDEX = 8  # bytes of an index in a sparse tensor (int64)
VALUE = 4  # of a float32
GATHER_CONTROL = 288  # bytes of gloo's own messages for each other rank's piece


def ring_payload(size: float, ranks: int) -> float:
    """What each rank sends in a ring all-reduce: 2(N−1)/N·S; 0 for one rank.

    N−1 steps of reduce-scatter and N−1 of all-gather, a piece of S/N in each: the least any algorithm needs if all
    send alike (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).
    """
    return 2 * reduce_scatter_payload(size, ranks)


def nccl_ring_payload(size: float, ranks: int, protocol: Protocol = "Simple") -> float:
    """What each rank sends in NCCL's ring all-reduce: ring_payload × 1 (Simple), 128/120 (LL128) or 2 (LL).

    LL sends a flag of 4 bytes with every 4 of data, LL128 one of 8 in every line of 128 (ncclLLFifoLine, NCCL_LL128_*
    in NCCL's src/include/device.h). Which one NCCL takes depends on size, links and version; NCCL_PROTO pins it.
    """
    return ring_payload(size, ranks) * SENT[protocol]


def nccl_tree_payload(size: float, nodes: int) -> tuple[float, ...]:
    """What each node sends in NCCL's tree all-reduce, by node: S/2 up to its parent and S/2 down to each child, in
    both of two trees. The busiest sends 2S from N = 4 on, all together 2(N−1)·S, as a ring's.

    In one tree a node within sends S up and 2S down, a leaf S up, the root S down to its one child. Half of the data
    goes along each of two trees, and what is within one is a leaf of the other: (3S + S)/2. For one rank a node; more
    pass their sums along a chain inside it. The trees are NCCL's (src/graph/trees.cc): the second is the first
    mirrored for an even N, shifted by one for an odd N.
    """
    second = [nodes - 1 - node if nodes % 2 == 0 else (node - 1) % nodes for node in range(nodes)]
    parents = [_parent(node, nodes) for node in range(nodes)]
    children = Counter(parents)
    sent = [(parent is not None) + children[node] for node, parent in enumerate(parents)]
    return tuple((sent[node] + sent[second[node]]) * size / 2 for node in range(nodes))


def _parent(node: int, nodes: int) -> int | None:
    """In NCCL's binary tree: odd nodes are leaves, and of others the lowest bit that is set says the level."""
    if node == 0:
        return None
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def allgather_payload(own: float, ranks: int) -> float:
    """What each rank sends in a ring all-gather of `own` bytes from everyone: (N−1)·own. Each piece goes round the
    ring, past all ranks but the one it would come back to.
    """
    return (ranks - 1) * own


def gloo_allgather_payload(own: float, ranks: int) -> float:
    """What each rank sends in gloo's all-gather: allgather_payload and, for each other rank, 288 B of control. Exact to
    the byte at N = 2, 3, 4, from 1 B to 8 MB (docs/facts.md): two segments a piece, 144 B each.
    """
    return allgather_payload(own + GATHER_CONTROL, ranks)


def gloo_allgather_time(own: int, nodes: int, edge: Edge) -> float:
    """Seconds of gloo's all-gather over an edge: without delay its bytes ÷ goodput. With delay what the second half of
    an all-reduce of N·own takes, which gathers as much.
    """
    if nodes == 1:
        return 0.0
    if edge.rtt:
        return ring_time(nodes * own, nodes, edge) / 2
    return gloo_allgather_payload(own, nodes) * 8 / edge.goodput


def reduce_scatter_payload(size: float, ranks: int) -> float:
    """What each rank sends in a ring reduce-scatter of S bytes: (N−1)/N·S, a piece of S/N in each of N−1 steps."""
    return (ranks - 1) / ranks * size


def sparse_allreduce_payload(rows: int, width: int, ranks: int) -> float:
    """What each rank sends to reduce sparse gradients (an embedding with sparse=True): (N−1)·nnz·(8 + 4D).

    `rows` (nnz) of them are not zero, each D floats wide with an int64 index; gloo and NCCL gather them all, so that
    cost grows with N where a dense all-reduce's does not: dense is less from N·nnz·(8 + 4D) > 2·V·4D on, V rows in
    all. Assumes that ranks have equally many.
    """
    return allgather_payload(rows * (INDEX + VALUE * width), ranks)


def parameter_server_payload(size: float, workers: int) -> tuple[float, float]:
    """What a server on a machine of its own sends, and what each worker: (N·S, S). Each also receives as much.

    Workers push gradients and pull parameters, S each; the server's link is the bottleneck, N·S each way. Even one
    worker pays, since the server is another machine.
    """
    return workers * size, size


def serving_node_payload(size: float, nodes: int) -> tuple[float, ...]:
    """What each node sends where rank 0 serves beside its own training, by node: (N−1)·S, and S each of the others.

    Point to point over gloo: others push S of gradients each, and get as much back. Each message takes 96 B of control
    from its sender and 48 B from its receiver. Exact to the byte at N = 2 and 4 (docs/facts.md).
    """
    if nodes == 1:
        return (0.0,)
    one = size + COPY + RECEIPT
    return ((nodes - 1) * one, *(one,) * (nodes - 1))


def sharded_server_payload(size: float, nodes: int) -> float:
    """What each node sends where every node is a worker and serves 1/N of the parameters: 2(N−1)/N·S, as a ring.

    (N−1)/N·S of gradients to the other shards, and its own shard of S/N to N−1 workers.
    """
    return (nodes - 1) / nodes * size + (nodes - 1) * (size / nodes)


def node_link_payload(size: float, nodes: int, ranks: int) -> float:
    """What crosses a node's link one way in a ring all-reduce over nodes with several ranks each: 2(R−1)/R·S, R =
    nodes × ranks; 0 for one node.

    The ring goes through the ranks of one node after another, so it enters and leaves a node once: a node's link
    carries what one rank sends, as its other edges stay inside. Assumes the ring is in node order, as NCCL, MPI and
    torchrun number ranks.
    """
    return ring_payload(size, nodes * ranks) if nodes > 1 else 0.0
