"""Lab `netns`: every node is a set of namespaces inside one box; no root, no Docker, nothing to clean up.

The fabric is the box's process 1. It dies with the orchestrator, however that ends, and the kernel then
kills every process inside and removes every namespace, link and mount.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rig.errors import FabricError, LackError
from rig.fabric.client import Fabric
from rig.lab import PACKAGE, Lab, Order, clean_environment, hosts_text, sysctls
from rig.node import namespaces

_TOOL = (sys.executable, "-SE", str(PACKAGE / "node" / "namespaces.py"))
_SCRATCH = "/dev/shm"  # each node's own: see rig.fabric.holders
_PYTHON = ("env", f"PYTHONPATH={PACKAGE.parent}", "PYTHONSAFEPATH=1", sys.executable)


@contextmanager
def open_lab(order: Order) -> Iterator[Lab]:
    """Nodes as namespaces. Raises LackError where this machine forbids user namespaces, FabricError otherwise."""
    gpu = Path("/dev/nvidiactl").exists()
    if order.case.gpu == "required" and not gpu:
        raise LackError(
            "lab netns: give the nodes a GPU: this machine shows none (/dev/nvidiactl); set gpu: auto, device: auto"
        )
    fabric = Fabric([*_TOOL, "box", "--", *_PYTHON, "-m", "rig.fabric"], clean_environment(order.run))
    try:
        box = _box(fabric)
        settings = sysctls(order.case)
        fabric.sysctls(settings)
        hosts = hosts_text(order.case)
        first, *others = order.case.switches
        fixed = {node.name: [str(path) for path in order.mounts] for node in order.case.nodes}
        held = [*fixed, *(switch.name for switch in others)]
        pids = fabric.hold(
            [{"name": name, "hosts": hosts, "sysctls": settings, "fixed": fixed.get(name, [])} for name in held]
        )

        def command(place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
            pid = 1 if place == first.name else pids[place]
            given = [f"{name}={value}" for name, value in env.items()]
            return [*_TOOL, "enter", str(box), str(pid), "--", "env", *given, *argv]

        facts = {"gpu": gpu and order.case.gpu != "none"}
        yield Lab("netns", fabric, pids, command, _PYTHON, facts, _SCRATCH)
    finally:
        fabric.close()


def _box(fabric: Fabric) -> int:
    try:
        return int(fabric.ready()["box"]["pid"])
    except FabricError as error:
        if fabric.status != namespaces.FORBIDDEN:
            raise
        raise LackError(
            "lab netns: make a user namespace: this system forbids it to you "
            f"({str(error).rsplit(': ', 1)[-1]}); run as root, or allow it: "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces above 0"
        ) from error
