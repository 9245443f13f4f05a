"""`rig up` and what can be done with a lab that stays: in every lab there is, and never with anything left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig import held, survey
from rig.errors import LabError
from tests.lab.conftest import processes_of
from tests.lab.runs import RIG, ROOT, assert_unchanged, machine, rig, until

SCENARIO = """\
name: small
nodes: 2
link: {rate: 1gbit}
workload: {kind: allreduce, size: 1KiB, steps: 2, warmup: 1}
"""
SERVE = (
    "import socket\n"
    "server = socket.create_server(('n1', 7000))\n"
    "while True:\n"
    "    connection, _ = server.accept()\n"
    "    connection.sendall(b'served')\n"
    "    connection.close()\n"
)
CALL = "import socket; print(socket.create_connection(('n1', 7000), 5).recv(9).decode())"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for notes of labs that is nobody else's, and longer than a socket's address may be; what a failed test
    leaves up is ended.
    """
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    for lab in held.every():
        if lab.lives:
            lab.down()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def labs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = survey.take()["labs"]
    return found


def opened(file: Path, kind: str) -> str:
    """Open a lab and return its run's id."""
    answer = rig("up", file, "--lab", kind)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.partition(":")[0]


def assert_gone(run: str, state: Path) -> None:
    until(lambda: not processes_of(f"RIG_RUN={run}"), 10)
    assert list(state.iterdir()) == []


# ── up, exec, status, down ───────────────────────────────────────────────────────────────────────────
def test_a_lab_stays_until_down(file: Path, kind: str, state: Path) -> None:
    before = machine()
    answer = rig("up", file, "--lab", kind)
    assert answer.returncode == 0, answer.stderr
    run = answer.stdout.partition(":")[0]
    assert f"lab {kind} is up: case nodes=2" in answer.stdout
    assert "places: n0 n1 switch" in answer.stdout
    (lab,) = json.loads(rig("status", "--json").stdout)["labs"]
    assert (lab["run"], lab["lab"], lab["case"], lab["lives"]) == (run, kind, "nodes=2", True)
    streams = rig("exec", "n1", "--", "sh", "-c", "hostname; echo wrong >&2; exit 42")
    assert (streams.returncode, streams.stdout, streams.stderr) == (42, "n1\n", "wrong\n")
    assert rig("exec", "switch", "--run", run[:4], "--", "true").returncode == 0
    down = rig("down")
    assert (down.returncode, down.stdout) == (0, f"{run}: the lab is gone\n"), down.stderr
    assert_gone(run, state)
    assert_unchanged(before)


def test_what_exec_starts_in_the_background_lives_until_down(file: Path, kind: str, state: Path) -> None:
    run = opened(file, kind)
    python = "python3" if kind == "docker" else RIG[0]
    assert rig("exec", "n1", "--", "sh", "-c", f'{python} -c "{SERVE}" >/dev/null 2>&1 &').returncode == 0
    time.sleep(0.5)
    answer = rig("exec", "n0", "--", python, "-c", CALL)
    assert answer.stdout == "served\n", answer.stderr
    (lab,) = labs()
    counted = {f"{link['name']} {link['direction']}": link["packets"] for link in lab["links"]}
    assert min(counted.values()) >= 4  # a connection there and back crosses both cables both ways
    assert "n1 down" in rig("status").stdout
    assert rig("down").returncode == 0
    assert_gone(run, state)


TIME_OUT = (  # field tcpi_rto of struct tcp_info (linux/tcp.h), in microseconds
    "import socket, struct\n"
    "call = socket.create_connection(('n1', 7000), 5)\n"
    "call.recv(9)\n"
    "print(struct.unpack_from('I', call.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 8)[0])\n"
)


def test_the_kernels_least_time_out_is_stretched(file: Path, kind: str) -> None:
    """Not by being told so: the route's figure is worth nothing to the kernel unless it is locked."""
    answer = rig("up", file, "--lab", kind, "--set", "dilation=8")
    assert answer.returncode == 0, answer.stderr
    python = "python3" if kind == "docker" else RIG[0]
    assert rig("exec", "n1", "--", "sh", "-c", f'{python} -c "{SERVE}" >/dev/null 2>&1 &').returncode == 0
    time.sleep(0.5)
    told = rig("exec", "n0", "--", python, "-c", TIME_OUT)
    assert 1_600_000 <= int(told.stdout) <= 1_700_000, told.stderr


