"""What instrumented processes of a node tell its launcher: JSON lines on a UNIX socket with no file (unix(7)).

Its name belongs to the node's network namespace, and is gone with it.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rig.node.stream import Lines

EVENTS = ("hello", "group", "layout", "step", "model", "note", "done")  # that are passed on as they are
LONGEST = 2000  # characters of a "log"


class Events:
    """Listens, and passes on what ranks of this node tell. `selector`: of the loop that calls what a key's data is."""

    def __init__(
        self, selector: selectors.BaseSelector, ranks: range, emit: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._selector = selector
        self._ranks = ranks
        self._emit = emit
        self._lines: dict[socket.socket, Lines] = {}
        self._door = socket.socket(socket.AF_UNIX)
        self._door.setblocking(False)
        self._door.bind(f"\0rig-events-{os.getpid()}")
        self._door.listen(64)
        selector.register(self._door, selectors.EVENT_READ, self._let_in)

    @property
    def address(self) -> str:
        """Where to connect to, as RIG_EVENTS names it: an @ stands for the byte 0 that such a name begins with."""
        return f"@rig-events-{os.getpid()}"

    def drain(self) -> None:
        """Pass on all that has been said by now, so that it is told before the end of who said it."""
        self._let_in()
        for speaker in list(self._lines):
            while self._hear(speaker):
                pass

    def _let_in(self) -> None:
        while True:
            try:
                speaker, _ = self._door.accept()
            except BlockingIOError:
                return
            speaker.setblocking(False)
            self._lines[speaker] = Lines()
            self._selector.register(speaker, selectors.EVENT_READ, partial(self._hear, speaker))

    def _hear(self, speaker: socket.socket) -> bool:
        """Read once; whether there may be more."""
        try:
            chunk = speaker.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionError:
            chunk = b""
        for document in self._lines[speaker].feed(chunk):
            self._pass_on(document)
        if not chunk:
            self._selector.unregister(speaker)
            del self._lines[speaker]
            speaker.close()
        return bool(chunk)

    def _pass_on(self, document: Mapping[str, Any]) -> None:
        """Of a rank of this node what is known; all else is no more than words."""
        rank = document.get("rank")
        mine = isinstance(rank, int) and rank in self._ranks
        if mine and document["event"] in EVENTS:
            self._emit(document)
        else:
            text = str(document.get("text", document))[:LONGEST]
            self._emit({"event": "log", "rank": rank if mine else self._ranks.start, "text": text})
