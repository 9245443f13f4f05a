"""What DDP's communication hooks send instead of plain gradients, per rank. Bytes of TCP payload.

Of one bucket each, over gloo; hooks are called bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from rig.formulas.collectives import gloo_allgather_payload
from rig.formulas.traffic import ELEMENT, gloo_allreduce_payload, gloo_broadcast_payload
from rig.work import Exchange

HALF = 2  # bytes of a float16 or a bfloat16
PLACE = 4  # of an int32
WORTH = 2  # powerSGD_hook's min_compression_rate


def fp16_payload(size: int, nodes: int) -> float:
    """Payload of fp16_compress_hook for `size` bytes of float32: an all-reduce of half as many; bf16 is the same.

    The hook casts, all-reduces and casts back (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py). Sums are
    made in float16: gradients above 65504 overflow. gloo sums bfloat16 as well, though torch's bf16_compress_hook
    refuses to ask it to (2.13).
    """
    return gloo_allreduce_payload(size // ELEMENT * HALF, nodes, HALF)


def powersgd_sizes(shapes: Sequence[Sequence[int]], rank: int) -> tuple[int, int, int]:
    """Bytes that powerSGD_hook reduces for tensors of these shapes: uncompressed, P and Q.

    A tensor is seen as a matrix of n = its first extent by m = the rest, and approximated by P (n×r) · Qᵀ (r×m), but
    only where (n + m)·r·2 < n·m; all others go as they are
    (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py). From start_powerSGD_iter on (1000; here 2), plain
    before. Over gloo the hook aborts with more than one bucket (torch 2.13), unless buckets are done one after another,
    as rig/workloads/hooks.py does.
    """
    plain = left = right = 0
    for shape in shapes:
        n, m = (shape[0] if shape else 1), prod(shape[1:])
        if (n + m) * rank * WORTH < n * m:
            left, right = left + n * rank, right + m * rank
        else:
            plain += n * m
    return plain * ELEMENT, left * ELEMENT, right * ELEMENT


def powersgd_payload(shapes: Sequence[Sequence[int]], rank: int, nodes: int) -> float:
    """Payload of powerSGD_hook: an all-reduce each of what is not compressed, of all P and of all Q."""
    return sum(gloo_allreduce_payload(size, nodes) for size in powersgd_sizes(shapes, rank) if size)


def topk_payload(size: int, share: float, nodes: int) -> float:
    """Payload where a rank sends only the largest `share` (0 to 1) of its float32 gradients, each with an int32 place:
    an all-gather of 8·k bytes, k = ⌈share · S/4⌉.

    Places differ from rank to rank, so nothing can be summed on the way. Less than a plain ring only while share < 1/N.
    Torch has no such hook; the rig's own (rig/workloads/hooks.py) adds what was left out to the next step's gradients.
    """
    return gloo_allgather_payload(topk_message(size, share), nodes)


def topk_message(size: int, share: float) -> int:
    """Bytes that a rank brings to that all-gather."""
    return ceil(share * (size // ELEMENT)) * (ELEMENT + PLACE)


def quantized_payload(size: int, nodes: int) -> float:
    """Payload where a rank sends its float32 gradients as a byte each, with one scale for all (float32): an all-gather
    of S/4 + 4 bytes, since sums of bytes would overflow.

    (N−1)/4·S against 2(N−1)/N·S of a plain ring: less up to N = 7, the same at 8, more beyond. torch's
    quantization_pertensor_hook does the same with a zero point, on GPUs only (torch 2.13); the rig's own is in
    rig/workloads/hooks.py.
    """
    return gloo_allgather_payload(quantized_message(size), nodes)


def quantized_message(size: int) -> int:
    """Bytes that a rank brings to that all-gather."""
    return size // ELEMENT + ELEMENT


# ── a step of hooks ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Collective:
    """One of those that a bucket takes over gloo: so many bytes of each rank, summed on their way or gathered."""

    size: int
    element: int = ELEMENT  # bytes
    gathered: bool = False

    def payload(self, nodes: int) -> float:
        """Bytes a rank sends."""
        if self.gathered:
            return gloo_allgather_payload(self.size, nodes)
        return gloo_allreduce_payload(self.size, nodes, self.element)


def bucket_collectives(
    exchange: Exchange, size: int, element: int, shapes: Sequence[Sequence[int]]
) -> tuple[Collective, ...]:
    """What a bucket of `size` bytes, in elements of that many, takes with each of DDP's communication hooks; PowerSGD
    asks for the shapes of its tensors.
    """
    match exchange.method:
        case "fp16" | "bf16":
            return (Collective(size // ELEMENT * HALF, HALF),)
        case "topk":
            return (Collective(topk_message(size, exchange.share.ratio), gathered=True),)
        case "quantized":
            return (Collective(quantized_message(size), gathered=True),)
        case "powersgd":
            return tuple(Collective(part) for part in powersgd_sizes(shapes, exchange.rank) if part)
    return (Collective(size, element),)


def hooked_step_payload(collectives: Sequence[Collective], broadcasts: Sequence[int], nodes: int) -> tuple[float, ...]:
    """Payload each rank sends in a DDP step whose buckets take these collectives, by rank; buffers go as in
    ddp_step_payload, before the forward pass.
    """
    sent = sum(one.payload(nodes) for one in collectives)
    copies = [gloo_broadcast_payload(size, nodes) for size in broadcasts]
    return tuple(sent + sum(one[rank] for one in copies) for rank in range(nodes))
