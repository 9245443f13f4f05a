"""`kind: ddp` as written: data-parallel training, computed for real or paced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from rig import models
from rig.errors import UsageError
from rig.model import Ddp, Job, Pace
from rig.scenario.fields import TABLE, Batch, ComputeKeys, Keys, Scaling, hint, pace, table
from rig.scenario.reading import shown
from rig.scenario.workloads import Complaint, Loc, Surroundings, WorkloadKeys
from rig.units import Size
from rig.workloads import REAL_MODELS

if TYPE_CHECKING:
    from rig.scenario.written import Written


def _known_model(name: str) -> str:
    if ":" in name:
        raise ValueError(
            f"{shown(name)}: a factory has to be timed first: `rig profile` makes a layer table of it, whose path "
            f"stands here then; known without one: {', '.join(models.names())}"
        )
    if name not in models.names() and not name.endswith(TABLE):
        raise ValueError(f"{shown(name)} is no model with a layer table{hint(name, models.names())}")
    return name


class JobKeys(Keys):
    """All that is to be trained, so that hours can be told: samples of so many epochs, or steps."""

    epoch: Annotated[int, Field(ge=1, le=10**12)] | None = None
    epochs: Annotated[int, Field(ge=1, le=10**6)] | None = None
    steps: Annotated[int, Field(ge=1, le=10**12)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> JobKeys:
        if (self.epoch is None) == (self.steps is None) or (self.epochs is not None and self.epoch is None):
            raise ValueError(
                "write {epoch: 1281167, epochs: 90}, the samples of an epoch and how many, or {steps: 4000}"
            )
        return self

    @property
    def job(self) -> Job:
        return Job(samples=(self.epoch or 0) * (self.epochs or 1), steps=self.steps or 0)


class DdpKeys(WorkloadKeys):
    """PyTorch DistributedDataParallel over gloo."""

    kind: Literal["ddp"]
    model: Annotated[str, AfterValidator(_known_model)]
    batch: Batch | None = None  # samples per node and micro-batch
    accumulate: int = Field(1, ge=1, le=1000)  # micro-batches a step
    scaling: Scaling = "weak"
    global_batch: Batch | None = None
    compute: ComputeKeys
    steps: int = Field(5, ge=2, le=100_000)
    warmup: int = Field(2, ge=2, le=10_000)  # DDP rebuilds its buckets before its second iteration
    bucket_cap: Size = Size(25 * 2**20)
    seed: int = Field(0, ge=0, lt=2**32)
    lr: float = Field(0.05, gt=0, le=100, allow_inf_nan=False)
    data: str | None = None
    train: JobKeys | None = None

    @property
    def computes_real(self) -> bool:
        return self.compute.real

    def batch_on(self, written: Written, node: str) -> int:
        return self.accumulate * self._micro_batch(written, node)

    def _micro_batch(self, written: Written, node: str) -> int:
        if self.scaling == "strong":
            return (self.global_batch or 0) // (written.size * self.accumulate)
        machine = written.machines.get(node)
        return (machine and machine.batch) or self.batch or 0

    def compute_on(self, written: Written, node: str) -> ComputeKeys:
        machine = written.machines.get(node)
        return (machine and machine.compute) or self.compute

    def pace_on(self, written: Written, node: str, folder: Path) -> Pace | None:
        compute = self.compute_on(written, node)
        return pace(compute, self._table_name(folder), self._micro_batch(written, node))

    def _table_name(self, folder: Path) -> str:
        """What `table` knows the model by: its name, or its file's whole path."""
        return str((folder / self.model).absolute()) if self.model.endswith(TABLE) else self.model

    def resolve(self, folder: Path) -> Ddp:
        return Ddp(
            steps=self.steps,
            warmup=self.warmup,
            model=self.model,
            compute="real" if self.compute.real else "paced",
            table=table(self._table_name(folder)),
            bucket_cap=self.bucket_cap,
            seed=self.seed,
            lr=self.lr,
            data=None if self.data is None else str((folder / self.data).absolute()),
            accumulate=self.accumulate,
            job=self.train.job if self.train else None,
        )

    def complaints(self, written: Written, around: Surroundings) -> Iterator[Complaint]:
        yield from self._strong_complaints(written) if self.scaling == "strong" else self._weak_complaints()
        yield from self._real_complaints(written, around)
        try:
            table(self._table_name(around.folder))
        except UsageError as error:
            yield ("workload", "model"), shown(str(error), 400)
        else:
            for node in (None, *written.machines):
                yield from self._compute_complaints(written, node, around.folder)
        if not 1 <= self.bucket_cap <= 2**40:
            yield ("workload", "bucket_cap"), f"must be from 1B to {Size(2**40)}, found {self.bucket_cap}"

    def _weak_complaints(self) -> Iterator[Complaint]:
        if self.batch is None:
            yield ("workload", "batch"), "missing; samples per node and step, such as 32"
        if self.global_batch is not None:
            yield ("workload", "global_batch"), "belongs to scaling: strong; weak scaling takes batch, per node"

    def _strong_complaints(self, written: Written) -> Iterator[Complaint]:
        if self.batch is not None:
            yield ("workload", "batch"), "belongs to scaling: weak; strong scaling takes global_batch, which it divides"
        if self.global_batch is None:
            yield ("workload", "global_batch"), "missing; samples per step of all nodes together, such as 128"
        elif self.global_batch % (written.size * self.accumulate):
            among = f"{written.size} nodes" + (f" × {self.accumulate} micro-batches" if self.accumulate > 1 else "")
            yield ("workload", "global_batch"), f"{self.global_batch} does not divide by {among}"
        for node, machine in written.machines.items():
            if machine.batch is not None:
                yield ("machines", node, "batch"), "does not go with scaling: strong, which divides global_batch evenly"

    def _real_complaints(self, written: Written, around: Surroundings) -> Iterator[Complaint]:
        if not self.compute.real:
            if self.data is not None:
                yield ("workload", "data"), "is read by compute: real only; paced compute has no use for it"
            return
        if written.dilation not in ("auto", 1):
            text = f"{written.dilation} does not go with compute: real, whose time cannot be stretched; write 1 or auto"
            yield ("dilation",), text
        if self.model not in REAL_MODELS:
            known = ", ".join(REAL_MODELS)
            yield ("workload", "compute"), f"{self.model} has a layer table only; real compute knows {known}"
        yield from self._unlike_one_node(written)
        if self.data is not None and not _is_folder(around.folder, self.data):
            text = f"{shown(self.data)} is no folder, seen from the scenario file's own; name one that exists"
            yield ("workload", "data"), text

    def _unlike_one_node(self, written: Written) -> Iterator[Complaint]:
        """Real compute is predicted from the one-node run, which tells nothing about another batch per node."""
        why = "does not go with compute: real in this version, as its one-node run has another batch; leave it out"
        if self.scaling == "strong":
            yield ("workload", "scaling"), f"strong {why}"
        for node, machine in written.machines.items():
            if machine.batch is not None and machine.batch != self.batch:
                yield ("machines", node, "batch"), f"{machine.batch} {why}"

    def _compute_complaints(self, written: Written, node: str | None, folder: Path) -> Iterator[Complaint]:
        compute = self.compute
        where: Loc = ("workload", "compute")
        if node is not None:
            own = written.machines[node].compute
            compute, where = own or self.compute, ("machines", node, "compute") if own else where
            if own and own.real != self.compute.real:
                yield where, "all nodes compute for real, or all are paced; this one differs from workload.compute"
        if self.scaling == "strong" and compute.forward is not None:
            yield where, "does not say how time depends on the batch, which strong scaling divides; write a throughput"
        known = self._table_name(folder)
        if compute.profile is not None and compute.profile not in table(known).profiles:
            yield (*where, "profile"), _unknown_profile(known, compute.profile)
            return
        try:
            if batch := self._micro_batch(written, node or ""):
                pace(compute, known, batch)
        except ValueError as error:
            yield where, str(error)


def _is_folder(folder: Path, data: str) -> bool:
    return "\0" not in data and len(data) < 1024 and (folder / data).is_dir()


def _unknown_profile(model: str, name: str) -> str:
    owner = next((other for other in models.names() if name in table(other).profiles), None)
    belongs, own = f", which belongs to {owner}" if owner else "", table(model)
    return f"{own.name} has no profile {shown(name)}{belongs}{hint(name, own.profiles, f'known for {own.name}')}"
