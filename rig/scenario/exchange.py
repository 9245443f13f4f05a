"""`workload.exchange` of `kind: ddp` as written: how nodes keep one model, and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from rig.scenario.fields import Keys, hint
from rig.scenario.reading import shown
from rig.scenario.workloads import Complaint
from rig.units import Fraction
from rig.work import Exchange, LayerTable, Method, Precision, Tensor

if TYPE_CHECKING:
    from rig.scenario.ddp import DdpKeys

METHODS: tuple[str, ...] = get_args(Method)
HALVES = {"fp16": "float16", "bf16": "bfloat16"}  # what these methods send
COMPRESSED = (*HALVES, "powersgd", "topk", "quantized")  # what takes float32 gradients and makes them smaller
_FORM = "write a word such as fp16, or a mapping of one with its own keys such as {local_sgd: {every: 8}}"

Every = Annotated[int, Field(ge=2, le=100_000)]  # steps


def _share(value: Fraction) -> Fraction:
    if not 0 < value <= 10**9:
        raise ValueError(f"must be above 0% and at most 100%, found {value}")
    return value


class PlainKeys(Keys):
    """A method that has no keys of its own."""


class PowersgdKeys(Keys):
    """Low-rank factors of each gradient (arXiv 1905.13727)."""

    rank: int = Field(4, ge=1, le=1024)


class TopkKeys(Keys):
    """The largest gradients of each bucket."""

    share: Annotated[Fraction, AfterValidator(_share)] = Fraction(10**7)


class LocalSgdKeys(Keys):
    """Parameters averaged every so many steps (arXiv 1805.09767)."""

    every: Every = 8


class HierarchicalKeys(Keys):
    """Parameters averaged among `group` nodes every so many steps, among all every so many more."""

    every: Every = 2
    group: int = Field(2, ge=2, le=10_000)
    every_all: Every = 8


class DilocoKeys(Keys):
    """An outer optimizer on the averaged differences of so many inner steps (arXiv 2311.08105)."""

    every: Every = 32
    outer_lr: float = Field(Exchange.outer_lr, gt=0, le=10, allow_inf_nan=False)
    outer_momentum: float = Field(Exchange.outer_momentum, ge=0, lt=1, allow_inf_nan=False)


def _also_a_word(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"enum": list(METHODS)}, {**mapping, "minProperties": 1, "maxProperties": 1}]


class ExchangeKeys(Keys):
    """One of the ways to exchange; a word alone is a mapping of it without keys of its own."""

    model_config = ConfigDict(json_schema_extra=_also_a_word)

    allreduce: PlainKeys | None = None
    fp16: PlainKeys | None = None
    bf16: PlainKeys | None = None
    powersgd: PowersgdKeys | None = None
    topk: TopkKeys | None = None
    quantized: PlainKeys | None = None
    local_sgd: LocalSgdKeys | None = None
    hierarchical: HierarchicalKeys | None = None
    diloco: DilocoKeys | None = None
    parameter_server: PlainKeys | None = None

    @model_validator(mode="before")
    @classmethod
    def _shape(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = {value: None}
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueError(f"found {shown(value)}; {_FORM}")
        [(method, keys)] = value.items()
        if method not in METHODS:
            raise ValueError(f"{shown(method)} is no way to exchange{hint(str(method), METHODS)}")
        return {method: {} if keys is None else keys}

    @property
    def method(self) -> str:
        """Which one it is."""
        return next(name for name in METHODS if getattr(self, name) is not None)

    def resolve(self) -> Exchange:
        """The method with every key that it has."""
        return Exchange(method=self.method, **dict(getattr(self, self.method)))  # type: ignore[arg-type]


def in_precision(table: LayerTable, precision: Precision) -> LayerTable:
    """The table with every parameter, and every buffer of numbers with a point, in that type."""

    def cast(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(replace(one, dtype=precision) if one.dtype in get_args(Precision) else one for one in tensors)

    if precision == "float32":
        return table
    return replace(table, parameters=cast(table.parameters), buffers=cast(table.buffers))


def exchange_complaints(keys: DdpKeys, nodes: int) -> Iterator[Complaint]:
    """What does not go together: a method with its steps, its nodes, or the type of its gradients."""
    exchange = keys.exchange.resolve()
    yield from _precision_complaints(exchange.method, keys.precision)
    if keys.steps % exchange.period:
        good = -(-keys.steps // exchange.period) * exchange.period
        text = f"{keys.steps} are no whole periods of {exchange.method}, which repeats every {exchange.period} steps"
        yield ("workload", "steps"), f"{text}; write {good}"
    if exchange.method == "hierarchical":
        yield from _hierarchy_complaints(exchange, nodes)


def _precision_complaints(method: str, precision: Precision) -> Iterator[Complaint]:
    if HALVES.get(method) == precision:
        text = f"sends gradients as {precision}, which they are already by workload.precision; leave one of the two out"
        yield ("workload", "exchange"), f"{method} {text}"
    elif method in COMPRESSED and precision != "float32":
        text = (
            f"makes float32 gradients smaller, and by workload.precision they are {precision}; leave one of the two out"
        )
        yield ("workload", "exchange"), f"{method} {text}"


def _hierarchy_complaints(exchange: Exchange, nodes: int) -> Iterator[Complaint]:
    where = ("workload", "exchange", "hierarchical")
    if exchange.every_all % exchange.every or exchange.every_all == exchange.every:
        good = max(2, -(-exchange.every_all // exchange.every)) * exchange.every
        text = f"{exchange.every_all} is not twice every: {exchange.every}, or another multiple of it; write {good}"
        yield (*where, "every_all"), text
    if nodes > 1 and nodes % exchange.group:
        fitting = [size for size in range(2, nodes + 1) if nodes % size == 0]
        text = f"{nodes} nodes do not divide into groups of {exchange.group}; write {' or '.join(map(str, fitting))}"
        yield (*where, "group"), text
