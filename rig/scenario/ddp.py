"""`kind: ddp` as written: data-parallel training, computed for real or paced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from rig import models
from rig.errors import UsageError
from rig.scenario.data import TOKENS, DataKeys
from rig.scenario.devices import BackendKey, device_complaints, devices
from rig.scenario.exchange import ExchangeKeys, PlainKeys, exchange_complaints, in_precision
from rig.scenario.fields import TABLE, Batch, ComputeKeys, Keys, Scaling, hint, pace, table
from rig.scenario.learning import learning_complaints
from rig.scenario.reading import shown
from rig.scenario.workloads import Complaint, Loc, Surroundings, WorkloadKeys
from rig.units import Size
from rig.work import Algorithm, Data, Ddp, Device, Job, LayerTable, Optimizer, Pace, Precision
from rig.workloads import REAL_MODELS, TEXT_MODELS

if TYPE_CHECKING:
    from rig.scenario.written import Written

RATES: Mapping[Optimizer, float] = {"sgd": 0.05, "adamw": 0.002}  # learning rates where none is written


def _known_model(name: str) -> str:
    known = (*models.names(), *TEXT_MODELS)
    module, colon, factory = name.partition(":")
    if colon and not (module and factory):
        raise ValueError(f"{shown(name)} names no factory; write it like package.module:factory")
    if not colon and name not in known and not name.endswith(TABLE):
        raise ValueError(f"{shown(name)} is no model with a layer table{hint(name, known)}")
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
    lr: float | None = Field(None, gt=0, le=100, allow_inf_nan=False)  # of one node
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    lr_warmup: int = Field(0, ge=0, le=100_000)
    optimizer: Optimizer | None = None
    precision: Precision = "float32"
    exchange: ExchangeKeys = ExchangeKeys(allreduce=PlainKeys())
    data: DataKeys | None = None
    evaluate: int | None = Field(None, ge=1, le=100_000)  # steps from one evaluation to the next
    target_loss: float | None = Field(None, gt=0, le=1e6, allow_inf_nan=False)
    train: JobKeys | None = None
    device: Device | None = None
    backend: BackendKey = "auto"
    algorithm: Algorithm | None = None

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

    @property
    def tabled(self) -> bool:
        """Whether there is a layer table of the model: of a factory's, nothing is known before it has run."""
        return ":" not in self.model and self.model not in TEXT_MODELS

    def _table(self, folder: Path) -> LayerTable:
        """The model's layer table, an empty one where there is none. Raises UsageError where its file is no table."""
        return table(self._table_name(folder)) if self.tabled else LayerTable(self.model, (), (), {})

    def _data(self, folder: Path) -> Data:
        if self.data is not None:
            return self.data.resolve(folder)
        return Data("topics", size=TOKENS) if self.model in TEXT_MODELS else Data()

    def resolve(self, folder: Path) -> Ddp:
        return Ddp(
            steps=self.steps,
            warmup=self.warmup,
            model=self.model,
            compute="real" if self.compute.real else "paced",
            table=in_precision(self._table(folder), self.precision),
            bucket_cap=self.bucket_cap,
            seed=self.seed,
            lr=self.lr or RATES[self._optimizer],
            data=self._data(folder),
            folder=str(folder.absolute()) if ":" in self.model else "",
            lr_scaling=self.lr_scaling,
            lr_warmup=self.lr_warmup,
            evaluate=self.evaluate or 0,
            target_loss=self.target_loss,
            accumulate=self.accumulate,
            job=self.train.job if self.train else None,
            devices=devices(self),
            exchange=self.exchange.resolve(),
            precision=self.precision,
            optimizer=self._optimizer,
        )

    @property
    def _optimizer(self) -> Optimizer:
        """The one written, else what the method's authors trained with."""
        return self.optimizer or ("adamw" if self.exchange.diloco else "sgd")

    def complaints(self, written: Written, around: Surroundings) -> Iterator[Complaint]:
        yield from self._strong_complaints(written) if self.scaling == "strong" else self._weak_complaints()
        yield from self._real_complaints(written)
        yield from device_complaints(self, written, self.exchange.method)
        yield from exchange_complaints(self, written.size)
        yield from learning_complaints(self, around.folder)
        try:
            self._table(around.folder)
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

    def _real_complaints(self, written: Written) -> Iterator[Complaint]:
        if not self.compute.real:
            if self.device == "cuda":
                text = "cuda does not go with paced compute, whose waits stand for a GPU's work; write compute: real"
                yield ("workload", "device"), text
            if not self.tabled:
                yield ("workload", "model"), _untimed(self.model)
            return
        if written.dilation not in ("auto", 1):
            text = f"{written.dilation} does not go with compute: real, whose time cannot be stretched; write 1 or auto"
            yield ("dilation",), text
        if self.tabled and self.model not in REAL_MODELS:
            known = ", ".join((*REAL_MODELS, *TEXT_MODELS))
            text = f"{self.model} has a layer table only; real compute knows {known} and package.module:factory"
            yield ("workload", "compute"), text
        yield from self._unlike_one_node(written)

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
                return
        if not self.tabled:
            return
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


def _untimed(model: str) -> str:
    return (
        f"{shown(model)}: it has to be timed first: `rig profile` makes a layer table of it, whose path stands here "
        f"then; known without one: {', '.join(models.names())}; or write compute: real"
    )


def _unknown_profile(model: str, name: str) -> str:
    owner = next((other for other in models.names() if name in table(other).profiles), None)
    belongs, own = f", which belongs to {owner}" if owner else "", table(model)
    return f"{own.name} has no profile {shown(name)}{belongs}{hint(name, own.profiles, f'known for {own.name}')}"
