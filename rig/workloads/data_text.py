"""Text as bytes: windows of tokens, each to be continued; any UTF-8 file, or Python's own help topics."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from rig.errors import WorkloadError
from rig.workloads.nets import VOCABULARY
from rig.workloads.samples import Samples

HELD_OUT = 10  # the last window of ten is held out, all of them from the end of the text


def file(path: str, tokens: int) -> tuple[Samples, Samples]:
    """A file of UTF-8 text. Raises WorkloadError where it cannot be read, is something else, or is too short."""
    try:
        content = Path(path).read_bytes()
        content.decode("utf-8")
    except OSError as error:
        raise WorkloadError(f"data: read {path}: {error.strerror}; give a file of text that can be read") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"data: read {path}: it is not UTF-8: byte {error.start}: {error.reason}; convert it, or give another file"
        ) from error
    return windows(content, tokens, path)


def topics(path: str, tokens: int) -> tuple[Samples, Samples]:
    """What `help()` knows of Python's language: half a megabyte of English that comes with every Python."""
    from pydoc_data.topics import topics as texts

    return windows("\n".join(texts[name] for name in sorted(texts)).encode(), tokens, "pydoc_data.topics")


def windows(content: bytes, tokens: int, name: str) -> tuple[Samples, Samples]:
    """Windows side by side: int64 (n, tokens), labelled with the same text one byte on; a rest at the end is left out.
    Raises WorkloadError for a text with less than ten.
    """
    count = (len(content) - 1) // tokens
    if count < HELD_OUT:
        raise WorkloadError(
            f"data: divide {name} into windows of {tokens} tokens: its {len(content)} bytes give {max(count, 0)}; "
            f"{HELD_OUT} are the least: give a longer text, or fewer tokens"
        )
    pick = partial(_picked, torch.frombuffer(bytearray(content), dtype=torch.uint8), tokens)
    places = torch.arange(count)
    first = count - count // HELD_OUT
    return Samples(places[:first], pick, VOCABULARY), Samples(places[first:], pick, VOCABULARY)


def _picked(content: torch.Tensor, tokens: int, picked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    spread = picked[:, None] * tokens + torch.arange(tokens)
    return content[spread].long(), content[spread + 1].long()
