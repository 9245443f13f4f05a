"""The rig's counters against a capture by tcpdump on the switch's port: an instrument that is not ours."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from rig.lab import SWITCH, Lab, Order, open_lab
from rig.lab.launching import PORT
from rig.lab.ranks import Outcome, run_ranks
from rig.model import Case
from rig.units import Size
from rig.work import Allreduce
from tests.cases import case
from tests.lab.conftest import new_run
from tests.lab.runs import until

pytestmark = pytest.mark.skipif(shutil.which("tcpdump") is None, reason="no tcpdump here")
STEPS, SIZE = 6, 8 * 2**20


def test_payload_agrees_with_a_capture(tmp_path: Path) -> None:
    work = case(2, "500mbit", workload=Allreduce(STEPS, 1, Size(SIZE)))
    run, file = new_run(), tmp_path / "n0.pcap"
    outcome = Outcome(0, time.monotonic())
    with open_lab("netns", Order(run, work, print)) as lab:
        before = lab.fabric.counters()["n0"]["up"]
        with file.open("wb") as stream:
            tcpdump = captured(lab, stream.fileno())
            run_ranks(lab, work, run, outcome)
            wait_until_written(file)
            tcpdump.terminate()
            _, words = tcpdump.communicate(timeout=10)
        after = lab.fabric.counters()["n0"]["up"]
    assert "\n0 packets dropped by kernel" in words, words
    ours = sum(step["payload"] for step in outcome.steps if step["node"] == "n0")
    assert ours == (STEPS + 1) * (SIZE + 288 * 4)  # N = 2: S + 144·M, four segments each way
    assert payload(file, work) == pytest.approx(ours, rel=1e-3), words
    counted = after["bytes"] - before["bytes"]
    assert frames_on_tc(file, work) == pytest.approx(counted, rel=1e-3)


def captured(lab: Lab, output: int) -> subprocess.Popen[str]:
    argv = lab.command(
        SWITCH,
        ["tcpdump", "-i", "n0", "-s", "100", "-U", "--immediate-mode", "-B", "16384", "-Z", "root", "-w", "-"],
        {},
    )
    process = subprocess.Popen(argv, stdout=output, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert "listening" in process.stderr.readline()
    return process


def wait_until_written(file: Path) -> None:
    """tcpdump leaves what it has not read yet when it is told to end."""
    size, until_still = -1, time.monotonic() + 10
    while file.stat().st_size != size and time.monotonic() < until_still:
        size = file.stat().st_size
        time.sleep(1.5)


def packets(file: Path, source: str) -> Iterator[tuple[int, int, int, int, int]]:
    """Source port, destination port, sequence number, payload bytes and IP bytes of each TCP packet from `source`."""
    data = file.read_bytes()
    place = 24  # the file's header
    while place + 16 <= len(data):
        (kept,) = struct.unpack_from("<I", data, place + 8)
        frame, place = data[place + 16 : place + 16 + kept], place + 16 + kept
        if frame[12:14] != b"\x08\x00" or frame[23] != 6 or IPv4Address(frame[26:30]) != IPv4Address(source):
            continue
        total, header = struct.unpack_from("!H", frame, 16)[0], (frame[14] & 15) * 4
        here, there, sequence = struct.unpack_from("!HHI", frame, 14 + header)
        tcp = (frame[14 + header + 12] >> 4) * 4
        yield here, there, sequence, total - header - tcp, total


def payload(file: Path, work: Case) -> int:
    """TCP payload that n0 sent on training connections, what was sent twice counted once."""
    sent: dict[tuple[int, int, int], int] = {}
    for here, there, sequence, size, _ in packets(file, work.nodes[0].address):
        if PORT not in (here, there):
            sent[here, there, sequence] = max(size, sent.get((here, there, sequence), 0))
    return sum(sent.values())


def frames_on_tc(file: Path, work: Case) -> int:
    """All bytes of n0's TCP as tc counts them: 14 B of header, and each segment of a super-packet its own 66 B."""
    count = 0
    for *_, size, total in packets(file, work.nodes[0].address):
        segments = max(1, -(-size // 1448))
        count += 14 + total + (segments - 1) * (14 + 52)
    return count


def test_the_switch_is_captured_where_links_are(tmp_path: Path) -> None:
    """A capture that saw nothing would agree with nothing: packets that are known to pass are in it."""
    work, run = case(2), new_run()
    with open_lab("netns", Order(run, work, print)) as lab, (tmp_path / "x.pcap").open("wb") as stream:
        tcpdump = captured(lab, stream.fileno())
        talk = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x' * 500, ('n1', 9))"
        subprocess.run(lab.command("n0", [*lab.python, "-c", talk], {}), check=True)
        until(lambda: (tmp_path / "x.pcap").stat().st_size > 24, 5)
        tcpdump.terminate()
        tcpdump.communicate(timeout=10)
    assert b"x" * 50 in (tmp_path / "x.pcap").read_bytes()
