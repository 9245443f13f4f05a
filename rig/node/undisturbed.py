"""Cleaning up is never cut short: Ctrl-C, SIGTERM and SIGHUP wait until it is done, and then happen."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put off the signals that end a run for the block, which must limit its own time. Other threads never see them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in ENDING}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    if came:
        signal.raise_signal(came[0])
