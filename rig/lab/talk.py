"""Processes in several places of a lab, each speaking JSON lines: started together, heard together, ended together."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from rig.errors import LabError
from rig.lab import Lab, clean_environment
from rig.node.stream import Lines
from rig.node.undisturbed import undisturbed

PATIENCE = 3.0  # seconds for a process to end by itself once its stdin has ended


@dataclass
class _Party:
    place: str
    process: subprocess.Popen[bytes]
    words: IO[bytes]
    lines: Lines = field(default_factory=Lines)


def quoted(lines: Iterable[str]) -> str:
    """What a process said last, as an error quotes it: a line each, indented."""
    return "\n".join(f"  {line}" for line in lines if line) or "  (it said nothing)"


class Talk:
    """`with Talk(lab, {place: module and arguments}, run) as talk`: python -m MODULE ARGUMENT… in each place."""

    def __init__(self, lab: Lab, modules: Mapping[str, Sequence[str]], run: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._parties: dict[str, _Party] = {}
        self._heard: deque[tuple[str, dict[str, Any]]] = deque()
        try:
            for place, module in modules.items():
                argv = lab.command(place, [*lab.python, "-m", *module], {"RIG_RUN": run, "RIG_NODE": place})
                self._invite(place, argv, run)
        except BaseException:
            self.end()
            raise

    def _invite(self, place: str, argv: Sequence[str], run: str) -> None:
        words = tempfile.TemporaryFile()
        process = subprocess.Popen(
            argv, env=clean_environment(run), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
            bufsize=0, start_new_session=True,
        )  # fmt: skip
        self._parties[place] = party = _Party(place, process, words)
        assert process.stdout
        self._selector.register(process.stdout, selectors.EVENT_READ, party)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end()

    def say(self, place: str, document: Any) -> None:
        """Send one line to one place; a place that is gone is told nothing, its "closed" event says why."""
        stdin = self._parties[place].process.stdin
        assert stdin
        try:
            stdin.write((json.dumps(document) + "\n").encode())
        except (BrokenPipeError, ValueError):
            pass

    def hear(self, until: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events as they come, with their place, until all have closed or time.monotonic() passes `until`.

        A process that ends gives a last event "closed" with its exit "code" and the end of its stderr, "words".
        """
        while True:
            while self._heard:  # kept here, so that a reader who stops in the middle loses nothing
                yield self._heard.popleft()
            left = until - time.monotonic()
            if not self._selector.get_map() or left <= 0:
                return
            for key, _ in self._selector.select(left):
                self._listen(key.data)

    def await_all(self, event: str, within: float, what: str) -> None:
        """Wait until every place has said that it is so far; at most `within` s. Raises LabError."""
        waiting = set(self._parties)
        for place, said in self.hear(time.monotonic() + within):
            if said["event"] != event:
                raise LabError(f"{place}: {what}: {said.get('words') or said}")
            waiting.discard(place)
            if not waiting:
                return
        raise LabError(f"{', '.join(sorted(waiting))}: {what}: no answer within {within:.0f} s")

    @property
    def over(self) -> bool:
        """Whether all have closed and all was heard."""
        return not self._selector.get_map() and not self._heard

    def _listen(self, party: _Party) -> None:
        assert party.process.stdout
        chunk = os.read(party.process.stdout.fileno(), 1 << 16)
        self._heard.extend((party.place, document) for document in party.lines.feed(chunk))
        if not chunk:
            self._selector.unregister(party.process.stdout)
            self._heard.append((party.place, self._closed(party)))

    def end(self) -> None:
        """Close every stdin, wait a little, kill what is left; not cut short by a signal."""
        with undisturbed():
            self._end()

    def _end(self) -> None:
        for party in self._parties.values():
            assert party.process.stdin
            party.process.stdin.close()
        until = time.monotonic() + PATIENCE
        for party in self._parties.values():
            try:
                party.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                party.process.kill()
                party.process.wait()
            assert party.process.stdout
            party.process.stdout.close()
            party.words.close()
        self._selector.close()

    def _closed(self, party: _Party) -> dict[str, Any]:
        try:
            code: int | None = party.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        party.words.seek(0)
        return {"event": "closed", "code": code, "words": party.words.read().decode(errors="replace").strip()[-2000:]}
