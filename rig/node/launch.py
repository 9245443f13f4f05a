"""Starts a node's ranks, passes on what they report, and ends them when its own stdin ends.

In: one line {"ranks": [{"rank", "argv", "env", "job"}], "cpus": [cpu, …] or null}, then {"do": "clock"},
{"do": "states"} or {"do": "stop"} lines. Out, a line each: what ranks emit, with their "rank" added;
{"event": "clock", "at": s}; {"event": "state", "rank", "state"} per rank that runs;
{"event": "exit", "rank", "code", "at", "tail"} as soon as a rank ends. `code` is negative for a signal.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from rig.node import namespaces
from rig.node.stream import Lines, Stream

PATIENCE = 1.0  # seconds between SIGTERM and SIGKILL
LOG_LIMIT = 256 * 1024  # bytes of stderr passed on per rank; the last lines are always kept
TAIL = 30  # lines


@dataclass
class Rank:
    """One training process, started in a session of its own so that its children can be ended with it."""

    number: int
    process: subprocess.Popen[bytes]
    lines: Lines = field(default_factory=Lines)
    words: Lines = field(default_factory=Lines)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    logged: int = 0

    @property
    def state(self) -> str:
        """The kernel's letter for what its first thread does, proc_pid_stat(5): T is stopped, D waits for a device."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]

    def signal(self, number: int) -> None:
        """Send a signal to the rank and all its children."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


class Launch:
    """All ranks of one node."""

    def __init__(self, order: Mapping[str, Any], stream: Stream) -> None:
        self._stream = stream
        self._selector = selectors.DefaultSelector()
        self._control = Lines()
        self._selector.register(0, selectors.EVENT_READ, self._hear)
        self._running: dict[int, Rank] = {}
        if order.get("cpus"):
            os.sched_setaffinity(0, order["cpus"])  # ranks inherit it
        for document in order["ranks"]:
            self._start(document)

    def run(self) -> None:
        """Pass on events until every rank has ended."""
        while self._running:
            self._turn(None)

    def end_on(self, descriptor: int) -> None:
        """Stop all ranks once something can be read from a descriptor."""
        self._selector.register(descriptor, selectors.EVENT_READ, self._stop)

    def _turn(self, seconds: float | None) -> None:
        """One round of what has come; one event may end what another of the same round is about."""
        for key, _ in self._selector.select(seconds):
            if key.fd in self._selector.get_map():
                key.data()

    def _start(self, document: Mapping[str, Any]) -> None:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                document["argv"], env=os.environ | document["env"], stdin=pipe, stdout=pipe, stderr=pipe,
                start_new_session=True, preexec_fn=namespaces.die_with_parent,  # noqa: PLW1509  one thread here
            )  # fmt: skip
        except OSError as error:
            code, why = 127 if error.errno == errno.ENOENT else 126, f"{document['argv'][0]}: {error.strerror}"
            self._stream.emit("exit", rank=document["rank"], code=code, at=time.monotonic(), tail=[why])
            return
        rank = Rank(document["rank"], process)
        self._running[rank.number] = rank
        assert process.stdin and process.stdout and process.stderr
        self._watch(process.stdout, lambda: self._pass_on(rank))
        self._watch(process.stderr, lambda: self._listen(rank))
        descriptor = os.pidfd_open(process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._bury(rank, descriptor))
        try:
            process.stdin.write(json.dumps(document["job"]).encode())
            process.stdin.close()
        except BrokenPipeError:  # it is dead already: its exit says more
            pass

    def _watch(self, pipe: IO[bytes], act: Any) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, act)

    def _pass_on(self, rank: Rank) -> None:
        assert rank.process.stdout
        for document in rank.lines.feed(self._chunk(rank.process.stdout)):
            self._stream.emit(**(document | {"rank": rank.number}))

    def _listen(self, rank: Rank) -> None:
        assert rank.process.stderr
        for document in rank.words.feed(self._chunk(rank.process.stderr)):
            text = document.get("text") or json.dumps(document)
            rank.tail.append(text[:2000])
            rank.logged += len(text)
            if rank.logged <= LOG_LIMIT:
                self._stream.emit("log", rank=rank.number, text=text)

    def _chunk(self, pipe: IO[bytes]) -> bytes:
        try:
            chunk = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return b""
        if not chunk and pipe.fileno() in self._selector.get_map():
            self._selector.unregister(pipe)
            return b"\n"  # a last line may lack its end
        return chunk

    def _bury(self, rank: Rank, descriptor: int) -> None:
        code = rank.process.wait()
        self._selector.unregister(descriptor)
        os.close(descriptor)
        at = time.monotonic()
        for pipe, act in ((rank.process.stdout, self._pass_on), (rank.process.stderr, self._listen)):
            assert pipe
            for _ in range(64):  # what it said last; a child of its may hold the pipe open for ever
                if pipe.fileno() not in self._selector.get_map():
                    break
                act(rank)
            else:
                self._selector.unregister(pipe)
        rank.signal(signal.SIGKILL)  # children it left behind
        del self._running[rank.number]
        self._stream.emit("exit", rank=rank.number, code=code, at=at, tail=list(rank.tail))

    def _hear(self) -> None:
        chunk = os.read(0, 1 << 16)
        orders = [json.loads(document["text"]) for document in self._control.feed(chunk) if document.get("text")]
        for order in orders:
            if order.get("do") == "clock":
                self._stream.emit("clock", at=time.monotonic())
            if order.get("do") == "states":
                for rank in self._running.values():
                    self._stream.emit("state", rank=rank.number, state=rank.state)
        if not chunk or any(order.get("do") == "stop" for order in orders):
            self._stop()

    def _stop(self) -> None:
        for key in [key for key in self._selector.get_map().values() if key.data in (self._hear, self._stop)]:
            self._selector.unregister(key.fileobj)
        for rank in self._running.values():
            rank.signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while self._running and (left := until - time.monotonic()) > 0:
            self._turn(left)
        for rank in self._running.values():
            rank.signal(signal.SIGKILL)


def main() -> int:
    """Read the order from stdin, byte by byte up to its line end: what follows belongs to the loop."""
    line = bytearray()
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            return 0
        line += more
    stream = Stream()
    launch = Launch(json.loads(line), stream)
    woken, wake = os.pipe()  # a handler that did the work itself would do it in the middle of the loop's
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    launch.end_on(woken)
    launch.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
