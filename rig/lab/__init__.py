"""Where nodes live. A lab is a context manager with two duties: make a case's nodes exist for a while, and say
how to run a command in each. All else (wiring, shaping, probing, running) is written once, on top of that.

To add a lab: one file with a function like `netns.open_lab`, one row in LABS; tests/lab covers it then.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rig.errors import LabError, UsageError
from rig.fabric.client import Fabric
from rig.model import Case

SWITCH = "switch"  # the place, beside the nodes, that a lab of one switch has: the far end of a link probe
SWITCH_ADDRESS = "198.19.0.1"
SUBNET = "198.18.0.0/15"  # RFC 2544: set aside for benchmarks, so it is nobody's LAN or VPN
PACKAGE = Path(__file__).resolve().parents[1]

Tell = Callable[[str], None]  # progress, one line at a time


@dataclass(frozen=True)
class Lab:
    """A lab that is up. `command(place, argv, env)` turns a command for a node or a switch, by name, into one
    for this machine; it runs in the foreground, passes stdin, stdout, stderr and exit status through, and
    what it runs ends when its stdin does or when it is killed.
    """

    kind: str
    fabric: Fabric
    pids: Mapping[str, int]  # of the first process of each node and each further switch, as the fabric sees it
    command: Callable[[str, Sequence[str], Mapping[str, str]], list[str]]
    python: Sequence[str]  # how Python with the rig's code is started in any place
    facts: Mapping[str, Any] = field(default_factory=dict)  # engine, image, GPU: for the record
    scratch: str = "/tmp"  # a folder of each node's own to write in, gone with the lab


def _to_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")


@dataclass(frozen=True)
class Order:
    """What a lab is asked for."""

    run: str  # the run's id; every process of a run carries it as RIG_RUN
    case: Case
    tell: Tell
    mounts: tuple[Path, ...] = ()  # folders and files the ranks read, mounted at their own path, read-only
    warn: Tell = _to_stderr  # what must not scroll by: something is left behind, say
    lock: bool = True  # whether to measure only while no other rig on this machine does
    out: Path | None = None  # the folder that gets what ranks leave


Opener = Callable[[Order], AbstractContextManager[Lab]]

LABS: Mapping[str, str] = {"netns": "rig.lab.netns", "docker": "rig.lab.docker"}


@contextmanager
def open_lab(kind: str, order: Order) -> Iterator[Lab]:
    """A lab with its links built, shaped, read back, compared and open; the case's silent siblings are among its nodes.

    Raises LabError, UsageError.
    """
    from rig.lab.siblings import crowded
    from rig.lab.wiring import wire

    case = crowded(order.case)
    with _opener(kind)(replace(order, case=case)) as lab:
        wire(lab, case)
        yield lab


def choose(asked: str, tell: Tell) -> tuple[str, str]:
    """The lab to use, and why where `auto` was asked: Docker when an engine answers and its image is there or can
    be built, else netns. Raises UsageError for an unknown name.
    """
    if asked != "auto":
        _opener(asked)
        return asked, ""
    from rig.lab import docker, image

    if reason := docker.available():
        return "netns", f"lab netns, not docker: {reason.removeprefix('lab docker: ')}"
    try:
        image.ensure(tell)
    except LabError as error:
        return "netns", f"lab netns, not docker: {str(error).removeprefix('lab docker: ')}"
    return "docker", "lab docker: an engine answers and the image is there"


def _opener(kind: str) -> Opener:
    if kind not in LABS:
        raise UsageError(f"lab {kind!r} is unknown; there are {', '.join(LABS)}")
    opener: Opener = importlib.import_module(LABS[kind]).open_lab
    return opener


def hosts_text(case: Case) -> str:
    """The /etc/hosts every node gets: each node's name at its lab address, and nothing at 127.0.1.1."""
    lines = [
        "127.0.0.1 localhost",
        *(f"{switch.address} {switch.name}" for switch in case.switches),
        *(f"{node.address} {node.name}" for node in case.nodes),
    ]
    return "\n".join(lines) + "\n"


def sysctls(case: Case) -> dict[str, str]:
    """What every node's network namespace is set to: socket buffers by the scenario, no IPv6 (the lab has none)."""
    largest = int(case.tcp.buffer)
    return {
        "net.ipv4.tcp_rmem": f"4096 131072 {largest}",
        "net.ipv4.tcp_wmem": f"4096 65536 {largest}",
        "net.ipv4.tcp_no_metrics_save": "1",  # one connection's path must not teach the next
        "net.ipv6.conf.all.disable_ipv6": "1",
        "net.ipv6.conf.default.disable_ipv6": "1",
    }


FOREIGN = ("NCCL_", "GLOO_", "TORCH_", "OMP_", "MKL_", "KMP_", "MASTER_", "PYTHON", "RIG_", "TP_SOCKET", "CUDA_VISIBLE")
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def clean_environment(run: str) -> dict[str, str]:
    """This process's environment less all that would change training unseen, plus RIG_RUN."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) and name not in RANKS}
    return kept | {"RIG_RUN": run}
