"""Every way to exchange, by real ranks in a lab: bytes against the formulas, one model in the end, and it learns.

One lab serves all; its links are not probed, for only bytes are judged. That ranks end with the same parameters, and
that stand-ins were summed or gathered right, the ranks check themselves: they would end with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean

import pytest

from rig import measure
from rig.formulas.predict import predict
from rig.lab import Lab, Order, open_lab
from rig.lab.ranks import Outcome, run_ranks
from rig.model import Case
from rig.plan import expand
from rig.scenario import loads
from tests.lab.conftest import new_run

pytestmark = pytest.mark.slow

SCENARIO = """\
name: exchanges
nodes: {nodes}
link: {{rate: 5gbit}}
threads: 1
workload:
  kind: ddp
  model: cnn
  batch: 16
  compute: {compute}
  steps: {steps}
  exchange: {exchange}
  {more}
"""
REAL, PACED = "real", "{forward: 10ms, backward: 20ms}"
Ran = Callable[..., tuple[Case, Outcome]]


def case(nodes: int, exchange: str, compute: str = REAL, steps: int = 8, more: str = "") -> Case:
    """The scenario's case of so many nodes."""
    text = SCENARIO.format(nodes=nodes, exchange=exchange, compute=compute, steps=steps, more=more)
    found = next(one for one in expand(loads(text, "x.yaml"), cores=2) if one.size == nodes)
    return replace(found, dilation=1)


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[Lab, str]]:
    run = new_run()
    with open_lab("netns", Order(run, case(4, "allreduce"), print)) as opened:
        yield opened, run


@pytest.fixture(scope="module")
def ran(lab: tuple[Lab, str]) -> Ran:
    """Run a case, or give what it gave before."""
    kept: dict[str, tuple[Case, Outcome]] = {}

    def run_of(nodes: int, exchange: str, **keys: object) -> tuple[Case, Outcome]:
        known = f"{nodes} {exchange} {keys}"
        if known not in kept:
            one, outcome = case(nodes, exchange, **keys), Outcome(0, time.monotonic())  # type: ignore[arg-type]
            run_ranks(lab[0], one, lab[1], outcome)
            kept[known] = one, outcome
        return kept[known]

    return run_of


def sent(one: Case, outcome: Outcome) -> tuple[float, ...]:
    """Payload a step, by node."""
    return measure.measure(one, outcome.steps)["payload_tx"].per_node


def assert_as_predicted(one: Case, outcome: Outcome) -> None:
    """All nodes' bytes together are the formula's; a single rank's are off by the padding of segments at most."""
    due = predict(one)["payload_tx"].per_node
    assert sum(sent(one, outcome)) == pytest.approx(sum(due), rel=1e-6)
    assert sent(one, outcome) == pytest.approx(due, rel=1e-3)


@pytest.mark.parametrize(
    ("exchange", "steps"),
    [
        ("allreduce", 8), ("fp16", 8), ("bf16", 8), ("{powersgd: {rank: 4}}", 8), ("{topk: {share: 5%}}", 8),
        ("quantized", 8), ("{local_sgd: {every: 8}}", 8), ("{diloco: {every: 32}}", 32), ("parameter_server", 8),
    ],
)  # fmt: skip
def test_two_nodes_learn_and_send_what_the_formula_says(ran: Ran, exchange: str, steps: int) -> None:
    one, outcome = ran(2, exchange, steps=steps)
    assert_as_predicted(one, outcome)
    losses = [fmean(step["loss"] for step in outcome.steps if step["step"] == at) for at in range(steps + 2)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    "exchange",
    ["{powersgd: {rank: 2}}", "topk", "{hierarchical: {every: 2, group: 2, every_all: 8}}", "parameter_server"],
)
def test_four_paced_nodes_send_what_the_formula_says(ran: Ran, exchange: str) -> None:
    assert_as_predicted(*ran(4, exchange, compute=PACED))


def test_half_precision_halves_what_is_sent(ran: Ran) -> None:
    whole, half = sum(sent(*ran(2, "allreduce", steps=8))), sum(sent(*ran(2, "fp16", steps=8)))
    assert half == pytest.approx(whole / 2, rel=0.005)


@pytest.mark.parametrize(("exchange", "steps"), [("{local_sgd: {every: 8}}", 8), ("{diloco: {every: 32}}", 32)])
def test_exchanging_once_in_a_period_divides_what_is_sent(ran: Ran, exchange: str, steps: int) -> None:
    whole, seldom = sum(sent(*ran(2, "allreduce", steps=8))), sum(sent(*ran(2, exchange, steps=steps)))
    assert seldom == pytest.approx(whole / steps, rel=0.01)


def test_gradients_of_half_precision(ran: Ran) -> None:
    one, outcome = ran(2, "allreduce", more="precision: bfloat16")
    assert_as_predicted(one, outcome)
    assert sum(sent(one, outcome)) == pytest.approx(sum(sent(*ran(2, "allreduce", steps=8))) / 2, rel=0.005)
