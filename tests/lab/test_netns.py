"""What only lab `netns` promises: it needs no privilege, says what to do where it is forbidden, and the kernel's word
on every link is heard before a byte passes.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.errors import FabricError
from rig.fabric import shape
from rig.lab import LABS, SWITCH, SWITCH_ADDRESS, Lab, Order, open_lab
from rig.lab.netns import open_lab as open_bare_lab
from rig.lab.wiring import build
from rig.units import Rate
from tests.cases import case
from tests.lab.conftest import new_run, order, ran
from tests.lab.runs import RIG, ROOT, as_ordinary_user, assert_unchanged, machine, now, rig, start, until

ONE_NODE = "name: small\nlink: {rate: 1gbit}\nnodes: 1\nworkload: {kind: allreduce, size: 1KiB, steps: 2, warmup: 1}\n"


# ── who may have one ─────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may write to; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="rig-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.slow
def test_an_ordinary_user_has_a_lab(open_folder: Path) -> None:
    """With no capability, no home and no entry in /etc/passwd."""
    before = machine()
    run = start(open_folder, prefix=as_ordinary_user())
    try:
        until(lambda: run.processes("rig.node.probe"))
        assert os.stat(f"/proc/{run.processes('rig.node.probe')[0]}").st_uid != 0
        run.note_spaces()
        code, _, err = run.end()
    finally:
        run.kill()
    assert code == 0, err
    assert run.cases() == ["pass", "pass"]
    run.assert_gone(now())
    assert_unchanged(before)


FORBID = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'  # counts for all namespaces below this one


def test_forbidden_user_namespaces_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(ONE_NODE, encoding="utf-8")
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c", FORBID, "sh"]
    argv = [*inside, *RIG, "run", str(file), "--lab", "netns", "--out", str(tmp_path / "out")]
    answer = subprocess.run(argv, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    (said,) = (line for line in answer.stderr.splitlines() if line.startswith("lab netns"))
    assert answer.returncode == 3
    assert "this system forbids it to you" in said
    assert "run as root, or allow it: sysctl" in said
    assert "Traceback" not in answer.stderr


# ── before the first byte ────────────────────────────────────────────────────────────────────────────
SEND_FOR_EVER = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
print("sending", flush=True)
while True:
    for address in sys.argv[1:]:
        try:
            sender.sendto(bytes(1000), (address, 9))
        except OSError:  # no route yet
            pass
    time.sleep(0.001)
"""


def test_no_byte_passes_before_the_links_are_read_back(kind: str) -> None:
    wanted = order(new_run())
    open_unwired = importlib.import_module(LABS[kind]).open_lab
    with open_unwired(wanted) as lab:
        argv = [*lab.python, "-c", SEND_FOR_EVER, "198.18.0.2", SWITCH_ADDRESS, "198.19.255.255"]
        with subprocess.Popen(lab.command("n0", argv, {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
            try:
                assert sender.stdout
                assert sender.stdout.readline() == b"sending\n"
                build(lab, wanted.case)
                lab.fabric.read_back()
                assert passed(lab) == 0
                lab.fabric.open()
                until(lambda: passed(lab) > 2000, 5)
            finally:
                sender.kill()


def passed(lab: Lab) -> int:
    """Bytes that any link's counters have seen: of qdiscs in both directions, and of the switch's ports."""
    shaped = sum(int(way["bytes"]) for link in lab.fabric.counters().values() for way in link.values())
    lines = ran(lab, SWITCH, ["cat", "/proc/net/dev"]).stdout.splitlines()
    ports = [line.partition(":")[2].split() for line in lines if line.lstrip().startswith(("n0:", "n1:"))]
    return shaped + sum(int(port[0]) + int(port[8]) for port in ports)


# ── the kernel's word ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dilation", [1, 8])
@pytest.mark.parametrize("rate", ["100mbit", "1gbit", "2.5gbit", "10gbit"])
def test_the_kernel_holds_what_was_asked(rate: str, dilation: int) -> None:
    """2.5gbit is no whole number of gigabits: others have rounded it, or refused it."""
    with open_lab("netns", Order(new_run(), case(2, rate, dilation=dilation), print)) as lab:
        held = lab.fabric.read_back()
    assert set(held) == {"n0", "n1"}
    for link in held.values():
        for way in ("up", "down"):
            wanted = int(Rate.parse(rate)) * 1514 / 1538 / 8 / dilation
            assert link[way]["tbf"]["kind"] == "tbf"
            assert link[way]["tbf"]["rate"] == pytest.approx(wanted, rel=0.001)


TAMPERED = {
    "rate": "replace dev eth0 root handle 5219: tbf rate 983mbit burst 256kb limit 2500000",
    "burst": "replace dev eth0 root handle 5219: tbf rate 984395318bit burst 128kb limit 2500000",
    "limit": "replace dev eth0 root handle 5219: tbf rate 984395318bit burst 256kb limit 2400000",
    "kind": "replace dev eth0 root handle 1: pfifo limit 100",
    "nothing": "del dev eth0 root",
}


def test_another_mtu_is_found() -> None:
    bucket = shape.Tbf(1, 1, 1)
    held = {"kind": "tbf", "mtu": 1400, "tbf": {"kind": "tbf", **bucket.document()}, "transit": None}
    with pytest.raises(FabricError, match="link n0 up: set the mtu to 1500: the kernel holds 1400"):
        shape.compare("link n0 up", shape.Way("tbf", 1500, bucket, None), held)


@pytest.mark.parametrize("what", list(TAMPERED))
@pytest.mark.skipif(shutil.which("tc") is None, reason="no tc here")
def test_a_kernel_that_holds_something_else_is_found(what: str) -> None:
    wanted = order(new_run())
    with open_bare_lab(wanted) as lab:
        asked = build(lab, wanted.case)
        before = lab.fabric.read_back()
        for way in ("up", "down"):
            shape.compare("link n1", asked["n1"][way], before["n1"][way])
        assert ran(lab, "n1", ["tc", "qdisc", *TAMPERED[what].split()]).stderr == ""
        with pytest.raises(FabricError, match=r"link n1 up: shape: .*nothing was started"):
            shape.compare("link n1 up", asked["n1"]["up"], lab.fabric.read_back()["n1"]["up"])
        shape.compare("link n1 down", asked["n1"]["down"], lab.fabric.read_back()["n1"]["down"])


def test_auto_without_an_engine_takes_netns_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(ONE_NODE, encoding="utf-8")
    answer = rig("run", file, "--lab", "auto", "--out", tmp_path, env={"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    assert answer.returncode == 0, answer.stderr
    assert "lab netns, not docker: " in answer.stderr
