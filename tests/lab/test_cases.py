"""Inputs and machines that have broken other tools, made for real, and what the rig makes of each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from rig import pipeline
from rig.errors import LabError
from rig.lab import LABS, Lab, Order, netns
from rig.lab.launching import PORT
from rig.lab.preflight import preflight
from rig.plan import expand
from rig.results import CaseResult
from rig.scenario import load
from rig.units import Rate
from tests.lab.conftest import new_run, order
from tests.lab.runs import rig

Twist = Callable[[Lab], Lab]
Command = Callable[[str, Sequence[str], Mapping[str, str]], list[str]]


@pytest.fixture
def crooked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Twist], CaseResult]:
    """A lab of the tests' own, registered like any other: netns with something wrong; gives what a case comes to."""

    def judged(twist: Twist) -> CaseResult:
        @contextmanager
        def open_lab(wanted: Order) -> Iterator[Lab]:
            with netns.open_lab(wanted) as lab:
                yield twist(lab)

        module = ModuleType("crooked")
        module.__dict__["open_lab"] = open_lab
        monkeypatch.setitem(sys.modules, "crooked", module)
        monkeypatch.setitem(cast("dict[str, str]", LABS), "crooked", "crooked")
        return pipeline.run_case(order(new_run()), "crooked", pipeline.Known())

    return judged


def with_command(change: Callable[[Command, str, Sequence[str], Mapping[str, str]], list[str]]) -> Twist:
    """A twist of how commands reach places."""

    def twist(lab: Lab) -> Lab:
        return replace(lab, command=lambda place, argv, env: change(lab.command, place, argv, env))

    return twist


