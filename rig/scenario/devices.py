"""Where ranks compute and what carries their collectives, as written: a workload's keys device, backend, algorithm.

A kind of workload that has them declares the three, and asks `devices` and `device_complaints` here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Protocol

from rig.scenario.workloads import Complaint
from rig.work import Algorithm, Backend, Device, Devices

if TYPE_CHECKING:
    from rig.scenario.written import Written

BackendKey = Literal["auto", "gloo", "nccl"]
TIMES = ("step_time", "speedup")  # expectations on what only a ring's formula tells


class DeviceKeys(Protocol):
    """What a workload's keys have that may compute on a GPU."""

    @property
    def device(self) -> Device | None: ...
    @property
    def backend(self) -> BackendKey: ...
    @property
    def algorithm(self) -> Algorithm | None: ...
    @property
    def computes_real(self) -> bool: ...


def devices(keys: DeviceKeys) -> Devices:
    """The three, resolved: real compute takes a node's GPU where there is one; `backend: auto` is NCCL only where the
    file says cuda, for a plan must not depend on the machine that makes it; NCCL is pinned to its ring.
    """
    device: Device = keys.device or ("auto" if keys.computes_real else "cpu")
    return Devices(device, _backend(keys), keys.algorithm or "ring")


def _backend(keys: DeviceKeys) -> Backend:
    if keys.backend == "auto":
        return "nccl" if keys.device == "cuda" else "gloo"
    return keys.backend


def device_complaints(keys: DeviceKeys, written: Written, method: str = "allreduce") -> Iterator[Complaint]:
    """What does not go together. `method`: how nodes exchange. NCCL sends from GPU memory only, and chooses by itself
    unless it is told.
    """
    if written.gpu == "none" and keys.device == "cuda":
        yield ("gpu",), "none hides every GPU, and workload.device is cuda; write gpu: required, or leave device out"
    if _backend(keys) == "gloo":
        if keys.algorithm is not None:
            text = f"{keys.algorithm} is for NCCL, and gloo is a ring always; leave it out, or write backend: nccl"
            yield ("workload", "algorithm"), text
        return
    if keys.device != "cuda":
        yield ("workload", "backend"), "nccl sends from GPU memory only; write device: cuda beside it, or backend: gloo"
        return
    if method != "allreduce":
        text = f"nccl goes with exchange: allreduce in this version; write backend: gloo for {method}"
        yield ("workload", "backend"), text
    yield from _unpredicted(keys, written)


def _unpredicted(keys: DeviceKeys, written: Written) -> Iterator[Complaint]:
    """Expectations that nothing could be compared with."""
    way_out = "leave it out, or write algorithm: ring"
    if keys.algorithm == "auto" and written.expect.traffic is not None:
        yield ("expect", "traffic"), f"NCCL chooses what it sends where algorithm is auto, so none is due; {way_out}"
    if keys.algorithm in ("auto", "tree"):
        for name in TIMES:
            if getattr(written.expect, name) is not None:
                yield ("expect", name), f"no time is predicted of NCCL's {keys.algorithm}; {way_out}"
