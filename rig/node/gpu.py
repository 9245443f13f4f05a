"""What this node's GPUs are and how busy: NVML, which comes with the driver, through ctypes.

Of a card that several nodes share it tells of all of them together. Structures and names: nvml.h; each function
returns 0 where it worked.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
NAME = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE; a driver's version fits too
PERIOD = 0.25  # s between two samples; the driver's own mean is over 1/6 s to 1 s


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))  # bytes


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # per cent of the time


@dataclass
class Card:
    """One GPU, and what was seen of it."""

    handle: ctypes.c_void_p
    used: int = 0  # bytes, the most of all samples
    busy: list[float] = field(default_factory=list)  # shares of time, 0 to 1, in which a kernel ran


class Cards:
    """The GPUs that a node may use. `library` is NVML, opened."""

    def __init__(self, library: Any, visible: str | None) -> None:
        """`visible`: as CUDA_VISIBLE_DEVICES, numbers by PCI bus or UUIDs; None: all. Raises OSError."""
        self._library = library
        self._due, self._trains = 0.0, False
        self._call("nvmlInit_v2")
        self._cards = [Card(self._handle(name)) for name in self._names(visible)]

    def __bool__(self) -> bool:
        return bool(self._cards)

    def begin(self) -> None:
        """A rank has done a step: from now on how busy its card is counts, not before."""
        self._trains = True

    def look(self) -> None:
        """Sample every card, if it is time to. What a card does not tell (some virtual ones) is left out."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PERIOD
        for card in self._cards:
            memory, rates = _Memory(), _Utilization()
            if not self._library.nvmlDeviceGetMemoryInfo(card.handle, ctypes.byref(memory)):
                card.used = max(card.used, memory.used)
            if self._trains and not self._library.nvmlDeviceGetUtilizationRates(card.handle, ctypes.byref(rates)):
                card.busy.append(rates.gpu / 100)

    def told(self) -> list[dict[str, Any]]:
        """Each card: {"name", "driver", "memory": B, "used": B at most, "busy": mean share of time or None}."""
        driver = self._text("nvmlSystemGetDriverVersion")
        return [self._told(card) | {"driver": driver} for card in self._cards]

    def _told(self, card: Card) -> dict[str, Any]:
        memory = _Memory()
        self._library.nvmlDeviceGetMemoryInfo(card.handle, ctypes.byref(memory))
        return {
            "name": self._text("nvmlDeviceGetName", card.handle),
            "memory": memory.total,
            "used": card.used,
            "busy": sum(card.busy) / len(card.busy) if card.busy else None,
            "samples": len(card.busy),
        }

    def _names(self, visible: str | None) -> Sequence[str]:
        if visible is not None:
            return [name for name in visible.split(",") if name]
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [str(number) for number in range(count.value)]

    def _handle(self, name: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if name.isdecimal():
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(name.encode()), ctypes.byref(handle))
        return handle

    def _text(self, function: str, *of: ctypes.c_void_p) -> str | None:
        buffer = ctypes.create_string_buffer(NAME)
        failed = getattr(self._library, function)(*of, buffer, ctypes.c_uint(NAME))
        return None if failed else buffer.value.decode(errors="replace")

    def _call(self, function: str, *given: Any) -> None:
        status = getattr(self._library, function)(*given)
        if status:
            raise OSError(status, f"NVML refuses {function}")


def cards(visible: str | None, library: Any = None) -> Cards | None:
    """This node's GPUs; None where there is none, or no driver to ask."""
    if visible == "":
        return None
    try:
        found = Cards(library or ctypes.CDLL(LIBRARY), visible)
    except (OSError, AttributeError):  # no library, a card it does not know, a function it is too old for
        return None
    return found if found else None
