"""Raw steps → metrics, in emulated units. Means over whole steps after warm-up, with 95 % bootstrap intervals."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import Any

from rig.formulas import speedup
from rig.model import Case, Phases
from rig.results import LinkReport, Metric, Predicted
from rig.work import Allreduce, Ddp, Script

RESAMPLES = 1000
Step = Mapping[str, Any]  # one row of raw["steps"]: one rank, one step, real seconds


def measure(case: Case, steps: Sequence[Step]) -> dict[str, Metric]:
    """Every metric the steps of a case hold. `steps` has a row per repeat, rank and step, warm-up included.

    Times are divided by the dilation. A moment of all ranks (one step of one repeat) is one sample.
    """
    counted = [step for step in steps if not step["warmup"]]
    k = case.dilation
    metrics = {
        "step_time": over_periods(case, counted, lambda step: (step["end"] - step["start"]) / k, "s"),
        "comm_time": by_node(case, counted, lambda step: comm(step) / k),
        "exposed_comm": by_node(case, counted, lambda step: exposed(step) / k),
        "payload_tx": per_node(case, counted, "payload"),
        "wire_tx": per_node(case, counted, "wire"),
        "lateness": over_moments(counted, lambda step: step["late"] / k, "s", worst=True),
    }
    metrics |= _rates(case, metrics["step_time"]) | _job(case, metrics["step_time"])
    losses = [step["loss"] for step in counted if step.get("loss") is not None]
    if losses:
        last = max(step["step"] for step in counted)
        final = [step["loss"] for step in counted if step["step"] == last and step["loss"] is not None]
        metrics["loss"] = Metric(fmean(final), "", samples=tuple(final))
    return metrics


def learnt(case: Case, steps: Sequence[Step], notes: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """What evaluations on held-out samples gave, means over repeats: loss and accuracy (0 to 1) of the last one, the
    learning rate of the step before it; where the workload has a target, the seconds and steps until it was reached.
    """
    seen = [note for note in notes if note.get("event") == "evaluated"]
    last = {note["repeat"]: note for note in seen}.values()
    found = {}
    for name in ("held_out_loss", "accuracy", "learning_rate"):
        values = [note[name] for note in last if note.get(name) is not None]
        if values:
            found[name] = _over_repeats(values, "")
    return found | _reached(case, steps, seen)


def _reached(case: Case, steps: Sequence[Step], seen: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """The steps' own times up to the first evaluation at the target or below, warm-up included, for it trains as well;
    nothing unless every repeat got there. What evaluations take does not count.
    """
    target = getattr(case.workload, "target_loss", None)
    if target is None:
        return {}
    there = [note for note in seen if note["held_out_loss"] <= target]
    first = {note["repeat"]: note["step"] for note in reversed(there)}
    if len(first) < case.repeats:
        return {}
    spent = [elapsed(case, steps, repeat)[step] for repeat, step in sorted(first.items())]
    counts = [float(step + 1) for _, step in sorted(first.items())]
    return {"time_to_loss": _over_repeats(spent, "s"), "steps_to_loss": _over_repeats(counts, "steps")}


def elapsed(case: Case, steps: Sequence[Step], repeat: int) -> dict[int, float]:
    """Step of a repeat → seconds of training when it is done: of each step its mean over ranks."""
    spans: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        if step["repeat"] == repeat:
            spans[step["step"]].append((step["end"] - step["start"]) / case.dilation)
    return dict(zip(sorted(spans), accumulate(fmean(spans[step]) for step in sorted(spans)), strict=True))


def _over_repeats(values: Sequence[float], unit: str) -> Metric:
    return Metric(fmean(values), unit, *interval(values), samples=tuple(values))


def _rates(case: Case, step_time: Metric) -> dict[str, Metric]:
    if isinstance(case.workload, Allreduce):
        bits = speedup.bus_bandwidth(int(case.workload.size), case.size, 1.0)
        return {"busbw": _inverse(step_time, bits, "bit/s")} if case.size > 1 else {}
    samples = speedup.throughput([node.batch for node in case.nodes], 1.0)
    counts = "batches/s" if isinstance(case.workload, Script) and not case.workload.batch else "samples/s"
    return {"throughput": _inverse(step_time, samples, counts)}


def _job(case: Case, step_time: Metric) -> dict[str, Metric]:
    """How long the whole job that the scenario names takes at that pace (s)."""
    job = getattr(case.workload, "job", None)
    if job is None:
        return {}
    whole = speedup.time_to_train(job, [node.batch for node in case.nodes], 1.0)
    low, high = (None if end is None else whole * end for end in (step_time.low, step_time.high))
    return {"time_to_train": Metric(whole * step_time.value, "s", low, high)}


def goodput(links: Sequence[LinkReport]) -> tuple[Metric, Predicted]:
    """The links as one figure, bit/s: per cable the direction that is furthest from its wire arithmetic."""
    worst: dict[str, LinkReport] = {}
    for link in links:
        if link.name not in worst or _off(link) > _off(worst[link.name]):
            worst[link.name] = link
    seen = tuple(_rates_of(link)[0] for link in worst.values())
    due = tuple(_rates_of(link)[1] for link in worst.values())
    inputs = {"rates": [link.asked["rate"] for link in worst.values()]}
    return Metric(fmean(seen), "bit/s", per_node=seen), Predicted(fmean(due), "bit/s", "goodput", inputs, due)


def _rates_of(link: LinkReport) -> tuple[float, float]:
    """Measured and due: of TCP, or of UDP where TCP does not measure the rate."""
    name = "goodput" if "goodput" in link.asked else "udp"
    return link.measured[name], link.asked[name]


def _off(link: LinkReport) -> float:
    seen, due = _rates_of(link)
    return abs(seen / due - 1)


def relate(case: Case, own: Mapping[str, Metric], baseline: Mapping[str, Metric]) -> dict[str, Metric]:
    """Speed-up and efficiency over the measured one-node case; the interval pairs one's worst with the other's best."""
    mine, one = own.get("throughput"), baseline.get("throughput")
    if mine is None or one is None:
        return {}
    value = speedup.speedup(mine.value, one.value)
    low = speedup.speedup(mine.low or mine.value, one.high or one.value)
    high = speedup.speedup(mine.high or mine.value, one.low or one.value)
    gain = Metric(value, "×", low, high)
    n = case.size
    return {"speedup": gain, "efficiency": Metric(speedup.efficiency(value, n), "", low / n, high / n)}


def phases(steps: Sequence[Step], notes: Sequence[Mapping[str, Any]] = ()) -> Phases:
    """Where a one-node step spent its time: what real compute's prediction for more nodes starts from. What comes
    before its first forward pass counts with that, for a node by itself waits for no buffers. What it would send to
    others is in its steps' buckets and, of buffers, in the note that tells DDP's layout.

    Buckets are ready when their hook is called.
    """
    counted = [step for step in steps if not step["warmup"]]
    layout: Mapping[str, Any] = next((note for note in notes if note.get("event") == "layout"), {})
    unknown = _silence(counted, layout)
    ready = [[bucket["start"] - step["forward_end"] for bucket in step["buckets"]] for step in counted]
    early = [moment for row in ready for moment in row if moment < 0]
    earlier = fmean(step.get("earlier", 0.0) for step in counted)
    return Phases(
        forward=fmean(step["forward_end"] - step["start"] for step in counted) - earlier,
        ready=() if unknown else tuple(fmean(column) for column in zip(*ready, strict=True)),
        backward=fmean(step["backward_end"] - step["forward_end"] for step in counted),
        optimizer=fmean(step["end"] - max(step["backward_end"], _last_end(step)) for step in counted),
        earlier=earlier,
        buckets=() if unknown else tuple(int(bucket["bytes"]) for bucket in counted[-1]["buckets"]),
        broadcasts=tuple(layout.get("broadcasts", ())),
        shapes=tuple(tuple(map(tuple, bucket)) for bucket in layout.get("shapes", ())),
        maps=tuple(layout.get("maps", ())),
        silent=unknown or ("it exchanges in several backward passes of a step" if early else ""),
    )


def _silence(steps: Sequence[Step], layout: Mapping[str, Any]) -> str:
    """Why a one-node run does not tell what it would send to others, or nothing."""
    buckets = [[bucket["bytes"] for bucket in step["buckets"]] for step in steps]
    if not any(buckets):
        return "there is no DDP in it"
    if any(one != buckets[0] for one in buckets):
        return "not every step of it exchanges the same buckets"
    hooks = ", ".join(layout.get("hooks", ()))
    return f"its buckets do not tell what it sends: {hooks}" if hooks else ""


def comm(step: Step) -> float:
    """Seconds in which at least one bucket was on its way, and the wait for buffers before the forward pass."""
    return _before(step) + _on_the_way(step, float("-inf"))


def exposed(step: Step) -> float:
    """Seconds of communication that no computing hid: before the forward pass, and after the last gradient, be that
    before the optimizer or after it.
    """
    return _before(step) + _on_the_way(step, step["backward_end"])


def _on_the_way(step: Step, since: float) -> float:
    """Seconds since a moment in which at least one bucket was on its way."""
    busy, reached = 0.0, since
    for bucket in sorted(step["buckets"], key=lambda bucket: float(bucket["start"])):
        busy += max(0.0, bucket["end"] - max(bucket["start"], reached))
        reached = max(reached, bucket["end"])
    return busy


def _before(step: Step) -> float:
    """The wait for buffers before the forward pass; what a script waits for data is its own affair."""
    return float(step["forward_start"] - step["start"] - step.get("loading", 0.0))


def _last_end(step: Step) -> float:
    return float(max((bucket["end"] for bucket in step["buckets"]), default=step["backward_end"]))


def over_moments(steps: Sequence[Step], value: Any, unit: str, worst: bool = False) -> Metric:
    """The mean over moments of the mean (or the worst) over ranks, with its interval."""
    moments: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in steps:
        moments[step["repeat"], step["step"]].append(value(step))
    samples = [max(values) if worst else fmean(values) for _, values in sorted(moments.items())]
    low, high = interval(samples)
    return Metric(fmean(samples), unit, low, high, tuple(samples))


def over_periods(case: Case, steps: Sequence[Step], value: Any, unit: str) -> Metric:
    """The same, but a sample is the mean over a whole period: where nodes exchange once in so many steps, one step in
    so many is long, which says nothing about how sure the mean is.
    """
    work = case.workload
    period = work.exchange.period if isinstance(work, Ddp) else 1
    return over_moments([{**step, "step": (step["step"] - work.warmup) // period} for step in steps], value, unit)


def by_node(case: Case, steps: Sequence[Step], value: Any) -> Metric:
    """Seconds over periods, and each node's mean."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        seconds[step["node"]].append(value(step))
    nodes = tuple(fmean(seconds[node.name]) for node in case.nodes)
    return replace(over_periods(case, steps, value, "s"), per_node=nodes)


