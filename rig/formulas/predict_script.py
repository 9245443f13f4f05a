"""What a step of a person's own script should send, and take: from what its one-node run did and would have sent."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from rig.formulas import traffic
from rig.formulas.predict_ddp import Layout, timed
from rig.formulas.predict_parts import Predictions
from rig.model import Case, Host, Phases
from rig.results import Predicted
from rig.work import Script


def script(case: Case, one_node: Phases | None, host: Host | None) -> Predictions:
    """Bytes and times of DDP's exchanges over gloo; nothing where the one-node run shows none, or not what they send.
    No times where `Phases.silent` says why: what several models, or micro-batches that all exchange, wait for one
    another is not modelled.
    """
    assert isinstance(case.workload, Script)
    ranks = [node.ranks for node in case.nodes]
    if case.size == 1:
        inputs = {"buckets": [], "broadcasts": [], "ranks": ranks}
        return {"payload_tx": Predicted(0.0, "B", "node_step_payload", inputs, (0.0,))}
    if one_node is None or not one_node.buckets:
        return {}
    # A map of used parameters goes with the last bucket (reducer.cpp, mark_variable_ready).
    ready = one_node.ready + (max(one_node.ready),) * len(one_node.maps)
    layout = Layout((), one_node.buckets + one_node.maps, one_node.broadcasts)
    payload = traffic.node_step_payload(layout.buckets, layout.broadcasts, ranks)
    inputs = {"buckets": list(layout.buckets), "broadcasts": list(layout.broadcasts), "ranks": ranks}
    found = {"payload_tx": Predicted(fmean(payload), "B", "node_step_payload", inputs, payload)}
    if one_node.silent:
        return found
    return found | timed(case, layout, (replace(one_node, ready=ready),) * case.size, inputs, host)
