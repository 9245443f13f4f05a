"""The kinds of workload that a scenario may name."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from rig.scenario.allreduce import AllreduceKeys
from rig.scenario.ddp import DdpKeys
from rig.scenario.script import ScriptKeys
from rig.scenario.workloads import WorkloadKeys

AnyWorkload = Annotated[DdpKeys | AllreduceKeys | ScriptKeys, Field(discriminator="kind")]

KINDS: dict[str, type[WorkloadKeys]] = {
    get_args(keys.model_fields["kind"].annotation)[0]: keys for keys in get_args(get_args(AnyWorkload)[0])
}