def per_node(case: Case, steps: Sequence[Step], counter: str) -> Metric:
    """Bytes per step: each node's mean, and the mean over nodes. Ranks of one node add up."""
    sums: dict[str, float] = defaultdict(float)
    for step in steps:
        sums[step["node"]] += step[counter]
    moments = len({(step["repeat"], step["step"]) for step in steps})
    nodes = tuple(sums[node.name] / moments for node in case.nodes)
    return Metric(fmean(nodes), "B", per_node=nodes)


def interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean (Efron); degenerate for fewer than two samples. Deterministic."""
    if len(samples) < 2:
        return samples[0], samples[0]
    draw = random.Random(seed)
    means = sorted(fmean(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def _inverse(of: Metric, numerator: float, unit: str) -> Metric:
    """numerator ÷ metric, the interval turned round."""
    low = numerator / of.high if of.high else None
    high = numerator / of.low if of.low else None
    return Metric(numerator / of.value, unit, low, high, tuple(numerator / sample for sample in of.samples))


def host(steps: Sequence[Step], clocks: Sequence[float]) -> dict[str, Any]:
    """How the host coped: shares of a step's time, and the largest uncertainty of a node's clock (s)."""
    counted = [step for step in steps if not step["warmup"]]
    waited = fmean(step["run_delay"] / (step["end"] - step["start"]) for step in counted)
    return {"run_delay": waited, "clock_uncertainty": max(clocks, default=0.0)}


def cpu_shares(before: Any, after: Any) -> dict[str, float]:
    """What became of this machine's CPU time between two readings of psutil.cpu_times(), as shares of it: "cpu_busy"
    was worked, "cpu_stolen" was given to others by the hypervisor that this machine is a guest of (proc_stat(5)).
    """
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields if "guest" not in name}
    whole = max(sum(spent.values()), 1e-9)
    idle, stolen = spent.get("idle", 0.0) + spent.get("iowait", 0.0), spent.get("steal", 0.0)
    return {"cpu_busy": 1 - (idle + stolen) / whole, "cpu_stolen": stolen / whole}
