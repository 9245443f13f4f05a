"""A network-emulation test rig for distributed training.

The map, in the order data flows:

    cli.py, verbs.py, terminal.py   verbs and exit codes      progress.py   who looks on while a run goes
    pipeline.py    the flow on one page: file → cases → lab → workload → measurement → verdict → record
    scenario/      YAML → Scenario, with file:line:column errors
    plan.py        Scenario → cases     provision.py   what a scenario leaves open     topology.py   ways between nodes
    outlook*.py    `rig plan`     graph/   `rig graph`     inspection.py   `rig probe`     doctor/   `rig doctor`
    whatif.py, remedies.py, advice*.py, breakeven.py   `rig advise`     prospects.py   curves for the report
    calibration.py   `rig calibrate`     profiling.py   `rig profile`
    keeper.py, held.py, survey.py   a lab that stays up: `rig up`, `exec`, `status`, `capture`, `down`
    formulas/      traffic, wire, rings, timing, scaling, exchange, other people's rows; predict.py uses it
    fabric/        switches, links, shaping, delay line, read-back: a process of its own, the only user of pyroute2
    lab/           netns, docker: where nodes live, how to run a command in one; wiring, probing, changing links
    node/          what runs inside a node: launch, counters, link probe, facts; standard library only
    workloads/     ddp, allreduce, profiling: what runs on the nodes; the only user of torch
    workloads/onlooker/   watches a script of somebody's own from inside its process
    models/        layer tables of well-known models, for paced compute
    links.py       links as a record tells of them     measure.py   raw steps → metrics     cards.py   GPUs and NCCL
    verdict.py     metrics → pass, fail, invalid       attribution.py, lag.py   where the time went   record.py   JSON
    report/        HTML, plots, trace, JUnit, CSV: reads a record and nothing else
    model.py, work.py, results.py   the dataclasses that flow   units.py   Rate, Duration, Size, Fraction   errors.py

Imports go one way, downwards in this list; `node/` and `workloads/` import nothing above them.
"""

from __future__ import annotations

from collections.abc import Callable

__version__ = "0.1.0"


def __getattr__(name: str) -> Callable[[], None]:
    """`from rig import step`, for a training script that marks its steps itself; only then is anything imported."""
    if name != "step":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rig.workloads.onlooker.watch import marker

    return marker()
