"""What all keys of a scenario have in common, and those of a computation, as written: optional things are None.

This package is the only code that imports pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from rig import models
from rig.units import Duration
from rig.work import LayerTable, Pace

MISSING = "missing, and it has no default"
TABLE = ".json"  # what a model ends in that is a layer table's path
NODE_NAME = re.compile(r"n(0|[1-9][0-9]{0,2})", re.ASCII)
_THROUGHPUT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*samples/s", re.ASCII)


class Keys(BaseModel):
    """Written keys: unknown ones are refused, nothing is converted silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def hint(word: str, known: Iterable[str], label: str = "known here") -> str:
    """`; did you mean X? Known here: …`, or without the question when no known word is close."""
    words = list(known)
    close = get_close_matches(word, words, n=1)
    meant = f"; did you mean {close[0]}? {label.capitalize()}" if close else f"; {label}"
    return f"{meant}: {', '.join(words) or 'none'}"


@cache
def table(model: str) -> LayerTable:
    """The layer table of a built-in model, or the one in a file, by its path; read once. Raises UsageError."""
    return models.read(Path(model)) if model.endswith(TABLE) else models.load(model)


# ── computation ──────────────────────────────────────────────────────────────────────────────────────
def _throughput(value: object) -> float:
    match = _THROUGHPUT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"needs samples per second, found {value!r}; write it like 171 samples/s")
    return float(match[1])


Batch = Annotated[int, Field(ge=1, le=10**6)]
Ranks = Annotated[int, Field(ge=1, le=64)]  # training processes of one node
Scaling = Literal["weak", "strong"]
Throughput = Annotated[
    float,
    PlainValidator(_throughput),
    WithJsonSchema({"type": "string", "examples": ["171 samples/s"]}),
]


class ComputeKeys(Keys):
    """`real` (no key at all inside), or one of three ways to say how long a paced step computes."""

    profile: str | None = None
    throughput: Throughput | None = None
    forward: Duration | None = None
    backward: Duration | None = None
    optimizer: Duration | None = None

    @model_validator(mode="before")
    @classmethod
    def _shape(cls, value: Any) -> Any:
        if value == "real":
            return {}
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict) or not value:
            raise ValueError(f"found {value!r}; {_COMPUTE}")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> ComputeKeys:
        timed = self.forward is not None
        ways = (self.profile is not None) + (self.throughput is not None) + timed
        if (
            ways != bool(self.model_fields_set)
            or timed != (self.backward is not None)
            or (self.optimizer and not timed)
        ):
            raise ValueError(f"these keys do not go together; {_COMPUTE}")
        if self.forward == 0 or self.backward == 0:
            raise ValueError("forward and backward must be longer than 0")
        return self

    @property
    def real(self) -> bool:
        return self.profile is None and self.throughput is None and self.forward is None


_COMPUTE = "write real, {profile: NAME}, {throughput: 171 samples/s} or {forward: 40ms, backward: 80ms, optimizer: 1ms}"


def pace(compute: ComputeKeys, model: str, batch: int) -> Pace | None:
    """How long one machine computes on a (micro-)batch of `batch` samples, and its optimizer once (s); None for real.

    Times that `rig profile` measured are those of the batch that was profiled; another batch's are taken to be in
    proportion, which a small batch on a fast GPU does not keep to. A throughput covers the whole step, batch ÷
    throughput; what the optimizer leaves is ⅓ forward and ⅔ backward (a backward pass computes two products for each
    of the forward pass), or the profile's own `forward_part` (½ where weights are frozen, whose product is not needed).
    Raises ValueError when the optimizer leaves nothing.
    """
    if compute.real:
        return None
    if compute.forward is not None and compute.backward is not None:
        return Pace(compute.forward.seconds, compute.backward.seconds, (compute.optimizer or Duration(0)).seconds)
    profile: Mapping[str, Any] = {"throughput": compute.throughput}
    if compute.profile is not None:
        profile = table(model).profiles[compute.profile]
    optimizer = float(profile.get("optimizer", 0.0))
    if "throughput" not in profile:
        scale = batch / profile["batch"]
        shares = (tuple(profile["forward_shares"]), tuple(profile["backward_shares"]))
        return Pace(profile["forward"] * scale, profile["backward"] * scale, optimizer, *shares)
    rest = batch / float(profile["throughput"]) - optimizer
    if rest <= 0:
        spent = f"{optimizer * 1e3:.3g} ms"
        raise ValueError(f"a batch of {batch} takes no longer than the optimizer's {spent}; write a larger batch")
    part = float(profile.get("forward_part", 1 / 3))
    return Pace(rest * part, rest * (1 - part), optimizer)
