"""A record like the one `rig run scenarios/bandwidth.yaml` writes, with a case of every status, and a hostile one.

The figures are those of a plain timeline: forward, backward in five slices, buckets one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]

COMPUTE = 0.187  # one-node step of ResNet-50, batch 32, at 171 samples/s (s)
BUCKETS = (8.19e6, 31.5e6, 26.3e6, 26.6e6, 9.7e6)
RATES = {"1gbit": 1e9, "2.5gbit": 2.5e9, "10gbit": 10e9}
DILATION = {("2.5gbit", 4): 4, ("10gbit", 2): 8, ("10gbit", 4): 16}
STEPS, WARMUP, REPEATS = 3, 2, 2

SCENARIO_TEXT = """\
name: bandwidth
description: Does a faster link make data-parallel training scale?
nodes: 4
link: {rate: 1gbit}
workload: {kind: ddp, model: resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}, steps: 3, warmup: 2}
sweep:
  nodes: [1, 2, 4]
  link.rate: [1gbit, 2.5gbit, 10gbit]
repeats: 2
expect: {traffic: 0.05%, step_time: 2.5%, speedup: 2.5%}
"""


def record() -> Document:
    """Nine cases, of which one failed, one is invalid, one broke and one was skipped."""
    cases = [passed(nodes, rate) for rate in RATES for nodes in (1, 2, 4)]
    cases[5] = failed(cases[5])
    cases[8] = {
        **cases[8],
        "status": "invalid",
        "unstable": True,
        "reason": "n2 up: goodput 4 % below the wire's arithmetic",
    }
    cases.append(
        broken("nodes=8,rate=1gbit", "error", "rank 3 on n3 died with exit code 1; its last line: CUDA out of memory")
    )
    cases.append(broken("nodes=16,rate=1gbit", "skipped", "interrupted before it began"))
    return document(cases)


def document(cases: list[Document], name: str = "bandwidth") -> Document:
    """A record around these cases."""
    counts = {
        status: sum(case["status"] == status for case in cases)
        for status in ("pass", "fail", "invalid", "error", "skipped")
    }
    return {
        "schema": 1,
        "rig": "0.1.0",
        "run": "20260102T030405-bandwidth-a1b2",
        "started": "2026-01-02T03:04:05Z",
        "scenario": {
            "path": "scenarios/bandwidth.yaml",
            "name": name,
            "description": "Does a faster link make data-parallel training scale?",
            "text": SCENARIO_TEXT,
            "resolved": {},
        },
        "environment": {
            "kernel": "6.18.0",
            "python": "3.11.9",
            "torch": "2.13.0",
            "cpu": {"model": "an x86-64 processor", "cores": 2},
            "git": {"commit": "0123abc", "dirty": False},
            "qdiscs": ["tbf", "htb"],
            "docker": None,
        },
        "warnings": ["netns was taken: no Docker engine answers on its socket"],
        "cases": cases,
        "summary": {**counts, "exit": 3, "seconds": 211.4},
    }


def passed(nodes: int, rate: str) -> Document:
    """A case that agrees with its prediction to within 0.4 %."""
    k = DILATION.get((rate, nodes), 1)
    step, exposed = _span(nodes, rate)
    payload = 2 * (nodes - 1) / nodes * sum(BUCKETS) + 144 * 200 * (nodes > 1)
    slow = 1.004 if nodes > 1 else 1.001
    speedup = nodes * COMPUTE / step
    figures = {
        "step_time": (step * slow, step, "s"),
        "throughput": (nodes * 32 / step / slow, nodes * 32 / step, "samples/s"),
        "speedup": (speedup / slow, speedup, "×"),
        "efficiency": (speedup / nodes / slow, speedup / nodes, ""),
        "payload_tx": (payload, payload, "B/step"),
        "wire_tx": (payload * 1.0456, payload * 1.0455, "B/step"),
        "exposed_comm": (exposed * 1.01, exposed, "s"),
    }
    return {
        "id": f"nodes={nodes},rate={rate}",
        "params": {"nodes": nodes, "link.rate": rate},
        "role": "case",
        "baseline": f"nodes=1,rate={rate}",
        "lab": "netns",
        "dilation": k,
        "status": "pass",
        "unstable": False,
        "reason": "",
        "links": [_link(f"n{node}", direction, rate, k) for node in range(nodes) for direction in ("up", "down")],
        "paths": [{"from": "n0", "to": "n1", "rate": RATES[rate], "mtu": 1500}],
        "measured": {name: _metric(value, unit) for name, (value, _, unit) in figures.items()},
        "predicted": {
            name: {
                "value": value,
                "unit": unit,
                "formula": "ring_bytes" if "tx" in name else "overlap",
                "inputs": {"nodes": nodes},
                "per_node": [],
            }
            for name, (_, value, unit) in figures.items()
        },
        "checks": [
            _check(name, figures[name], tolerance)
            for name, tolerance in (("step_time", 0.025), ("payload_tx", 0.0005), ("speedup", 0.025))
        ],
        "bottleneck": "link" if exposed > 0.02 else "compute",
        "host": {"cpu": {"busy": 0.31}, "run_delay": 0.0021, "cores": 2},
        "raw": {
            "steps": [
                _step(nodes, rate, k, (repeat, step, rank))
                for repeat in range(REPEATS)
                for step in range(WARMUP + STEPS)
                for rank in range(nodes)
            ]
        },
    }


def failed(case: Document) -> Document:
    """The same case, 6 % slower than predicted."""
    step = case["predicted"]["step_time"]["value"]
    slow = _check("step_time", (step * 1.06, step, "s"), 0.025)
    measured = {**case["measured"], "step_time": _metric(step * 1.06, "s")}
    reason = "step_time +6.0 % off the prediction, tolerance ±2.5 %"
    return {**case, "measured": measured, "checks": [slow, *case["checks"][1:]], "status": "fail", "reason": reason}


def broken(name: str, status: str, reason: str) -> Document:
    """A case that never came to measuring: most of its fields are empty."""
    return {
        "id": name,
        "params": {"nodes": 8},
        "role": "case",
        "baseline": "nodes=1,rate=1gbit",
        "lab": "netns",
        "dilation": 1,
        "status": status,
        "unstable": False,
        "reason": reason,
        "links": [],
        "paths": [],
        "measured": {},
        "predicted": {},
        "checks": [],
        "bottleneck": "",
        "host": {},
        "raw": {},
    }


def whole() -> Document:
    """Three cases with all that newer records hold: predicted timelines and intervals, why each is bound, curves."""
    cases = [newer(passed(nodes, "2.5gbit")) for nodes in (1, 2, 4)]
    return {**document(cases), "curves": [curve(nodes) for nodes in (2, 4, 8)]}


def newer(case: Document) -> Document:
    """The same case, in two micro-batches, as it is recorded today."""
    nodes, rate = case["params"]["nodes"], case["params"]["link.rate"]
    transfers = _transfers(nodes, rate) if nodes > 1 else []
    ready = [COMPUTE * 2 / 3 * (index + 1) / len(BUCKETS) for index in range(len(transfers))]
    line = {
        "before": 0.002, "earlier": 0.02, "forward": COMPUTE / 3 - 0.02, "ready": ready,
        "ends": [end - COMPUTE / 3 for _, end in transfers], "backward": COMPUTE * 2 / 3, "optimizer": 0.001,
    }  # fmt: skip
    step = case["predicted"]["step_time"]
    inputs = {"buckets": list(BUCKETS), "timeline": line}
    told = {"kind": case["bottleneck"], "where": "n0 up", "text": f"bytes fill 98% of it, at {rate}", "figures": {}}
    steps = [{**row, "earlier": 0.02 * case["dilation"]} for row in case["raw"]["steps"]]
    return {
        **case,
        "predicted": {
            **case["predicted"],
            "step_time": {**step, "inputs": inputs, "low": step["value"] * 0.97, "high": step["value"] * 1.03},
        },
        "host": {**case["host"], "bottleneck": told},
        "raw": {**case["raw"], "steps": steps, "notes": [*case["raw"].get("notes", ()), *evaluations()]},
    }


def evaluations() -> list[Document]:
    """What rank 0 found on held-out samples after every other step of both repeats."""
    return [
        {"event": "evaluated", "node": "n0", "repeat": repeat, "step": step, "held_out_loss": 2.0 / (step + 1)}
        for repeat in range(REPEATS)
        for step in range(1, STEPS + WARMUP, 2)
    ]


def curve(nodes: int) -> Document:
    """Speed-up by bandwidth from 100 Mb/s to 100 Gb/s, half of the traffic hidden; linear until computing bounds it."""
    even = 1.6e9 / nodes**0.5  # bit/s at which it is 1
    rates = [1e8 * 10 ** (index / 8) for index in range(25)]
    points = [[rate, min(float(nodes), rate / even)] for rate in rates]
    return {"case": "nodes=2,rate=2.5gbit", "nodes": nodes, "points": points}


def allreduce() -> Document:
    """A record without compute: one bucket per step, no speed-up, phases of zero length."""
    cases = []
    for size in (2**20, 25 * 2**20):
        start, end = 0.1, 0.1 + size * 8 / 0.94e9
        steps = [
            {
                "repeat": 0,
                "rank": rank,
                "node": f"n{rank}",
                "step": 0,
                "warmup": False,
                "start": start,
                "forward_start": start,
                "forward_end": start,
                "backward_end": start,
                "end": end,
                "buckets": [{"start": start, "end": end, "bytes": size}],
                "payload": size,
                "late": 0,
                "samples": 0,
            }
            for rank in range(2)
        ]
        cases.append(
            {
                **broken(f"nodes=2,size={size}", "pass", ""),
                "params": {"nodes": 2, "workload.size": str(size)},
                "raw": {"steps": steps},
                "measured": {
                    "step_time": _metric(end - start, "s"),
                    "busbw": _metric(size * 8 / (end - start), "bit/s"),
                },
            }
        )
    return document(cases, "allreduce")


def hostile() -> Document:
    """What no run should write, and what a report must survive: markup, control characters, NaN, holes, huge texts."""
    nasty = "</style><script>alert('x')</script> \x1b[31m\x00\ud800 \u202e ]]> {{ 7 * 7 }} 日本 $\\frac{$ [bold]"
    case = passed(2, "1gbit")
    case |= {
        "id": nasty,
        "status": "fail",
        "reason": nasty * 2000,
        "bottleneck": nasty,
        "params": {"nodes": 2, nasty: nasty},
    }
    case["measured"] = {
        **case["measured"],
        nasty: {"value": float("nan"), "unit": nasty},
        "loss": {"value": 10**400, "unit": ""},
    }
    case["measured"]["speedup"] = {"value": float("inf"), "unit": "", "low": None}
    case["checks"] = [{"metric": nasty, "measured": float("nan"), "note": nasty}, "not a check", None]
    case["links"] = [
        {"name": nasty, "direction": None, "asked": {"rate": "fast"}, "applied": None, "measured": [], "shaper": nasty},
        3,
    ]
    case["host"] = {nasty: {nasty: [nasty, None, float("nan")]}}
    case["raw"]["steps"] += [
        {},
        {"start": float("nan"), "end": 1.0, "buckets": [{"start": 2, "end": 1}, None]},
        "no step",
    ]
    empty: list[Any] = [
        {},
        None,
        {"status": "exploded", "id": "日本語 – Ünïcödé"},
        {"id": "x", "status": "pass", "dilation": 0, "measured": None},
    ]
    return {
        **document([case], nasty),
        "cases": [case, *empty],
        "warnings": [nasty],
        "environment": {nasty: nasty},
        "summary": None,
    }


def _span(nodes: int, rate: str) -> tuple[float, float]:
    if nodes == 1:
        return COMPUTE, 0.0
    end = max(end for _, end in _transfers(nodes, rate))
    return max(COMPUTE, end), max(0.0, end - COMPUTE)


def _transfers(nodes: int, rate: str) -> list[tuple[float, float]]:
    """(start, end) of every bucket, one after another, each ready a fifth of the backward pass after the last."""
    spans, free = [], 0.0
    for index, size in enumerate(BUCKETS):
        ready = COMPUTE / 3 + COMPUTE * 2 / 3 * (index + 1) / len(BUCKETS)
        start = max(ready, free)
        free = start + 2 * (nodes - 1) / nodes * size * 8 / (RATES[rate] * 1448 / 1538)
        spans.append((start, free))
    return spans


def _step(nodes: int, rate: str, k: int, place: tuple[int, int, int]) -> Document:
    repeat, step, rank = place
    whole = _span(nodes, rate)[0]
    begin = 1.5 + step * (whole + 0.002) * k + rank * 0.0004
    transfers = _transfers(nodes, rate) if nodes > 1 else []
    buckets = [
        {"start": begin + start * k, "end": begin + end * k, "bytes": size}
        for (start, end), size in zip(transfers, BUCKETS, strict=False)
    ]
    return {
        "repeat": repeat,
        "rank": rank,
        "node": f"n{rank}",
        "step": step,
        "warmup": step < WARMUP,
        "start": begin,
        "forward_start": begin + 0.001 * k,
        "forward_end": begin + COMPUTE / 3 * k,
        "backward_end": begin + COMPUTE * 0.99 * k,
        "end": begin + whole * k,
        "buckets": buckets,
        "payload": 102_000_000,
        "wire": 106_000_000,
        "late": 0.0004 * k,
        "run_delay": 0.0009,
        "loss": None,
        "samples": 32,
    }


def _link(node: str, direction: str, rate: str, k: int) -> Document:
    asked = RATES[rate]
    goodput = asked * 1448 / 1538
    return {
        "name": node,
        "direction": direction,
        "asked": {"rate": asked, "goodput": goodput, "rtt": 0.0},
        "applied": {"rate": asked * 1514 / 1538 / k, "burst": 262144, "queue": 2500000, "mtu": 1500},
        "measured": {"goodput": goodput * 0.998, "goodput_all": goodput * 0.991, "rtt": 0.000087},
        "shaper": "tbf",
    }


def _metric(value: float, unit: str) -> Document:
    return {
        "value": value,
        "unit": unit,
        "low": value * 0.985,
        "high": value * 1.012,
        "samples": [value] * 6,
        "per_node": [],
    }


def _check(name: str, figure: tuple[float, float, str], tolerance: float) -> Mapping[str, Any]:
    measured, predicted, _ = figure
    error = (measured - predicted) / predicted if predicted else 0.0
    status = "pass" if abs(error) <= tolerance else "fail"
    return {
        "metric": name,
        "measured": measured,
        "predicted": predicted,
        "error": error,
        "tolerance": tolerance,
        "status": status,
        "note": "",
    }
