"""What runs on the nodes. One module a kind, started as `python -m MODULE`, its job as JSON on standard input.

This package's own file imports no torch, so that a plan can read the tables below anywhere.
"""

from __future__ import annotations

WORKLOADS: dict[str, str] = {  # kind → the module that each rank runs
    "ddp": "rig.workloads.ddp",
    "allreduce": "rig.workloads.allreduce",
}

REAL_MODELS: tuple[str, ...] = ("cnn", "transformer")  # models that nets.py can compute for real, of images
TEXT_MODELS: tuple[str, ...] = ("gpt",)  # the same of text; these have no layer table
