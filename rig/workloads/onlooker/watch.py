"""One watched process: the moments of the step under way, and what the rig is told of it. No torch.

The rig listens on the socket that RIG_EVENTS names (@NAME, of the abstract kind: unix(7)) for JSON lines, each with
its "event" and "rank": hello, group, layout, step (see `marks`), done; and log, where something went wrong.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rig.node.counters import Meter
from rig.node.stream import Stream
from rig.workloads.marks import Marks, StepLog

SETTLED = 2  # in which step DDP has its final buckets: it rebuilds them after its first, of a static graph its second


class Exchange(Protocol):
    """What a step exchanges; `replicas` knows."""

    @property
    def spans(self) -> list[list[Any]]: ...
    def clear(self) -> None: ...
    def complete(self) -> None: ...
    def layout(self) -> dict[str, Any]: ...


@dataclass
class Moments:
    """Of the step under way (time.monotonic(), s); None for what nobody has noticed."""

    start: float | None = None
    called: float | None = None  # DDP's forward, for the first time in this step
    forward: float | None = None  # and when its buffers had arrived
    micro_batch: float | None = None  # the same, of the last forward that came after a backward pass
    backward: float | None = None  # the last backward pass began …
    backward_end: float | None = None  # … and ended
    _awaits_forward: bool = field(default=False, repr=False)  # a backward pass has ended the micro-batch

    def call(self) -> None:
        """A forward pass that will have a backward one is called."""
        self.called = self.called or time.monotonic()
        self.start = self.start or self.called

    def compute(self) -> None:
        """It begins, for what it needs of others is there."""
        now = time.monotonic()
        if self.forward is None or self._awaits_forward:
            self.micro_batch = now
        self.forward = self.forward or now
        self._awaits_forward = False

    def back(self) -> None:
        """A backward pass begins."""
        self.backward = time.monotonic()
        self.start = self.start or self.backward

    def backed(self) -> None:
        """It has ended, exchanges that it waits for included."""
        self.backward_end, self._awaits_forward = time.monotonic(), True

    def marks(self, end: float, spans: list[list[Any]]) -> Marks | None:
        """The step that ends now; None where nothing tells when it began."""
        if self.start is None:
            return None
        forward = max(self.start, self.forward or self.start)
        ready = max((float(span[0]) for span in spans), default=self.backward_end or end)
        forward_end = min(max(forward, self.backward or end), end)
        return Marks(
            self.start, forward, forward_end, min(max(ready, forward_end), end), end,
            earlier=max(0.0, (self.micro_batch or forward) - forward),
            loading=max(0.0, min(self.called or self.start, forward) - self.start),
        )  # fmt: skip


class Watch:
    """What is known of this process, and how the rig learns of it.

    Every entry but `guarded` may raise: callers go through that.
    """

    def __init__(self, name: str) -> None:
        self.moments = Moments()
        self.exchange: Exchange | None = None
        self.by_hand = False  # the script marks its steps: `from rig import step`
        self.over = False  # it is watched no longer
        self.steps = 0
        self._name = name
        self._stream: Stream | None = None
        self._log: StepLog | None = None
        self._rank, self._size = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        self._store = int(os.environ.get("MASTER_PORT") or 0)
        self._warmup, most = (int(os.environ.get(key) or 0) for key in ("RIG_WARMUP", "RIG_STEPS"))
        self._most = self._warmup + most if most else None
        os.register_at_fork(after_in_child=self._leave)
        atexit.register(self.guarded, self._finish)

    def guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Do it; where that fails, say so once and watch no longer. The script never notices."""
        if self.over:
            return
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001  a script must not fail because it is watched
            self.over = True
            self._complain(f"onlooker: {type(error).__name__}: {error}; rank {self._rank} is watched no longer")

    def tell(self, text: str) -> None:
        """Say something for the log."""
        self._open().emit("log", text=text)

    def join(self, backend: str, rank: int, size: int, store: int | None) -> None:
        """The process is a member of a group now, whose rendezvous store has a port of its own or MASTER_PORT."""
        self._rank, self._size = rank, size
        self._store = store or self._store
        self._open().emit("group", backend=backend, size=size, ranks=list(range(size)))

    def begin(self) -> None:
        """Count bytes from now on, if none have been counted before: something of the first step has happened."""
        if self._log is None:
            # What the cable carries is one figure for all ranks of a node: its first one tells it.
            first = os.environ.get("LOCAL_RANK", "0") == "0"
            interface = os.environ.get("GLOO_SOCKET_IFNAME") if first else None
            self._log = StepLog(self._open(), Meter(self._store, interface), self._warmup)

    def end(self) -> None:
        """A step ends, and the next one starts; the time to tell of it is neither's."""
        self.begin()
        assert self._log is not None
        end, exchange = time.monotonic(), self.exchange
        if exchange:
            exchange.complete()
        spans = exchange.spans if exchange else []
        marks = self.moments.marks(end, spans)
        if marks is not None and (self._most is None or self.steps < self._most):
            self._log.write(self.steps, marks, spans)
        if exchange:
            if self.steps == SETTLED:
                self._open().emit("layout", **exchange.layout())
            exchange.clear()
        self.steps += marks is not None
        self.moments = Moments(start=time.monotonic())

    def mark(self) -> None:
        """The script says that a step ends; the first time it may have ended already, with its optimizer's."""
        if not self.by_hand and self.steps:
            self.moments = Moments(start=time.monotonic())
        elif self.moments.start is None:  # nothing else has been seen of it, so it starts where it ends
            self.begin()
            self.moments = Moments(start=time.monotonic())
        else:
            self.end()
        self.by_hand = True

    def _open(self) -> Stream:
        if self._stream is None:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            end.connect("\0" + self._name.removeprefix("@"))
            self._stream = Stream(end.detach(), rank=self._rank)
            torch: Any = sys.modules.get("torch")
            version, threads = (torch.__version__, torch.get_num_threads()) if torch else (None, os.cpu_count())
            self._stream.emit("hello", torch=version, size=self._size, threads=threads)
        return self._stream

    def _finish(self) -> None:
        """The script is over. `failed`: by an exception that nobody caught, of which Python has taken note by now."""
        if self._stream is not None:
            failed = getattr(sys, "last_value", None) is not None
            self._stream.emit("done", steps=self.steps, failed=failed, loss=None, accuracy=None)

    def _complain(self, text: str) -> None:
        try:
            self.tell(text)
        except OSError:  # the rig is gone, or was never there
            sys.stderr.write(text + "\n")

    def _leave(self) -> None:
        """In a forked child: a data loader's worker is no rank. One of a parent that has told nothing yet may be."""
        if self._stream is not None and not self.over:
            self.over = True
            self._stream.close()


_watch: list[Watch] = []  # one a process, made when it is first asked for


def watching() -> Watch | None:
    """This process's watch; None outside the rig."""
    name = os.environ.get("RIG_EVENTS")
    if name and not _watch:
        _watch.append(Watch(name))
    return _watch[0] if name else None


def marker() -> Callable[[], None]:
    """`rig.step`. Whoever asks for it will mark steps, so that they are not taken from the optimizer any more."""
    watch = watching()
    if watch is not None and not watch.steps:
        watch.by_hand = True
    return step


def step() -> None:
    """Mark the end of a training step: `from rig import step`, and `step()` as the last line of the loop.

    Only needed where a step is not one optimizer's: without it, steps end with the optimizer's own. Does nothing
    outside the rig.
    """
    watch = watching()
    if watch is not None:
        watch.guarded(watch.mark)
