"""What could be changed about a case that trains: each change with its name and what it means. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from rig import whatif
from rig.model import Case
from rig.units import Rate, Size

LADDER = tuple(Rate.parse(text) for text in ("100mbit", "1gbit", "2.5gbit", "10gbit", "25gbit", "100gbit"))
RUNGS = 3  # of the ladder that are weighed, upwards from the present rate
KINDS = {  # what each kind of change means, in the order in which they are made where several are
    "links": "faster cables, cards and a switch; the training stays as it is",
    "lines": "faster lines between clusters; the training stays as it is",
    "nodes": "further ones like n0, each with a batch of its own",
    "spread": "further ones like n0, which share the work of each step",
    "fewer": "the first ones only; one by itself sends nothing",
    "batch": "larger micro-batches, which need memory",
    "accumulate": "gradients are exchanged in the last of so many micro-batches",
    "lora": "only adapters are trained: another result; computing counts as before",
    "buckets": "fewer, later exchanges in each step (bucket_cap)",
    "fp16": "gradients are exchanged in half precision",
    "local": "weights are averaged every H steps, and differ in between",
}


@dataclass(frozen=True)
class Option:
    """One thing that could be changed."""

    kind: str  # one of KINDS
    name: str
    apply: Callable[[Case], Case]


def options(case: Case) -> list[Option]:
    """Every change, kind by kind, the smaller steps first."""
    return [*_links(case), *_nodes(case), *_more_work(case), *_fewer_bytes(case), *_exchanges(case)]


def _links(case: Case) -> Iterator[Option]:
    for kind, name, between in (("links", "links", False), ("lines", "WAN lines", True)):
        if between and not case.wans:
            continue
        faster = [rate for rate in LADDER if rate > whatif.slowest(case, between)]
        for rate in faster[:RUNGS]:
            apply = partial(whatif.at_least, rate=rate, between=between)
            yield Option(kind, f"{speed(rate)} {name}", apply)


def _nodes(case: Case) -> Iterator[Option]:
    size = case.size
    more = sorted({size + 1, size + 2, 2 * size})
    for count in more:
        yield Option("nodes", _counted(count), partial(whatif.nodes, count=count))
    for count in more:
        if whatif.samples(case) % (count * whatif.training(case).accumulate) == 0:
            yield Option("spread", f"{count} nodes, same batch", partial(whatif.spread, count=count))
    for count in sorted({size - 1, size // 2, 1} - {0, size}, reverse=True):
        yield Option("fewer", _counted(count), partial(whatif.nodes, count=count))


def _more_work(case: Case) -> Iterator[Option]:
    for factor in (2, 4):
        yield Option("batch", f"batch ×{factor}", partial(whatif.batch, factor=factor))
    for count in (2, 4, 8, 16):
        if count > whatif.training(case).accumulate:
            yield Option("accumulate", f"accumulate {count}", partial(whatif.accumulate, count=count))


def _fewer_bytes(case: Case) -> Iterator[Option]:
    if whatif.has_adapters(case):
        yield Option("lora", "LoRA", whatif.adapters)
    for factor in (2, 4):
        cap = Size(factor * whatif.training(case).bucket_cap)
        yield Option("buckets", f"{cap} buckets", partial(whatif.buckets, cap=cap))


def _exchanges(case: Case) -> Iterator[Option]:
    work = whatif.training(case)
    if work.devices.backend == "nccl":  # what it sends then has no formula yet
        return
    if work.precision == "float32":
        yield Option("fp16", "fp16 gradients", whatif.half)
    for every in (4, 16):
        yield Option("local", f"local SGD, H = {every}", partial(whatif.averaged, every=every))


def _counted(nodes: int) -> str:
    return f"{nodes} nodes" if nodes > 1 else "1 node"


def speed(rate: float) -> str:
    """A rate of the kind that is bought (bit/s): 2.5 Gb/s."""
    factor, unit = next(step for step in ((1e9, "Gb/s"), (1e6, "Mb/s"), (0.0, "kb/s")) if rate >= step[0])
    return f"{rate / (factor or 1e3):.4g} {unit}"
