"""Labs shaped as people do without the rig, for comparison: by `tc` as its manual shows it, and by Mininet.

Each is a lab of the rig's own in all but the wiring, so that the same probe measures it with the same TCP.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import which

from rig.errors import LackError
from rig.fabric.client import Fabric
from rig.lab import PACKAGE, SUBNET, SWITCH, SWITCH_ADDRESS, Lab, Order, clean_environment, netns
from rig.model import Case

TOOL = (sys.executable, "-SE", str(PACKAGE / "node" / "namespaces.py"))
PYTHON = ("env", f"PYTHONPATH={PACKAGE.parent}", "PYTHONSAFEPATH=1", sys.executable)
MININET_PYTHON = "/usr/bin/python3"  # the distribution's, where its package mininet is

# tc-htb(8) and the many pages that follow it give no burst; tc-tbf(8) gives the second line.
HTB = (
    "tc qdisc add dev {end} root handle 1: htb default 1 && "
    "tc class add dev {end} parent 1: classid 1:1 htb rate {rate}bit"
)
TBF = "tc qdisc add dev {end} root tbf rate {rate}bit burst 32kbit latency 400ms"


@contextmanager
def htb(order: Order) -> Iterator[Lab]:
    """A hierarchical token bucket with tc's own burst at both ends of each link."""
    with netns.open_lab(order) as lab:
        _wire(lab, order.case, HTB)
        yield replace(lab, kind="htb")


@contextmanager
def tbf(order: Order) -> Iterator[Lab]:
    """A token bucket with the manual's burst at both ends of each link."""
    with netns.open_lab(order) as lab:
        _wire(lab, order.case, TBF)
        yield replace(lab, kind="tbf")


@contextmanager
def mininet(order: Order) -> Iterator[Lab]:
    """Mininet's TCLink and LinuxBridge; `facts` has the seconds it took. Raises LackError where Mininet is not."""
    if reason := mininet_lack():
        raise LackError(f"mininet: {reason}")
    case = order.case
    rate = f"{case.nodes[0].link.up.rate / 10**6:g}"
    script = [MININET_PYTHON, str(Path(__file__).with_name("mininet_lab.py")), str(case.size), rate]
    fabric = Fabric([*TOOL, "box", "--", *script], clean_environment(order.run))
    try:
        said = fabric.ready()
        box, pids = said["box"]["pid"], said["built"]["pids"]

        def command(place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
            given = [f"{name}={value}" for name, value in env.items()]
            return [*TOOL, "enter", str(box), str(pids.get(place, 1)), "--", "env", *given, *argv]

        lab = Lab("mininet", fabric, pids, command, PYTHON, {"seconds": said["built"]["seconds"]})
        for node in case.nodes:
            _steer(lab, node.name, f"{node.name}-eth0", case)
        _steer(lab, SWITCH, "s1", case)
        yield lab
    finally:
        fabric.close()


PLAIN: Mapping[str, Callable[[Order], AbstractContextManager[Lab]]] = {"htb": htb, "tbf": tbf, "mininet": mininet}


def mininet_lack() -> str | None:
    """Why there is no Mininet here, None if there is."""
    there = which("brctl") and which("mnexec")
    return None if there else "not installed (Debian: apt-get install mininet bridge-utils)"


def _wire(lab: Lab, case: Case, shape: str) -> None:
    """Bridge and cables by iproute2; `shape` on both ends of each cable."""
    _shell(
        lab, SWITCH, f"ip link add sw0 type bridge && ip address add {SWITCH_ADDRESS}/15 dev sw0 && ip link set sw0 up"
    )
    for node in case.nodes:
        name, rate = node.name, int(node.link.up.rate)
        _shell(lab, SWITCH, f"ip link add {name} type veth peer name eth0 netns {lab.pids[name]}")
        _shell(lab, SWITCH, f"{shape.format(end=name, rate=rate)} && ip link set {name} master sw0 up")
        _shell(lab, name, f"{shape.format(end='eth0', rate=rate)} && ip link set lo up && ip link set eth0 up")
        _shell(lab, name, f"ip address add {node.address}/15 dev eth0")
        _steer(lab, name, "eth0", case)
    _steer(lab, SWITCH, "sw0", case)


def _steer(lab: Lab, place: str, interface: str, case: Case) -> None:
    """The congestion control that the rig's labs have, so that only the shaping differs."""
    _shell(lab, place, f"ip route replace {SUBNET} dev {interface} congctl {case.tcp.congestion}")


def _shell(lab: Lab, place: str, text: str) -> None:
    """Run a line of shell in a place; raises CalledProcessError with what it said."""
    argv = lab.command(place, ["sh", "-c", text], {})
    done = subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"{place}: {text}: exit status {done.returncode}: {done.stderr.strip()}")
