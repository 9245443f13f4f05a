"""`kind: allreduce` as written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rig.scenario.devices import BackendKey, device_complaints, devices
from rig.scenario.workloads import Complaint, Surroundings, WorkloadKeys
from rig.units import Size
from rig.work import Algorithm, Allreduce, Device

if TYPE_CHECKING:
    from rig.scenario.written import Written


class AllreduceKeys(WorkloadKeys):
    """One all-reduce a step. `sizes: [a, b]` is short for a sweep over workload.size."""

    speeds_up = False

    kind: Literal["allreduce"]
    size: Size | None = None
    sizes: list[Size] | None = None
    steps: int = Field(5, ge=2, le=100_000)
    warmup: int = Field(2, ge=1, le=10_000)
    device: Device | None = None
    backend: BackendKey = "auto"
    algorithm: Algorithm | None = None

    def complaints(self, written: Written, around: Surroundings) -> Iterator[Complaint]:
        if self.sizes is not None:  # a list alone has become a sweep before this is asked
            text = "is short for a sweep over workload.size; write one of the two, and do not sweep it"
            yield ("workload", "sizes"), text
        elif self.size is None:
            yield ("workload", "size"), "missing; write it like 25MiB, or sizes: [1MiB, 25MiB]"
        elif self.size % 4 or not 4 <= self.size <= 2**34:
            yield ("workload", "size"), f"{self.size} is no whole number of float32 (4 B) from 4B to 16GiB"
        for node, machine in written.machines.items():
            for key in ("batch", "compute"):
                if getattr(machine, key) is not None:
                    yield ("machines", node, key), "has no meaning for an allreduce workload"
        if written.expect.speedup is not None:
            yield ("expect", "speedup"), "an allreduce computes no samples, so it has no speed-up to judge"
        yield from device_complaints(self, written)

    def resolve(self, folder: Path) -> Allreduce:
        return Allreduce(self.steps, self.warmup, self.size or Size(0), devices(self))
