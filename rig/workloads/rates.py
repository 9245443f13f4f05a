"""The learning rate of a step, where the global batch grows with the number of nodes."""

from __future__ import annotations

from math import sqrt
from typing import Literal

Scaling = Literal["none", "linear", "sqrt"]


def factor(scaling: Scaling, size: int) -> float:
    """By how much `size` times the batch raises the rate: linear × size (Goyal et al., arXiv 1706.02677, section 2.1),
    sqrt × √size, which keeps the variance of an update (Krizhevsky, arXiv 1404.5997, section 5), none × 1.
    """
    return {"none": 1.0, "linear": float(size), "sqrt": sqrt(size)}[scaling]


def learning_rate(step: int, lr: float, scale: float, warmup: int) -> float:
    """The rate of a step, counted from 0: from `lr`, one node's, up to `lr` · `scale` in `warmup` equal increments (the
    gradual warm-up of arXiv 1706.02677, section 2.2); without any, `lr` · `scale` from the start.

        lr · (1 + (scale − 1) · min(1, step ÷ warmup))
    """
    reached = min(1.0, step / warmup) if warmup else 1.0
    return lr * (1 + (scale - 1) * reached)
