"""What one all-reduce a step should send, and take."""

from __future__ import annotations

from rig.formulas import nccl, rings, speedup, traffic
from rig.formulas.edges import document, ring
from rig.formulas.predict_parts import Predictions, added, told, unknown
from rig.model import Case, Host, Phases
from rig.results import Predicted
from rig.work import Allreduce


def allreduce(case: Case, _: Phases | None, host: Host | None) -> Predictions:
    """The bytes and seconds of one all-reduce among all nodes, and its bus bandwidth."""
    assert isinstance(case.workload, Allreduce)
    size, n = int(case.workload.size), case.size
    what = {"bytes": size, "nodes": n}
    payload = traffic.gloo_allreduce_payload(size, n)
    found = {"payload_tx": Predicted(payload, "B", "gloo_allreduce_payload", what, (payload,) * n)}
    if case.devices.backend == "nccl":
        found["payload_tx"] = nccl.payload(case, [size], (), what)
    if n > 1 and not unknown(case):
        legs, adds = ring(case), added(case, host)
        seconds = max(adds["least"], *(rings.ring_time(size, n, leg.edge) for leg in legs))
        inputs = what | {"edges": [document(leg) for leg in legs]} | told(adds)
        found["step_time"] = Predicted(seconds, "s", "ring_time", inputs)
        busbw = speedup.bus_bandwidth(size, n, seconds)
        found["busbw"] = Predicted(busbw, "bit/s", "bus_bandwidth", what | {"seconds": seconds})
    return found