def test_exec_passes_stdin_and_arguments(file: Path, kind: str) -> None:
    opened(file, kind)
    argv = [*RIG, "exec", "n0", "--", "sh", "-c", 'cat; printf "%s|" "$@"', "sh", "a b", "--run", "-x", "$HOME"]
    answer = subprocess.run(argv, check=False, input="grüße\n", capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout == "grüße\na b|--run|-x|$HOME|"


def test_two_labs_are_told_apart(file: Path) -> None:
    runs = sorted(opened(file, "netns") for _ in range(2))
    for refused in (rig("down"), rig("exec", "n0", "--", "true")):
        assert refused.returncode == 2
        assert all(run in refused.stderr for run in runs)
    assert rig("down", runs[0]).returncode == 0
    assert [lab["run"] for lab in labs()] == [runs[1]]
    assert rig("exec", "n0", "--", "true").returncode == 0


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────
BAD = {
    "a place that is not": (["exec", "n9", "--", "true"], 2, "n9: find it in run"),
    "no command": (["exec", "n0"], 2, "write it after --"),
    "a program that is not": (["exec", "n0", "--", "no-such-program"], 127, "no-such-program"),
    "a link that is not": (["capture", "n9"], 2, "it has n0, n1"),
    "a file that cannot be": (["capture", "n0", "-w", "/nowhere/x.pcap"], 2, "name another file with -w"),
    "another run": (["down", "zzzz"], 2, "none has an id like 'zzzz'"),
}


def test_bad_usage_is_one_sentence(file: Path) -> None:
    opened(file, "netns")
    for what, (arguments, code, said) in BAD.items():
        answer = rig(*arguments)
        assert answer.returncode == code, what
        assert said in answer.stderr, what
        assert len(answer.stderr.splitlines()) == 1, what


@pytest.mark.parametrize("arguments", [["exec", "n0", "--", "true"], ["down"], ["capture", "n0"]])
def test_without_a_lab_one_is_asked_for(state: Path, arguments: list[str]) -> None:
    answer = rig(*arguments)
    assert answer.returncode == 2
    assert answer.stderr == "which lab: none is up; `rig up FILE` opens one\n"
    assert list(state.iterdir()) == []


UNOPENED = {
    "a scenario that is wrong": (["--set", "link.rate=1G"], {}, 2, "did you mean 1gbit"),
    "a lab that is not": (["--lab", "cloud"], {}, 2, "lab 'cloud' is unknown"),
    "a glob that names nothing": (["--only", "nodes=9"], {}, 2, "none matches"),
    "no engine": (["--lab", "docker"], {"DOCKER_HOST": "unix:///nowhere/docker.sock"}, 3, "lab docker"),
}


@pytest.mark.parametrize("what", list(UNOPENED))
def test_a_lab_that_cannot_be_opened_says_why(file: Path, state: Path, what: str) -> None:
    arguments, env, code, said = UNOPENED[what]
    answer = rig("up", file, *arguments, env=env)
    assert answer.returncode == code
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(state.iterdir()) == []


def start_up(file: Path) -> tuple[subprocess.Popen[str], int]:
    """`rig up` under way, and its keeper while that is still importing."""
    argv = [*RIG, "up", str(file), "--lab", "netns"]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: children.read_text(encoding="ascii").split())
    return process, int(children.read_text(encoding="ascii").split()[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_while_it_opens_leaves_nothing(file: Path, state: Path, number: int) -> None:
    before = machine()
    process, keeper = start_up(file)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGKILL), err
    until(lambda: not Path(f"/proc/{keeper}").exists() or _is_zombie(keeper), 20)
    assert list(state.iterdir()) == []
    assert_unchanged(before)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_killed_keeper_leaves_notes_that_clean_removes(file: Path, kind: str, state: Path) -> None:
    run = opened(file, kind)
    (lab,) = labs()
    os.kill(lab["keeper"], signal.SIGKILL)
    until(lambda: not labs()[0]["lives"], 10)
    assert f"{run} (stale)" in rig("status").stdout
    refused = rig("exec", "n0", "--run", run, "--", "true")
    assert refused.returncode == 3
    assert "its keeper is gone; `rig clean` removes what it left" in refused.stderr
    cleaned = rig("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert f"removed the state of run {run}" in cleaned.stderr
    assert_gone(run, state)


def test_clean_leaves_a_living_lab_alone(file: Path, kind: str) -> None:
    run = opened(file, kind)
    assert run not in rig("clean").stderr
    assert rig("exec", "n0", "--", "true").returncode == 0


def test_a_lab_whose_fabric_dies_is_put_away(file: Path, state: Path) -> None:
    run = opened(file, "netns")
    fabrics = [pid for pid in processes_of(f"RIG_RUN={run}") if "rig.fabric" in _command_line(pid)]
    os.kill(fabrics[0], signal.SIGKILL)
    assert_gone(run, state)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_may_enter_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int) -> None:
    (tmp_path / "rig").mkdir()
    (tmp_path / "rig").chmod(mode)
    with monkeypatch.context() as patched:
        patched.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with pytest.raises(LabError, match="it is not a private folder of yours"):
            held.folder()


# ── capture ──────────────────────────────────────────────────────────────────────────────────────────
PING = (
    "import socket\n"
    "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "for number in range(5): one.sendto(bytes([number]) * 100, ('n1', 9))\n"
)


def captured(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A capture under way while n0 sends five datagrams to n1, which refuses each."""
    argv = [*RIG, "capture", *arguments]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert process.stderr.readline() == "capturing\n"
    (lab,) = labs()
    python = "python3" if lab["lab"] == "docker" else RIG[0]
    assert rig("exec", "n0", "--", python, "-c", PING).returncode == 0
    time.sleep(0.5)  # for the answers to the last
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def test_packets_of_a_link_as_a_file(file: Path, kind: str, tmp_path: Path) -> None:
    opened(file, kind)
    path = tmp_path / "n1.pcap"
    answer = captured("n1", "-w", str(path))
    assert answer.returncode == 0, answer.stderr
    packets = read_pcap(path)
    assert f"{len(packets)} packets captured, 0 dropped by the kernel" in answer.stderr
    datagrams = [data for _, data in packets if len(data) == 142 and data[23] == 17]
    assert [data[42:] for data in datagrams] == [bytes([number]) * 100 for number in range(5)]
    assert any(data[23] == 1 for _, data in packets)  # the other way: n1's refusals, by ICMP
    times = [at for at, _ in packets]
    assert times == sorted(times)
    assert abs(times[0] - time.time()) < 60
    if tcpdump := shutil.which("tcpdump"):
        read = subprocess.run([tcpdump, "-nr", path], check=True, capture_output=True, text=True)
        assert len(read.stdout.splitlines()) == len(packets)


def read_pcap(path: Path) -> list[tuple[float, bytes]]:
    """Moment (s) and bytes of each packet, by pcap-savefile(5)."""
    content = path.read_bytes()
    magic, major, minor, _, _, longest, link_type = struct.unpack_from("=IHHiIII", content)
    assert (magic, major, minor, link_type) == (0xA1B23C4D, 2, 4, 1)
    packets, at = [], 24
    while at < len(content):
        seconds, nanoseconds, kept, length = struct.unpack_from("=IIII", content, at)
        assert kept == length <= longest
        packets.append((seconds + nanoseconds / 1e9, content[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return packets


def test_packets_of_a_link_as_lines(file: Path) -> None:
    opened(file, "netns")
    answer = captured("n1")
    datagrams = [line for line in answer.stdout.splitlines() if "UDP, 142 B" in line]
    assert len(datagrams) == 5
    assert all(" down 198.18.0.10:" in line and " → 198.18.0.11:9 " in line for line in datagrams)
    assert any(" up " in line and "ICMP" in line for line in answer.stdout.splitlines())
    assert all(len(line) <= 80 for line in answer.stdout.splitlines())


CLUSTERS = """\
name: small
link: {rate: 1gbit}
clusters: {us: {nodes: 1}, eu: {nodes: 1}}
wan: {rate: 100mbit, delay: 5ms}
workload: {kind: allreduce, size: 1KiB, steps: 2, warmup: 1}
"""


def test_packets_between_clusters_and_commands_in_their_switches(file: Path, kind: str) -> None:
    """The cable with a delay may be two TAPs; it is listened to all the same."""
    file.write_text(CLUSTERS, encoding="utf-8")
    opened(file, kind)
    (lab,) = labs()
    assert lab["places"] == ["n0", "n1", "switch-us", "switch-eu"]
    assert {link["name"]: link["asked"] for link in lab["links"]}["us-eu"] == {"rate": "100mbit", "delay": "5ms"}
    answer = captured("us-eu")
    lines = [line for line in answer.stdout.splitlines() if "UDP, 142 B" in line]
    assert len(lines) == 5
    assert all(" up " in line for line in lines)  # from the first cluster to the second
    assert {link["name"] for link in labs()[0]["links"] if link["packets"] >= 5} == {"n0", "n1", "us-eu"}
    for switch in ("switch-us", "switch-eu"):
        assert "sw0" in rig("exec", switch, "--", "cat", "/proc/net/dev").stdout


def test_a_capture_ends_after_its_count(file: Path) -> None:
    opened(file, "netns")
    answer = captured("n0", "--count", "3")
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 3
    assert "3 packets captured" in answer.stderr


def test_a_capture_ends_after_its_time(file: Path) -> None:
    opened(file, "netns")
    answer = rig("capture", "n0", "--seconds", "0.5")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "capturing\n0 packets captured, 0 dropped by the kernel\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_capture_ends_well_when_interrupted(file: Path, tmp_path: Path, number: int) -> None:
    run = opened(file, "netns")
    argv = [*RIG, "capture", "n0", "-w", str(tmp_path / "n0.pcap")]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert process.stderr.readline() == "capturing\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "0 packets captured, 0 dropped by the kernel\n")
    assert read_pcap(tmp_path / "n0.pcap") == []
    assert not [pid for pid in processes_of(f"RIG_RUN={run}") if "rig.node.capture" in _command_line(pid)]