# ── bypass ───────────────────────────────────────────────────────────────────────────────────────────
def test_traffic_that_takes_another_way_fails(crooked: Callable[[Twist], CaseResult]) -> None:
    """Both ranks in one node, as when two containers share the host's network: they talk over its loopback."""

    def together(command: Command, place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        return command("n0" if "rig.node.launch" in argv else place, argv, env)

    result = crooked(with_command(together))
    assert result.status == "fail"
    assert result.reason.startswith("0 of 6 MB crossed the links of n0, n1: the rest took another way")


# ── a lying link ─────────────────────────────────────────────────────────────────────────────────────
HALVED = "qdisc change dev eth0 root handle 5219: tbf rate 492mbit burst 256kb limit 2500000"


def test_a_link_that_is_changed_behind_the_rigs_back_is_invalid(crooked: Callable[[Twist], CaseResult]) -> None:
    """After the read-back, so that only the probe can tell."""

    def halved(command: Command, place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        if place == "n1" and "rig.node.facts" in argv:
            subprocess.run(command("n1", ["tc", *HALVED.split()], {}), check=True, stdin=subprocess.DEVNULL)
        return command(place, argv, env)

    result = crooked(with_command(halved))
    assert result.status == "invalid"
    assert "link n1 up: alone: asked 941.5 Mb/s of goodput, applied a cable of 499.8 Mb/s, measured 47" in result.reason
    assert "link n0" not in result.reason
    assert set(result.raw) == {"probe"}, "the workload was not started"


def test_a_link_that_loses_its_shaping_is_no_crash(crooked: Callable[[Twist], CaseResult]) -> None:
    def unshaped(command: Command, place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        if place == "n1" and "rig.node.facts" in argv:
            subprocess.run(command("n1", ["tc", "qdisc", "del", "dev", "eth0", "root"], {}), check=True)
        return command(place, argv, env)

    result = crooked(with_command(unshaped))
    assert result.status == "error"
    assert result.reason.startswith("link n1 up: probe: the kernel holds noqueue by now, not tbf;")


# ── nodes that are not fit ───────────────────────────────────────────────────────────────────────────
def test_a_loopback_name_is_refused_with_its_line(crooked: Callable[[Twist], CaseResult], tmp_path: Path) -> None:
    """Debian's installer writes such a line; gloo would then wait for peers on 127.0.1.1."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 n1.lan n1\n198.18.0.1 n0\n198.18.0.2 n1\n", encoding="utf-8")

    def misnamed(command: Command, place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        if place == "n1" and "rig.node.facts" in argv:
            script = f'mount --bind {hosts} /etc/hosts && exec "$@"'
            return command(place, ["sh", "-c", script, "sh", *argv], env)
        return command(place, argv, env)

    result = crooked(with_command(misnamed))
    assert result.status == "error"
    assert result.reason.startswith("node n1: /etc/hosts:2: 127.0.1.1 n1.lan n1: its own name has a loopback address")
    assert Path("/etc/hosts").read_text(encoding="utf-8") != hosts.read_text(encoding="utf-8")


@pytest.mark.parametrize(("version", "refused"), [("1.13.1", True), ("1.13.1+cpu", True), (None, False)])
def test_version_skew_is_refused_with_a_table(tmp_path: Path, version: str | None, refused: bool) -> None:
    """Mixed versions of torch hang in their first collective, without a word."""
    stub = tmp_path / "torch-9.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n", encoding="utf-8")

    def skewed(command: Command, place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        mark = "PYTHONPATH="
        changed = [word.replace(mark, f"{mark}{tmp_path}:") if word.startswith(mark) else word for word in argv]
        return command(place, changed if place == "n1" and version else argv, env)

    wanted = order(new_run())
    with netns.open_lab(wanted) as lab:
        crooked_lab = with_command(skewed)(lab)
        if not refused:
            assert set(preflight(crooked_lab, wanted.case, wanted.run)) == {"n0", "n1"}
            return
        with pytest.raises(LabError) as caught:
            preflight(crooked_lab, wanted.case, wanted.run)
    first, *table = str(caught.value).splitlines()
    assert first.startswith("nodes: compare torch versions: they differ, and mixed versions hang")
    assert [line.split()[0] for line in table] == ["n0", "n1"]
    assert table[1].split() == ["n1", version]


# ── units and bursts ─────────────────────────────────────────────────────────────────────────────────
SCENARIO = "name: x\nnodes: 2\nlink: {{rate: {}}}\nworkload: {{kind: allreduce, size: 1MiB}}\n"


@pytest.mark.parametrize("written", ["1Gbps", "1gbps", "125MB/s", "1gbit", "1Gb/s", "1000mbit"])
def test_one_rate_in_many_spellings(tmp_path: Path, written: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(SCENARIO.format(written), encoding="utf-8")
    (one, *_) = expand(load(file, ()), cores=2)
    assert one.nodes[0].link.up.rate == one.nodes[0].link.down.rate == Rate(10**9)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1000", ["x.yaml:3:14: link.rate: ", "needs a unit, found 1000"]),
        ("1G", ["x.yaml:3:14: link.rate: ", "did you mean 1gbit"]),
        ("1GBps", ["x.yaml:3:14: link.rate: ", "1gbit, or 1GB/s for bytes"]),
        ("10gbit, burst: 1500B", ["x.yaml:3:", "burst"]),
    ],
)
def test_refused_before_anything_is_built(tmp_path: Path, written: str, said: list[str]) -> None:
    (tmp_path / "x.yaml").write_text(SCENARIO.format(written), encoding="utf-8")
    answer = rig("run", tmp_path / "x.yaml", "--lab", "netns", "--out", tmp_path / "out")
    assert answer.returncode == 2
    assert all(words in answer.stderr for words in said), answer.stderr
    assert answer.stdout == ""
    assert not (tmp_path / "out").exists()


# ── a port that is taken ─────────────────────────────────────────────────────────────────────────────
def test_a_busy_rendezvous_port_is_told(crooked: Callable[[Twist], CaseResult]) -> None:
    """Inside a lab only what the rig starts can have it; something it did not start must still be named."""
    listen = f"import socket, sys; s = socket.create_server(('', {PORT})); print('ready', flush=True); sys.stdin.read()"

    def occupy(lab: Lab) -> Lab:
        argv = lab.command("n0", [*lab.python, "-c", listen], {})
        squatter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert squatter.stdout and squatter.stdin
        assert squatter.stdout.readline() == b"ready\n"
        squatters.append(squatter)
        return lab

    squatters: list[subprocess.Popen[bytes]] = []
    result = crooked(occupy)
    for squatter in squatters:  # it died with the lab
        squatter.communicate(timeout=5)
    assert result.status == "error"
    assert "rank 0 (node n0): run allreduce: exit code 1" in result.reason
    assert "rendezvous: open the store at 198.18.0.1:29500: " in result.reason
    assert "address already in use" in result.reason.lower()
    assert "end what else has that port" in result.reason
    assert "Traceback" not in result.reason
