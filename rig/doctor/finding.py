"""What one check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "lack"]


@dataclass(frozen=True)
class Finding:
    """One line of `rig doctor`: "warn" means that results may suffer, "lack" that something cannot be had here."""

    name: str
    status: Status
    found: str
    mend: str = ""  # how; empty where all is well
    required: bool = False  # by the scenario that was named
