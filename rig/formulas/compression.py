"""What DDP's communication hooks send instead of plain gradients, per rank. Bytes of TCP payload.

Of one bucket each; hooks are called bucket by bucket. Where a hook reduces, over gloo; where it gathers, over any ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from rig.formulas.collectives import allgather_payload, sparse_allreduce_payload
from rig.formulas.traffic import ELEMENT, gloo_allreduce_payload

HALF = 2  # bytes of a float16
WORTH = 2  # powerSGD_hook's min_compression_rate


def fp16_payload(size: int, nodes: int) -> float:
    """Payload of fp16_compress_hook for `size` bytes of float32: an all-reduce of half as many.

    The hook casts, all-reduces and casts back (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py). Sums are
    made in float16: gradients above 65504 overflow.
    """
    return gloo_allreduce_payload(size // ELEMENT * HALF, nodes, HALF)


def powersgd_sizes(shapes: Sequence[Sequence[int]], rank: int) -> tuple[int, int, int]:
    """Bytes that powerSGD_hook reduces for tensors of these shapes: uncompressed, P and Q.

    A tensor is seen as a matrix of n = its first extent by m = the rest, and approximated by P (n×r) · Qᵀ (r×m), but
    only where (n + m)·r·2 < n·m; all others go as they are
    (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py). From start_powerSGD_iter (1000) on, plain before.
    Over gloo the hook works with one bucket and aborts with more (torch 2.13).
    """
    plain = left = right = 0
    for shape in shapes:
        n, m = shape[0], prod(shape[1:])
        if (n + m) * rank * WORTH < n * m:
            left, right = left + n * rank, right + m * rank
        else:
            plain += n * m
    return plain * ELEMENT, left * ELEMENT, right * ELEMENT


def powersgd_payload(shapes: Sequence[Sequence[int]], rank: int, nodes: int) -> float:
    """Payload of powerSGD_hook: an all-reduce each of what is not compressed, of all P and of all Q."""
    return sum(gloo_allreduce_payload(size, nodes) for size in powersgd_sizes(shapes, rank) if size)


def topk_payload(size: int, share: float, nodes: int) -> float:
    """Payload where a rank sends only the largest `share` (0 to 1) of its float32 gradients, each with an int64 index:
    an all-gather, (N−1)·k·(8 + 4), k = ⌈share · S/4⌉.

    Indices differ from rank to rank, so nothing can be summed on the way. Less than a plain ring only while
    share < 2/(3N): for N = 8, one in twelve. Torch has no such hook; this is what one would send.
    """
    return sparse_allreduce_payload(ceil(share * size / ELEMENT), 1, nodes)


def quantized_payload(size: int, nodes: int) -> float:
    """Payload of quantization_pertensor_hook for `size` bytes of float32: (N−1)·(S/4 + 8), all-gathers of a byte per
    element and of a scale and a zero point (float32 each), since sums of bytes would overflow.

    (N−1)/4·S against 2(N−1)/N·S of a plain ring: less up to N = 7, the same at 8, more beyond. torch's hook does not
    work over gloo (2.13).
    """
    return allgather_payload(size / ELEMENT + 2 * ELEMENT, nodes)
