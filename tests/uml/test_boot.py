"""A guest that fails or hangs says why, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.uml.boot import GuestError, boot, lack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(lack() is not None, reason=str(lack())),
]


def processes(text: str) -> list[int]:
    """Processes on this machine with this text in their command line; those that have ended have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_says_what_went_wrong_inside() -> None:
    with pytest.raises(GuestError, match=r"guest tests\.uml\.nothing: ended .*\n(.*\n)*.*No module named"):
        boot("tests.uml.nothing", 60)


def test_is_ended_when_it_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(GuestError, match="not over after 3 s"):
        boot("http.server", 3)
    assert processes("RIG_GUEST=http.server") == []
    assert list(tmp_path.iterdir()) == []
