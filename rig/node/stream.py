"""JSON lines between processes: one document a line, on a stdout or a socket that nothing else can write to."""

from __future__ import annotations

import json
import os
from typing import Any


class Stream:
    """Takes file descriptor 1 for itself and points it at stderr, so that a stray print cannot break a line; or writes
    to a descriptor of its own.
    """

    def __init__(self, descriptor: int | None = None, **always: Any) -> None:
        """`always`: fields of every event."""
        self._always = always
        if descriptor is not None:
            self._descriptor = descriptor
            return
        self._descriptor = os.dup(1)
        os.set_inheritable(self._descriptor, False)
        os.dup2(2, 1)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event. Raises BrokenPipeError when the rig is gone."""
        document = {"event": event, **self._always, **fields}
        line = memoryview((json.dumps(document, separators=(",", ":")) + "\n").encode())
        while line:
            line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        """Give the descriptor back; of several processes that have it, the others may go on."""
        os.close(self._descriptor)


class Lines:
    """Cuts what arrives into lines; what is no JSON object comes back as {"event": "text", "text": the line}."""

    LONGEST = 4 * 2**20  # bytes; a longer line is cut, so that a babbling process cannot fill the memory

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Take bytes in, give the documents they complete."""
        return [_document(line) for line in self.cut(chunk)]

    def cut(self, chunk: bytes) -> list[bytes]:
        """Take bytes in, give the lines they complete, empty ones left out."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self.LONGEST:
            whole, self._rest = [*whole, self._rest], b""
        return [line for line in whole if line]


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):  # the latter for brackets by the thousand
        document = None
    if isinstance(document, dict) and isinstance(document.get("event"), str):
        return document
    return {"event": "text", "text": line.decode(errors="replace")}
