"""Starts a node's ranks, passes on what they report, and ends them when its own stdin ends.

In: one line {"ranks": [{"rank", "argv", "env", "job"}], "cpus": [cpu, …] or null}, then {"do": "clock"},
{"do": "states"} or {"do": "stop"} lines. Out, a line each: what ranks emit, with their "rank" added;
{"event": "clock", "at": s}; {"event": "state", "rank", "state", "cpu": s, "tail"} per rank that runs;
{"event": "exit", "rank", "code", "at", "tail"} as soon as a rank ends, `code` negative for a signal; at the end
{"event": "gpu", "cards": […]} where the node has any (rig.node.gpu).

A rank without a job (null) is a command of the user's own: what it prints is words only, it has nothing to read, and
its events come by a socket of their own (rig.node.events). The order then has a "script" too: {"folder", "copied",
"scratch"} as in rig.node.files, and the "count" of the node's ranks from "first" on.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from rig.node import family, files, gpu, namespaces
from rig.node.events import Events
from rig.node.stream import Lines, Stream

PATIENCE = 1.0  # seconds between SIGTERM and SIGKILL
LOG_LIMIT = 256 * 1024  # bytes of words passed on per rank; the last lines are always kept
TAIL, LAST = 100, 10  # lines: of a rank that has ended, and of one that still runs


@dataclass
class Rank:
    """One training process, started in a session of its own so that its children can be ended with it."""

    number: int
    process: subprocess.Popen[bytes]
    pipes: list[tuple[IO[bytes], Callable[[], None]]] = field(default_factory=list)  # and who reads them
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    logged: int = 0

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
        self._events: Events | None = None
        self._well: set[int] = set()  # ranks of a script that have come to its end
        self._place: files.Place | None = None
        if order.get("cpus"):
            os.sched_setaffinity(0, order["cpus"])  # ranks inherit it
        if script := order.get("script"):
            ranks = range(script["first"], script["first"] + script["count"])
            self._place = files.prepared(script)
            self._events = Events(self._selector, ranks, self._tell)
        for document in order["ranks"]:
            self._start(document)
        self._cards = gpu.cards(order["ranks"][0]["env"].get("CUDA_VISIBLE_DEVICES"))

    def run(self) -> None:
        """Pass on events until every rank has ended, and end what they leave."""
        while self._running:
            self._turn(gpu.PERIOD if self._cards else None)
            if self._cards:
                self._cards.look()
        if self._cards:
            self._stream.emit("gpu", cards=self._cards.told())
        family.end_descendants()

    def end_on(self, descriptor: int) -> None:
        """Stop all ranks once something can be read from a descriptor."""
        self._selector.register(descriptor, selectors.EVENT_READ, self._stop)

    def _turn(self, seconds: float | None) -> None:
        """One round of what has come; one event may end what another of the same round is about."""
        for key, _ in self._selector.select(seconds):
            if key.fd in self._selector.get_map():
                key.data()

    def _start(self, document: Mapping[str, Any]) -> None:
        pipe, speaks = subprocess.PIPE, document["job"] is not None
        try:
            process = subprocess.Popen(
                document["argv"], env=self._environment(document), cwd=self._place.folder if self._place else None,
                stdin=pipe if speaks else subprocess.DEVNULL, stdout=pipe, stderr=pipe,
                start_new_session=True, preexec_fn=namespaces.die_with_parent,  # noqa: PLW1509  one thread here
            )  # fmt: skip
        except OSError as error:
            code, why = 127 if error.errno == errno.ENOENT else 126, f"{document['argv'][0]}: {error.strerror}"
            self._stream.emit("exit", rank=document["rank"], code=code, at=time.monotonic(), tail=[why])
            return
        rank = Rank(document["rank"], process)
        self._running[rank.number] = rank
        assert process.stdout and process.stderr
        self._watch(rank, process.stdout, self._pass_on if speaks else self._listen)
        self._watch(rank, process.stderr, self._listen)
        descriptor = os.pidfd_open(process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._bury(rank, descriptor))
        if process.stdin:
            _write(process.stdin, document["job"])

    def _environment(self, document: Mapping[str, Any]) -> dict[str, str]:
        given = dict(self._place.env) if self._place else {}
        if self._events:
            given["RIG_EVENTS"] = self._events.address
        return {**os.environ, **given, **document["env"]}

    def _watch(self, rank: Rank, pipe: IO[bytes], act: Callable[[Rank, IO[bytes], Lines], None]) -> None:
        lines = Lines()

        def read() -> None:
            act(rank, pipe, lines)

        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, read)
        rank.pipes.append((pipe, read))

    def _pass_on(self, rank: Rank, pipe: IO[bytes], lines: Lines) -> None:
        for document in lines.feed(self._chunk(pipe)):
            self._tell(document | {"rank": rank.number})

    def _tell(self, said: Mapping[str, Any]) -> None:
        if self._cards and said["event"] == "step":
            self._cards.begin()
        if said["event"] == "done" and said.get("failed") is False:
            self._well.add(said["rank"])
        self._stream.emit(**said)

    def _listen(self, rank: Rank, pipe: IO[bytes], lines: Lines) -> None:
        for line in lines.cut(self._chunk(pipe)):
            # Of a line that is written again and again, as a progress bar is, what it said last.
            text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
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
        if self._events:
            self._events.drain()
        for pipe, read in rank.pipes:
            for _ in range(64):  # what it said last; a child of its may hold the pipe open for ever
                if pipe.fileno() not in self._selector.get_map():
                    break
                read()
            else:
                self._selector.unregister(pipe)
        rank.signal(signal.SIGKILL)  # children it left behind
        del self._running[rank.number]
        if code == -signal.SIGABRT and rank.number in self._well:
            # torch 2.13 may abort rank 0 when its script is over and Python is being dismantled (docs/facts.md).
            self._stream.emit("log", rank=rank.number, text="aborted after its script had ended well; taken for exit 0")
            code = 0
        self._stream.emit("exit", rank=rank.number, code=code, at=at, tail=list(rank.tail))

    def _hear(self) -> None:
        chunk = os.read(0, 1 << 16)
        orders = [json.loads(document["text"]) for document in self._control.feed(chunk) if document.get("text")]
        for order in orders:
            if order.get("do") == "clock":
                self._stream.emit("clock", at=time.monotonic())
            if order.get("do") == "states":
                self._tell_states()
        if not chunk or any(order.get("do") == "stop" for order in orders):
            self._stop()

    def _tell_states(self) -> None:
        for rank in self._running.values():
            if members := family.family(rank.process.pid):
                used = sum(member.cpu for member in members)
                last = list(rank.tail)[-LAST:]
                self._stream.emit("state", rank=rank.number, state=members[0].state, cpu=used, tail=last)

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


def _write(pipe: IO[bytes], job: Any) -> None:
    try:
        pipe.write(json.dumps(job).encode())
        pipe.close()
    except BrokenPipeError:  # it is dead already: its exit says more
        pass


def main() -> int:
    """Read the order from stdin, byte by byte up to its line end: what follows belongs to the loop."""
    line = bytearray()
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            return 0
        line += more
    stream = Stream()
    namespaces.adopt_orphans()
    try:
        launch = Launch(json.loads(line), stream)
    except files.Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    woken, wake = os.pipe()  # a handler that did the work itself would do it in the middle of the loop's
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    launch.end_on(woken)
    launch.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
