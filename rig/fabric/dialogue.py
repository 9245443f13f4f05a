"""Documents to a process and back, a JSON line each: the orchestrator with the fabric, that with the delay line."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from typing import IO, Any

from rig.errors import FabricError
from rig.node.stream import Lines


class Dialogue:
    """`name` begins every error; an answer may take `within` seconds; `words` is where the process's stderr goes, if
    that is a file of ours.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], within: float, words: IO[bytes] | None = None
    ) -> None:
        self._name, self._process, self._within, self._words = name, process, within, words
        self._lines = Lines()
        self._heard: deque[dict[str, Any]] = deque()

    def say(self, document: Mapping[str, Any]) -> None:
        """Send one document. A process that is gone is told nothing: `hear` says why."""
        assert self._process.stdin
        try:
            self._process.stdin.write((json.dumps(document) + "\n").encode())
        except BrokenPipeError:
            pass

    def hear(self, what: str) -> dict[str, Any]:
        """The next document; `what` is being attempted. Raises FabricError."""
        assert self._process.stdout
        until = time.monotonic() + self._within
        while not self._heard:
            if not select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise FabricError(f"{self._name}: {what}: no answer within {self._within:.0f} s")
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise FabricError(f"{self._name}: {what}: {self._gone()}")
            self._heard.extend(self._lines.feed(chunk))
        return self._heard.popleft()

    def _gone(self) -> str:
        try:
            status: object = self._process.wait(2)
        except subprocess.TimeoutExpired:
            status = "unknown"
        ended = f"the process ended with exit status {status}"
        if self._words is None:
            return ended
        self._words.seek(0)
        words = self._words.read().decode(errors="replace").strip()[-600:]
        return f"{ended}: {words or 'it said nothing'}"
