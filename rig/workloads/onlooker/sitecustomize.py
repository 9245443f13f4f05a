"""Loaded by Python itself at its start, for the rig has put this folder first on PYTHONPATH: see docs/script.md.

Nothing happens without RIG_EVENTS, and else only once the script has imported torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

AWAITED = "torch"  # importing it imports all that is tapped: torch.optim, torch.distributed, torch.nn.parallel


class Awaited:
    """The first finder on sys.meta_path: finds nothing but torch, by asking the others, and acts once that is there."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the finders after this one find; many programs only ask whether there is a torch."""
        if name != AWAITED or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            del loader.exec_module  # the class's own is there again
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                look_on()

        loader.exec_module = exec_module


def look_on() -> None:
    """Tap torch; a script must never fail because it is watched."""
    try:
        from rig.workloads.onlooker.taps import install

        install()
    except Exception as error:  # noqa: BLE001  whatever it is, the script is none of its business
        sys.stderr.write(f"onlooker: tap torch: {type(error).__name__}: {error}; this process is not watched\n")


def step_aside() -> None:
    """Take this folder off the path, so that its files hide nobody's, and load the sitecustomize that it has hidden."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)


if __name__ == "sitecustomize":
    if os.environ.get("RIG_EVENTS"):
        sys.meta_path.insert(0, Awaited())
    step_aside()
