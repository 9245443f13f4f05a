"""The fabric's end of the delay line process: its start, and one method per request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rig.errors import FabricError
from rig.fabric.dialogue import Dialogue

ANSWER_WITHIN = 20.0  # seconds

Key = tuple[str, str]  # a cable's name, and the direction


class Lines:
    """The process that holds packets back. It takes the TAPs' descriptors over, and ends with the fabric."""

    def __init__(self, lines: Sequence[Mapping[str, Any]], seed: int) -> None:
        descriptors = {line[name] for line in lines for name in ("from", "to")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rig.fabric.delayline"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=descriptors,
        )  # fmt: skip
        for descriptor in descriptors:
            os.close(descriptor)
        self._dialogue = Dialogue("delay line", self._process, ANSWER_WITHIN)
        ready = self._ask("start", "ready", {"version": 1, "seed": seed, "lines": list(lines)})
        self.latency = float(ready["latency"])  # s that it adds, and takes off again

    def change(self, name: str, way: str, transit: Mapping[str, Any]) -> None:
        """Have packets taken from now on fare as a Transit document says."""
        self._ask("change", "changed", {"do": "change", "name": name, "way": way, "transit": transit})

    def transits(self) -> dict[Key, dict[str, Any]]:
        """The Transit document in force for every direction."""
        said = self._ask("read back", "transits", {"do": "transits"})
        return {_key(line): line["transit"] for line in said["lines"]}

    def counters(self) -> dict[Key, dict[str, Any]]:
        """What became of packets so far: see delayline."""
        said = self._ask("count", "counters", {"do": "counters"})
        return {_key(line): line for line in said["lines"]}

    def _ask(self, what: str, event: str, document: Mapping[str, Any]) -> dict[str, Any]:
        self._dialogue.say(document)
        said = self._dialogue.hear(what)
        if said["event"] != event:
            raise FabricError(f"delay line: {what}: {said.get('why') or said}")
        return said


def _key(line: Mapping[str, Any]) -> Key:
    return str(line["name"]), str(line["way"])
