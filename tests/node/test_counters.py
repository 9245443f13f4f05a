"""Counters are exact: payload to the byte even where packets are lost, qdiscs as `tc` tells them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from rig.node import netlink
from rig.node.counters import WIRE_EXTRA
from tests.lab.runs import ROOT

# In a network namespace of its own, whose loopback is a link of 1500 bytes; prints one JSON line.
SEND_OVER_LOOPBACK = """
import json, os, socket, subprocess, sys, threading, time
from rig.node import counters, netlink
count, shaper = int(sys.argv[1]), sys.argv[2]
for command in (
    "ip link set lo mtu 1500 up", "ip address add 198.18.0.10/32 dev lo", f"tc qdisc add dev lo root handle 1: {shaper}"
):
    subprocess.run(command.split(), check=True)
server = socket.create_server(("127.0.0.1", 0))
store = socket.create_server(("127.0.0.1", 0))
got = []
def drain():
    connection, _ = server.accept()
    with connection:
        while chunk := connection.recv(1 << 20):
            got.append(len(chunk))
reader = threading.Thread(target=drain)
reader.start()
port = store.getsockname()[1]
other = socket.create_connection(("127.0.0.1", port))
accepted, _ = store.accept()
sender = socket.create_connection(server.getsockname())
meter = counters.Meter(port, "lo")
before = meter.read()
other.sendall(bytes(5000))  # the rendezvous store's traffic is not training's
neighbour = socket.create_server(("198.18.0.10", 0))
inside = socket.create_connection(neighbour.getsockname())  # at the same address, as ranks of one node
inside.sendall(bytes(7000))
sender.sendall(bytes(count))
at_once = meter.read() - before  # handed over, though much of it still waits in the send queue
inode = os.fstat(sender.fileno()).st_ino
while sum(got) < count:
    time.sleep(0.01)
time.sleep(0.05)
(mine,) = [one for one in counters.own_connections() if one.inode == inode]
sender.close()
reader.join()
closed = meter.read() - before
ours = netlink.root_qdisc_counters("lo")
tc = json.loads(subprocess.run("tc -s -j qdisc show dev lo".split(), check=True, capture_output=True).stdout)[0]
print(json.dumps({
    "at_once": at_once.payload, "closed": closed.payload, "written": mine.written - 1,  # its SYN
    "again": mine.retransmitted,
    "qdisc": ours, "tc": [tc["bytes"], tc["packets"]], "wire": counters.wire_sent("lo"), "drops": tc["drops"],
}))
"""


def sent(count: int, shaper: str) -> dict[str, object]:
    inside = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    answer = subprocess.run(
        [*inside, sys.executable, "-c", SEND_OVER_LOOPBACK, str(count), shaper],
        check=False, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    found: dict[str, object] = json.loads(answer.stdout)
    return found


@pytest.mark.skipif(shutil.which("tc") is None, reason="no tc here")
@pytest.mark.parametrize("count", [1, 1448, 3_000_001])
def test_payload_and_wire_on_a_good_link(count: int) -> None:
    found = sent(count, "tbf rate 1gbit burst 256kb limit 4000000")
    assert found["at_once"] == found["closed"] == found["written"] == count
    assert found["again"] == 0
    assert found["qdisc"] == found["tc"]
    assert isinstance(found["tc"], list)
    assert found["wire"] == found["tc"][0] + WIRE_EXTRA * found["tc"][1]


@pytest.mark.skipif(shutil.which("tc") is None, reason="no tc here")
def test_payload_is_exact_where_packets_are_lost() -> None:
    """The node's own short queue drops hundreds; they are sent again, and none of it is counted twice."""
    found = sent(3_000_001, "tbf rate 200mbit burst 20kb limit 30000")
    assert isinstance(found["drops"], int) and found["drops"] > 10
    assert isinstance(found["again"], int) and found["again"] > 10_000
    assert found["at_once"] == found["closed"] == found["written"] == 3_000_001
    assert found["qdisc"] == found["tc"]


def test_no_such_interface() -> None:
    with pytest.raises(OSError, match="no interface with this name"):
        netlink.root_qdisc_counters("rig-none")


def test_an_interface_without_a_qdisc_has_sent_nothing_that_counts() -> None:
    inside = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    code = "from rig.node import netlink; print(netlink.root_qdisc_counters('lo'))"
    answer = subprocess.run([*inside, sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout == "(0, 0)\n"
