"""A case and what its one-node run showed → every figure it should give, with formula and inputs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rig.formulas.predict_allreduce import allreduce
from rig.formulas.predict_exchange import training
from rig.formulas.predict_parts import Predictions, unknown
from rig.formulas.predict_script import script
from rig.model import Case, Host, Phases

__all__ = ["predict", "unknown"]


def predict(case: Case, one_node: Phases | None = None, host: Host | None = None) -> Predictions:
    """All predictions for a case, emulated units. `one_node` is the measured one-node step: real compute needs it
    for times (bytes it does not); paced compute ignores it. `host` is what this machine itself adds, from an earlier
    calibration: without one, nothing. No times where `unknown` says why.
    """
    return PREDICTORS[case.workload.kind](case, one_node, host)


PREDICTORS: Mapping[str, Callable[[Case, Phases | None, Host | None], Predictions]] = {
    "ddp": training,
    "allreduce": allreduce,
    "script": script,
}
