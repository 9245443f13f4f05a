"""JSON lines survive whatever is written between, before and instead of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.node.stream import Lines
from tests.lab.runs import ROOT


def told(chunks: list[bytes]) -> list[dict[str, object]]:
    lines = Lines()
    return [document for chunk in chunks for document in lines.feed(chunk)]


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text())), st.randoms(use_true_random=False))
def test_any_cut_gives_the_same_documents(documents: list[dict[str, object]], draw: random.Random) -> None:
    events = [{**document, "event": "x"} for document in documents]
    data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    cuts = sorted(draw.randint(0, len(data)) for _ in range(5))
    chunks = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert told(chunks) == events


@pytest.mark.parametrize(
    "line", ["plain words", "{", "[1]", "3", "null", '{"no": "event"}', '{"event": 3}', "\x1b[31mred", "NaN"]
)
def test_what_is_no_event_is_text(line: str) -> None:
    assert told([line.encode() + b"\n"]) == [{"event": "text", "text": line}]


def test_bytes_that_are_no_text() -> None:
    (document,) = told([b"\xff\xfe\n"])
    assert document == {"event": "text", "text": "\ufffd\ufffd"}


def test_deeply_nested_text_is_text() -> None:
    (document,) = told([b"[" * 200_000 + b"\n"])
    assert document["event"] == "text"


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    lines = Lines()
    kept = [document for _ in range(200) for document in lines.feed(b"x" * 65536)]
    assert [document["event"] for document in kept] == ["text"] * 3
    assert sum(len(str(document["text"])) for document in kept) > 12 * 2**20


SPEAK = """
import os, subprocess
print("before")
from rig.node.stream import Stream
stream = Stream()
print("stray")
os.write(1, b"half a line")
subprocess.run(["echo", "a child's"])
stream.emit("big", text="x" * 3_000_000)
stream.emit("last")
"""


def test_nothing_else_reaches_the_stream() -> None:
    """Prints, writes to descriptor 1 and children go to stderr; a document larger than a pipe arrives whole."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-uc", SPEAK], check=True, capture_output=True, env=env, timeout=30)
    events = told([answer.stdout])
    assert [event["event"] for event in events] == ["text", "big", "last"]
    assert events[0]["text"] == "before"
    assert len(str(events[1]["text"])) == 3_000_000
    assert b"stray\nhalf a linea child's\n" in answer.stderr
