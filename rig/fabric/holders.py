"""Nodes that are not containers: a sleeping process each, which keeps the node's namespaces alive.

A holder has its own network, host name and mount namespace inside the box the fabric runs in, its own
/etc/hosts, and the TCP limits of its node. It dies with the fabric.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.errors import FabricError
from rig.node import namespaces


def hold(documents: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Start the holder of every node, all at once; {name: pid inside the box}. Raises FabricError.

    `documents`: [{"name": host name, "hosts": text of /etc/hosts, "sysctls": {dotted name: value}, "fixed": [paths that
    cannot be written there]}].
    """
    started = {document["name"]: _start(document) for document in documents}
    for name, (pid, told) in started.items():
        with os.fdopen(told, encoding="utf-8") as answer:
            problem = answer.read()  # ends when the holder closes its end
        if problem:
            os.waitpid(pid, 0)
            raise FabricError(f"node {name}: make its namespaces: {problem}")
    return {name: pid for name, (pid, _) in started.items()}


def _start(document: Mapping[str, Any]) -> tuple[int, int]:
    """Fork a holder; its pid, and the descriptor on which it says what went wrong."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _live(document, tell)
    os.close(tell)
    return pid, told


def _live(document: Mapping[str, Any], tell: int) -> None:
    try:
        namespaces.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        namespaces.unshare(namespaces.NEWNET | namespaces.NEWUTS | namespaces.NEWNS)
        socket.sethostname(document["name"])
        _own_hosts(document["hosts"])
        for path in document["fixed"]:
            namespaces.fix(path)
        set_sysctls(document["sysctls"])
    except BaseException as error:  # noqa: BLE001  this is a fork: nothing may unwind into the fabric's own loop
        os.write(tell, str(error).encode() or b"?")
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # the fabric's stdout is the protocol
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # also tells the fabric that all went well
    while True:
        signal.pause()


def _own_hosts(text: str) -> None:
    """Bind a private /etc/hosts over the system's, in this mount namespace alone."""
    namespaces.mount("none", "/", "", namespaces.MS_REC | namespaces.MS_PRIVATE)
    hosts = Path(f"/dev/shm/rig-hosts-{os.getpid()}")
    namespaces.mount("tmpfs", "/dev/shm", "tmpfs", 0)  # private too: gone with the namespace
    hosts.write_text(text, encoding="utf-8")
    namespaces.mount(str(hosts), "/etc/hosts", "", namespaces.MS_BIND)


def set_sysctls(values: Mapping[str, str]) -> None:
    """Write sysctls of this process's network namespace; one that does not exist here (no IPv6) is passed over."""
    for name, value in values.items():
        path = Path("/proc/sys", *name.split("."))
        if path.exists():
            path.write_text(value, encoding="ascii")
