"""What measurements that others published should have been, from what they say of their machines. Nothing is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeVar

from rig.formulas.collectives import nccl_tree_payload, node_link_payload
from rig.formulas.exchange import accumulated_step
from rig.formulas.overlap import Transfer, overlap, shared
from rig.formulas.speedup import throughput
from rig.formulas.traffic import DDP_CAP
from rig.formulas.wire import Framing, wire_share
from rig.model import ETHERNET_HEADER, Phases

FRAMINGS = {"wire1500": Framing(), "tc9001": Framing(mtu=9001, around=ETHERNET_HEADER)}
Word = TypeVar("Word", bound=str)
FORWARD, BACKWARD = 1 / 3, 2 / 3  # of a step's compute: a backward pass makes two products for the forward pass's one


@dataclass(frozen=True)
class Row:
    """One published run; the columns of tests/data/published.csv that say what it was."""

    grad_bytes: int  # reduced a step, per rank
    nodes: int
    gpus_per_node: int
    link_bit_s: float
    framing: Literal["wire1500", "tc9001"]
    algorithm: Literal["ring", "tree", "p2p"]
    overlap: bool  # whether the backward pass hides communication
    accumulate: int
    compute_s: float  # one GPU's micro-step without communication
    batch_per_gpu: int  # 0 where it is not said
    metric: Literal["samples_per_s_total", "step_s"]


def row(cells: Mapping[str, str]) -> Row:
    """A line of the file by column. Raises KeyError or ValueError where a cell is missing or is no number."""
    return Row(
        grad_bytes=int(cells["grad_bytes"]),
        nodes=int(cells["nodes"]),
        gpus_per_node=int(cells["gpus_per_node"]),
        link_bit_s=float(cells["link_bit_s"]),
        framing=_one(cells["framing"], "wire1500", "tc9001"),
        algorithm=_one(cells["algorithm"], "ring", "tree", "p2p"),
        overlap=_one(cells["overlap"], "yes", "no") == "yes",
        accumulate=int(cells["accumulate"]),
        compute_s=float(cells["compute_s"]),
        batch_per_gpu=int(cells["batch_per_gpu"] or 0),
        metric=_one(cells["metric"], "samples_per_s_total", "step_s"),
    )


def _one(cell: str, *allowed: Word) -> Word:
    return allowed[allowed.index(cell)]


def predict_row(row: Row) -> float:
    """The row's `metric` from its other columns: samples/s of all GPUs, or seconds a step.

    Communication is what the busiest node's link must carry ÷ its goodput, with no α and no cost on the hosts: a lower
    bound of a step, an upper one of samples/s. With overlap, gradients become ready evenly over the backward pass, two
    thirds of compute, in equal buckets of DDP's 25 MiB at most, and are reduced one after another. What a row does not
    say (its tensors, its library's own buckets, its hosts) is not made up.
    """
    comm = _crossing(row) * 8 / (row.link_bit_s * wire_share(FRAMINGS[row.framing]))
    seconds = accumulated_step(row.compute_s, _synchronising(row, comm), row.accumulate)
    if row.metric == "step_s":
        return seconds
    gpus = row.nodes * row.gpus_per_node
    return throughput([row.batch_per_gpu * row.accumulate] * gpus, seconds)


def _crossing(row: Row) -> float:
    """Bytes the busiest node sends over its link."""
    if row.algorithm == "ring":
        return node_link_payload(row.grad_bytes, row.nodes, row.gpus_per_node)
    return max(nccl_tree_payload(row.grad_bytes, row.nodes)) if row.algorithm == "tree" else row.grad_bytes


def _synchronising(row: Row, comm: float) -> float:
    """The micro-step that exchanges gradients (s)."""
    if not row.overlap:
        return row.compute_s + comm
    count = ceil(row.grad_bytes / DDP_CAP)
    backward = BACKWARD * row.compute_s
    ready = tuple((place + 1) / count * backward for place in range(count))
    buckets = [Transfer(comm / count, comm / count)] * count
    return overlap(Phases(FORWARD * row.compute_s, ready, backward, 0.0), shared(ready, buckets)).step
