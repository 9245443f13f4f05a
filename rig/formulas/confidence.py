"""What a prediction should lie between: the worst error seen of its like, as a literal table with sources.

Nothing is fitted to a case: an error is a regime's, from runs made earlier, and every later run tests it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from rig.formulas.limits import edges, sizes
from rig.formulas.rings import ring_time
from rig.model import Case
from rig.results import Predicted


@dataclass(frozen=True)
class Regime:
    """A kind of case, and how far its step time was off at worst, or is promised to be (share of the prediction)."""

    name: str
    error: float
    source: str


ALONE = Regime("one node, paced", 0.01, "docs/agreement.md: worst 0.05 %; 0.6 % by plain sleeping, k = 1, 100 ms")
BYTES = Regime("links without delay", 0.015, "docs/agreement.md: worst 0.89 %")
DELAY = Regime("links with delay", 0.08, "docs/facts.md, Latency: within 8 %")
REAL = Regime("real compute", 0.08, "its step time on one node is another run's: what scenarios with it may ask for")
# Load: what nodes send at full rate, over what the host carries (provision.load). Step times of paced ResNet-50 on two
# cores, N = 2 and 4, three rates, k = 1 to 8: worst 1.5 %, 3 % and 10 % up to these loads, −58 % beyond.
CROWDED = ((1.0, BYTES), (2.0, Regime("a loaded host", 0.03, "71 cells, load up to 2")),
           (4.0, Regime("a host with too much to do", 0.10, "71 cells, load up to 4")))  # fmt: skip
USELESS = Regime("a host that cannot keep up", 1.4, "71 cells, load above 4: 58 % of the step unpredicted")

# Where no calibration says what a small all-reduce takes, at most so much · N²: 0.4 to 1.6 ms were seen at N = 2,
# 4.4 to 6.3 at N = 4, 20 at N = 8, real seconds on two cores. Above what was tried no host is behind the figure at all.
SMALL, MOST_TRIED = 0.4e-3, 256
ALPHA_OFF = 0.3  # of a calibrated one: it differs so much from run to run

TRAFFIC = 1e-4  # of bytes: within 64 B of 153 MB (docs/facts.md)
PROPORTIONAL = ("step_time", "time_to_train")
INVERSE = ("throughput", "speedup", "efficiency", "busbw")
BESIDE = ("comm_time", "exposed_comm")  # off by as many seconds as the step


def bounded(case: Case, predictions: Mapping[str, Predicted], load: float = 0.0) -> dict[str, Predicted]:
    """The predictions with `low` and `high`: value ÷ (1 + e) to value · (1 + e), e being the regime's error, and above
    that what the host may add to all-reduces shorter than its own work. `load` as in CROWDED; 0 where unknown.

    A gain or a rate has the step's error turned round; a baseline's own, which is far smaller, is left out.
    """
    found = {name: _within(one, *_around(one.value, TRAFFIC)) for name, one in predictions.items() if one.unit == "B"}
    step = predictions.get("step_time")
    if step is None or not step.value:
        return {**predictions, **found}
    kind = regime(case, step, load)
    low, high = _around(step.value, kind.error)
    high += _host(case, predictions)
    for name, one in predictions.items():
        if name in PROPORTIONAL:
            found[name] = _within(one, one.value * low / step.value, one.value * high / step.value)
        elif name in INVERSE:
            found[name] = _within(one, one.value * step.value / high, one.value * step.value / low)
        elif name in BESIDE:
            found[name] = _within(one, max(0.0, one.value - step.value + low), one.value + high - step.value)
    told = {"regime": asdict(kind), "load": load}
    found["step_time"] = replace(found["step_time"], inputs={**step.inputs, "confidence": told})
    return {**predictions, **found}


def regime(case: Case, step: Predicted, load: float) -> Regime:
    """The worst of those that hold for a case."""
    holds = [ALONE] if case.size == 1 else [next((one for most, one in CROWDED if load <= most), USELESS)]
    if any(edge.rtt for edge in edges(step)):
        holds.append(DELAY)
    if case.computes_real:
        holds.append(REAL)
    return max(holds, key=lambda one: one.error)


def _around(value: float, error: float) -> tuple[float, float]:
    return value / (1 + error), value * (1 + error)


def _within(one: Predicted, low: float, high: float) -> Predicted:
    return replace(one, low=low, high=high)


def _host(case: Case, predictions: Mapping[str, Predicted]) -> float:
    """Seconds, emulated, that the host may add to all-reduces whose bytes take less time than its own work."""
    step = predictions["step_time"]
    if case.size == 1 or case.size > MOST_TRIED:
        return 0.0
    reduced, across = sizes(predictions), edges(step)
    spans = [max((ring_time(size, case.size, edge) for edge in across), default=0.0) for size in reduced]
    if "host" in step.inputs:
        least = float(step.inputs["host"]["least"])
        return sum(ALPHA_OFF * least for span in spans if span < least)
    least = SMALL * case.size**2 / case.dilation
    return sum(max(0.0, least - span) for span in spans)
