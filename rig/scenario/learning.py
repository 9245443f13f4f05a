"""What is wrong with the keys of a `ddp` workload that say what it learns, how fast, and how that is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rig.scenario.workloads import Complaint
from rig.workloads import REAL_MODELS, TEXT_MODELS

if TYPE_CHECKING:
    from rig.scenario.ddp import DdpKeys

REAL_ONLY = ("data", "evaluate", "target_loss", "lr_scaling", "lr_warmup")


def learning_complaints(keys: DdpKeys, folder: Path) -> Iterator[Complaint]:
    """`folder`: the scenario file's."""
    if not keys.compute.real:
        for name in sorted(keys.model_fields_set & set(REAL_ONLY)):
            yield ("workload", name), "is for compute: real only; paced compute learns nothing and has no use for it"
        return
    if keys.data is not None:
        for text in (*keys.data.complaints(folder), *_unlike_model(keys)):
            yield ("workload", "data"), text
    if keys.lr_warmup and keys.lr_scaling == "none":
        yield ("workload", "lr_warmup"), "leads up to what lr_scaling makes of lr; write lr_scaling: linear or sqrt"
    if keys.target_loss is not None and keys.evaluate is None:
        text = "is looked for at each evaluation; write evaluate: 10, the steps from one to the next"
        yield ("workload", "target_loss"), text


def _unlike_model(keys: DdpKeys) -> Iterator[str]:
    """Data that one of the rig's own models cannot learn."""
    assert keys.data is not None
    if keys.model in TEXT_MODELS and keys.data.text is None:
        yield f"are images, and {keys.model} learns text; write topics, {{text: FILE}}, or leave it out"
    if keys.model in REAL_MODELS and keys.data.text is not None:
        yield f"is text, and {keys.model} learns images; write model: {', '.join(TEXT_MODELS)}"
    if keys.model in REAL_MODELS and keys.data.cifar100 is not None:
        yield f"has 100 classes, and {keys.model} knows ten; write model: rig.workloads.nets:cnn100"
