"""How many bytes of TCP payload a step sends, per rank. Bytes throughout; N = nodes, one rank each."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

MIB = 2**20
ELEMENT = 4  # bytes of a float32
CONTROL = 144  # bytes of gloo's own messages per segment of the ring
COPY, RECEIPT = 96, 48  # and per copy in a broadcast's tree: from its sender, from its receiver
DDP_CAP, DDP_FIRST_CAP = 25 * MIB, MIB  # torch/nn/parallel/distributed.py; the second only beside the first


def segments_per_chunk(size: int, nodes: int) -> int:
    """Into how many segments gloo's ring cuts each of its N chunks (K): none is larger than 1 MiB, and two at least."""
    return max(2, ceil(ceil(size / MIB) / nodes))


def gloo_allreduce_payload(size: int, nodes: int, element: int = ELEMENT) -> float:
    """Payload a rank sends in one all-reduce of `size` bytes, in elements of that many (float32: 4), the mean over
    ranks: 2(N−1)/N·(S + 144·segments).

    gloo reduces by a segmented ring at every size: N−1 steps of reduce-scatter and N−1 of all-gather, each sending
    S/N in K = max(2, ceil(ceil(S / 1 MiB) / N)) segments of whole elements; a segment takes 144 B of control, an
    empty one is not sent (gloo/allreduce.cc). Exact to the byte at N = 2, 3, 4 (docs/facts.md); where N·K does not
    divide S, single ranks are off by at most two segments' padding. Nothing is sent for N = 1.
    """
    if nodes == 1:
        return 0.0
    elements = ceil(size / element)
    segments = ceil(elements / ceil(elements / (nodes * segments_per_chunk(size, nodes))))
    return 2 * (nodes - 1) / nodes * (size + CONTROL * segments)


def ddp_buckets(tensor_bytes: Sequence[int], cap: int) -> tuple[tuple[int, ...], ...]:
    """Which tensors (indices in registration order) share a bucket, in the order the buckets are reduced.

    DDP fills buckets in the order gradients become ready, the reverse of registration, and closes one once it
    has *passed* its cap (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size). The first
    bucket's cap is 1 MiB, but only where `cap` is the default of 25 MiB: a cap of one's own holds for all.
    Holds from the second iteration on, when DDP has rebuilt its buckets.
    """
    first_cap = DDP_FIRST_CAP if cap == DDP_CAP else cap
    buckets: list[tuple[int, ...]] = []
    current: list[int] = []
    filled = 0
    for index in reversed(range(len(tensor_bytes))):
        current.append(index)
        filled += tensor_bytes[index]
        if filled >= (cap if buckets else first_cap):
            buckets.append(tuple(current))
            current, filled = [], 0
    if current:
        buckets.append(tuple(current))
    return tuple(buckets)


def gloo_broadcast_payload(size: int, nodes: int) -> tuple[float, ...]:
    """Payload each rank sends in one broadcast of `size` bytes from rank 0, by rank.

    A binomial tree: rank r passes it on to r + 2^k for every 2^k > r; each copy takes 96 B of control from its
    sender and 48 B from its receiver. Exact to the byte at N = 2 to 5 (docs/facts.md).
    """
    children = [sum(2**k > rank and rank + 2**k < nodes for k in range(nodes.bit_length())) for rank in range(nodes)]
    return tuple(count * (size + COPY) + (RECEIPT if rank else 0) for rank, count in enumerate(map(float, children)))


def ddp_step_payload(buckets: Sequence[int], broadcasts: Sequence[int], nodes: int) -> tuple[float, ...]:
    """Payload each rank sends in one DDP step, by rank, from the third step on: an all-reduce per bucket and, where
    the model has buffers, a broadcast from rank 0 per buffer dtype before the forward pass (broadcast_buffers).

    The first step uses one single bucket, the second also broadcasts how the buckets are rebuilt.
    """
    reduced = sum(gloo_allreduce_payload(size, nodes) for size in buckets)
    sent = [gloo_broadcast_payload(size, nodes) for size in broadcasts]
    return tuple(reduced + sum(one[rank] for one in sent) for rank in range(nodes))


def node_step_payload(buckets: Sequence[int], broadcasts: Sequence[int], ranks: Sequence[int]) -> tuple[float, ...]:
    """Payload that crosses each node's link in one DDP step, by node, where nodes have so many `ranks`: what those send
    to ranks of other nodes.

    The ring goes through the ranks of one node after another, so it enters and leaves a node once, and a node sends
    what one of all ranks does (collectives.node_link_payload). Of a broadcast's tree, a copy to a rank of another node
    counts, and its receipt. With one rank a node it is ddp_step_payload.
    """
    homes = [node for node, count in enumerate(ranks) for _ in range(count)]
    ring = sum(gloo_allreduce_payload(size, len(homes)) for size in buckets) if len(ranks) > 1 else 0.0
    sent = [ring] * len(ranks)
    strides = [2**k for k in range((len(homes) - 1).bit_length())]
    copies = [(rank, rank + stride) for stride in strides for rank in range(min(stride, len(homes) - stride))]
    for size in broadcasts:
        for start, end in copies:
            if homes[start] != homes[end]:
                sent[homes[start]] += size + COPY
                sent[homes[end]] += RECEIPT
    return tuple(sent)


def ddp_startup_payload(tensors: Sequence[int], nodes: int) -> tuple[float, ...]:
    """Payload each rank sends when DDP is constructed: all parameters and buffers, broadcast from rank 0.

    A lower bound: DDP also compares shapes, which takes up to about 2 kB per copy.
    """
    return gloo_broadcast_payload(sum(tensors), nodes)


def unused_map_payload(parameters: int, nodes: int) -> float:
    """Payload a rank sends in a step for find_unused_parameters: one more all-reduce, of an int32 for each parameter
    tensor (torch/csrc/distributed/c10d/reducer.cpp, all_reduce_local_used_map). Not sent for a static graph.
    """
    return gloo_allreduce_payload(ELEMENT * parameters, nodes)


def payload_per_sample(step_payload: float, accumulate: int, batch: int) -> float:
    """Payload per sample, from that of one step (B): P / (k·b), with k micro-batches of b samples a step.

    What a step sends does not depend on k: under no_sync the gradients are not exchanged, and buffers are broadcast
    only before the forward pass that follows a synchronising one (DDP's require_forward_param_sync).
    """
    return step_payload / (accumulate * batch)
