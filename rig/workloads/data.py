"""Real data: which there are; each gives samples to train on, and others that are held out and never trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rig.workloads import data_images, data_text
from rig.workloads.samples import Samples

SOURCES: Mapping[str, Callable[[str, int], tuple[Samples, Samples]]] = {  # of a path and a size, as in model.Data
    "digits": data_images.digits,
    "cifar10": data_images.cifar10,
    "cifar100": data_images.cifar100,
    "images": data_images.folder,
    "text": data_text.file,
    "topics": data_text.topics,
}


def load(data: Mapping[str, Any]) -> tuple[Samples, Samples]:
    """Samples to train on, and those that are held out. `data`: a model.Data as a mapping. Raises WorkloadError."""
    return SOURCES[data["source"]](data["path"], data["size"])
