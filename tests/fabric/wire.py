"""A delay line with two TAP interfaces, a and b, in two network namespaces of their own, for tests and benchmarks.

Needs no root: `unshare --user` makes one for it. As a program, it makes the namespaces and becomes the delay line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rig.fabric.shape import Transit
from rig.fabric.tap import open_tap
from rig.node import namespaces
from tests.lab.runs import ROOT

ADDRESSES = {"a": "10.9.0.1", "b": "10.9.0.2"}
CARDS = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}
NOTHING = Transit(
    delay=0, jitter=0, distribution="normal", good=0, bad=0, enter=0, leave=10**9, duplicate=0, corrupt=0, reorder=0,
    octets=2**30, packets=2**30,
)  # fmt: skip
IN = ("nsenter", "--preserve-credentials", "--user", "--net")
MAKE = ("unshare", "--user", "--map-root-user", "--net")


def transit(**asked: Any) -> Transit:
    """Nothing happens to a packet, but for what is asked."""
    return replace(NOTHING, **asked)


def lack() -> str:
    """Why there can be no such wire here; empty where there can."""
    code = "from rig.fabric.tap import open_tap; open_tap('a')"
    tried = subprocess.run([*MAKE, sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    return tried.stderr.strip().rpartition("\n")[2]


class Wire:
    """The test's side: starts the delay line, asks it, and runs traffic over it. `up` is from a to b."""

    def __init__(self, up: Transit = NOTHING, down: Transit = NOTHING, seed: int = 1) -> None:
        self.process = subprocess.Popen(
            [*MAKE, sys.executable, "-m", "tests.fabric.wire"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        made = self._hear()
        assert made["event"] == "wire", made
        self._other: int = made["other"]
        a, b = made["a"], made["b"]
        lines = [
            {"name": "n0", "way": "up", "from": a, "to": b, "transit": up.document()},
            {"name": "n0", "way": "down", "from": b, "to": a, "transit": down.document()},
        ]
        self.ready = self.ask(version=1, seed=seed, lines=lines)
        assert self.ready["event"] == "ready", self.ready

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """A line in, a line out."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the delay line has ended"
        document: dict[str, Any] = json.loads(line)
        return document

    def counters(self, way: str = "up") -> dict[str, Any]:
        """One way's counters; what they count must add up."""
        lines = self.ask(do="counters")["lines"]
        (found,) = (line for line in lines if line["way"] == way)
        came, went = found["taken"] + found["duplicated"], found["given"] + found["lost"] + found["overflowed"]
        assert came == went + found["held"], found
        return dict(found)

    def cpu(self) -> float:
        """CPU seconds of the delay line so far: fields 14 and 15 of proc_pid_stat(5)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, end: str, *argv: str, within: float = 60) -> str:
        """Run a command in the namespace of a or b; returns what it writes."""
        pid = self.process.pid if end == "a" else self._other
        prefix = (*IN, "--target", str(pid))
        return subprocess.run(
            [*prefix, *argv], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE, timeout=within
        ).stdout

    def traffic(self, kind: str, *arguments: object, within: float = 60) -> Any:
        """Send something from a to b; see tests.fabric.traffic."""
        argv = [sys.executable, "-m", "tests.fabric.traffic", str(self._other), kind, *map(str, arguments)]
        return json.loads(self.run("a", *argv, within=within))


def main() -> None:
    """Make both namespaces and the TAPs, say so, and become the delay line."""
    namespaces.die_with_parent()
    a = _end("a")
    b, other = _elsewhere(lambda: _end("b"))
    for descriptor in (a, b):
        os.set_inheritable(descriptor, True)
    print(json.dumps({"event": "wire", "a": a, "b": b, "other": other}), flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "rig.fabric.delayline"])


def _elsewhere(make: Callable[[], int]) -> tuple[int, int]:
    """Call `make` in a new network namespace, come back; its result, and a process that stays there."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    namespaces.unshare(namespaces.NEWNET)
    made = make()
    pid = os.fork()
    if pid == 0:
        namespaces.die_with_parent()
        os.execvp("sleep", ["sleep", "600"])
    namespaces.setns(f"/proc/self/fd/{home}", namespaces.NEWNET)
    return made, pid


def _end(name: str) -> int:
    """One end: its TAP, up; neighbours known, windows wide, and no IPv6, whose own packets would be counted."""
    descriptor = open_tap(name)
    (other,) = set(ADDRESSES) - {name}
    _set("ipv6/conf/all/disable_ipv6", "1")
    _set("ipv4/tcp_rmem", f"4096 131072 {2**26}")
    _set("ipv4/tcp_wmem", f"4096 131072 {2**26}")
    for line in (
        "link set dev lo up",
        f"link set dev {name} address {CARDS[name]} txqueuelen 10000 up",
        f"address add {ADDRESSES[name]}/24 dev {name}",
        f"neighbour add {ADDRESSES[other]} lladdr {CARDS[other]} nud permanent dev {name}",
    ):
        subprocess.run(["ip", *line.split()], check=True, stdin=subprocess.DEVNULL)
    return descriptor


def _set(sysctl: str, value: str) -> None:
    path = Path("/proc/sys/net", sysctl)
    if path.exists():
        path.write_text(value, encoding="ascii")


if __name__ == "__main__":
    main()
