"""Lab `docker`: every node is a container on no network and without capabilities; the fabric is one more.

The fabric's container sees the engine's processes, and plugs links into the others through /proc/PID/ns/net. So
there is no Docker network, no subnet to collide with, no host firewall in the way, and no way out of the lab.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from rig.errors import LabError, LackError
from rig.fabric.client import Fabric
from rig.lab import PACKAGE, Lab, Order, clean_environment, hosts_text, image, leftovers, sysctls
from rig.lab.daemon import attempt, available, connected, offers_gpu
from rig.lab.leftovers import clean
from rig.lab.wiring import needs_shaper
from rig.model import Case
from rig.node.undisturbed import undisturbed

__all__ = ["available", "clean", "open_lab"]

_CODE = "/opt/rig-code"
_SCRATCH = "/var/tmp"  # in the container's own file system; /tmp may be where a scenario file lies
_TUN = "/dev/net/tun"
# A client whose orchestrator was killed would else wait for ever once its container is gone.
_TIED = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()  # util-linux 2.33
_PYTHON = ("env", f"PYTHONPATH={_CODE}", "PYTHONSAFEPATH=1", "python")
_CPU_SHARE = 1024  # equal for all nodes: no node's ranks may starve another's
_WRITE_WITHIN = 20.0  # seconds
_SHARED_MEMORY = "1g"  # Docker's default of 64 MB is too little for a data loader
# Why PID 1 is root although the ranks are not: to open /proc/PID/ns/net the kernel wants the fabric to have the
# same user, or CAP_SYS_PTRACE (ptrace_may_access). Without capabilities this root may do nothing else.
_ROOT = "0:0"


@dataclass(frozen=True)
class _Plan:
    """What all of a lab's containers have in common."""

    order: Order
    image: str
    labels: Mapping[str, str]
    settings: Mapping[str, str]  # sysctls
    devices: tuple[DeviceRequest, ...]

    @property
    def fabric(self) -> str:
        """The place whose network namespace is the fabric's own: the first switch."""
        return self.order.case.switches[0].name

    def name(self, place: str) -> str:
        """The container of a node or of a switch; also a name to use with `docker exec` by hand."""
        return f"rig-{self.order.run}-{place}"


@contextmanager
def open_lab(order: Order) -> Iterator[Lab]:
    """Nodes as containers. Raises LackError where engine, image or GPU are not to be had, LabError otherwise."""
    tag = image.ensure(order.tell)
    with connected("open the lab") as client:
        facts = _facts(client, order.case) | {"image": tag}
        plan = _Plan(order, tag, _labels(order), _settings(order.case), _devices(facts["gpu"]))
        with _removed(client, plan):
            pids = _start_all(client, plan)
            fabric = Fabric(_fabric_argv(plan), clean_environment(order.run))
            try:
                fabric.ready()
                yield Lab("docker", fabric, pids, _command(plan), _PYTHON, facts, _SCRATCH)
            finally:
                fabric.close()


def _command(plan: _Plan) -> Callable[[str, Sequence[str], Mapping[str, str]], list[str]]:
    """Killing `docker exec` leaves what it started, less its stdin: that must be enough for it to end. What it does
    not end, the lab's end does. The variables go through `env`, so that a missing program is 127, as in a shell.
    """
    user = f"{os.getuid()}:{os.getgid()}"
    switches = {switch.name for switch in plan.order.case.switches}

    def command(place: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        given = [f"{name}={value}" for name, value in env.items()]
        # In a switch root, so that packets can be captured there; nothing but the rig's own code runs in it.
        who = _ROOT if place in switches else user
        return [*_TIED, "docker", "exec", "-i", "-u", who, plan.name(place), "env", *given, *argv]

    return command


def _fabric_argv(plan: _Plan) -> list[str]:
    return [*_TIED, "docker", "exec", "-i", plan.name(plan.fabric), *_PYTHON, "-m", "rig.fabric"]


# ── what the engine is asked for ─────────────────────────────────────────────────────────────────────
def _labels(order: Order) -> dict[str, str]:
    return {leftovers.RUN: order.run, leftovers.OWNER: str(leftovers.Owner.me())}


def _settings(case: Case) -> dict[str, str]:
    """A container does not start with a sysctl that its kernel lacks; IPv6 may be absent."""
    has_ipv6 = Path("/proc/sys/net/ipv6").exists()
    return {name: value for name, value in sysctls(case).items() if has_ipv6 or ".ipv6." not in name}


def _facts(client: docker.DockerClient, case: Case) -> dict[str, Any]:
    info = client.info()
    offered = offers_gpu(info)
    if case.gpu == "required" and not offered:
        raise LackError(
            "lab docker: give the nodes a GPU: this engine offers none; install nvidia-container-toolkit "
            "and restart Docker, or set gpu: auto, device: auto"
        )
    return {"engine": info["ServerVersion"], "storage": info["Driver"], "gpu": offered and case.gpu != "none"}


def _devices(gpu: bool) -> tuple[DeviceRequest, ...]:
    return (DeviceRequest(count=-1, capabilities=[["gpu"]]),) if gpu else ()


def _both(plan: _Plan) -> dict[str, Any]:
    """What a node's container and the fabric's share."""
    return {
        "image": plan.image,
        "command": ["sleep", "infinity"],
        "init": True,  # reaps what a killed launcher leaves
        "user": _ROOT,
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "sysctls": dict(plan.settings),
        "labels": dict(plan.labels),
        # USER: the caller's number has no name in the image, and getpass.getuser() would raise.
        "environment": {"RIG_RUN": plan.order.run, "HOME": "/tmp", "USER": "rig"},
        "shm_size": _SHARED_MEMORY,
        "mounts": [Mount(f"{_CODE}/rig", str(PACKAGE), type="bind", read_only=True)],
    }


def _node(plan: _Plan, name: str) -> dict[str, Any]:
    settings = _both(plan)
    settings["mounts"] += [Mount(str(path), str(path), type="bind", read_only=True) for path in plan.order.mounts]
    return settings | {
        "name": plan.name(name),
        "hostname": name,
        "device_requests": list(plan.devices),
        "cpu_shares": _CPU_SHARE,
    }


def _switch(plan: _Plan, name: str) -> dict[str, Any]:
    return _both(plan) | {"name": plan.name(name), "hostname": name, "cap_add": ["NET_RAW"]}  # to capture packets


def _fabric(plan: _Plan) -> dict[str, Any]:
    """The first switch's container, in which the fabric runs."""
    return _switch(plan, plan.fabric) | {
        "pid_mode": "host",  # to reach /proc/PID/ns/net of the others
        "cap_add": ["NET_ADMIN", "SYS_ADMIN", "NET_RAW"],  # to wire; and setns(2)
        "devices": [f"{_TUN}:{_TUN}:rwm"] if _wants_taps(plan.order.case) else [],
    }


def _wants_taps(case: Case) -> bool:
    """Whether there may be a delay line: an engine refuses a container with a device that its machine lacks."""
    forced = case.shaper == "delayline"
    return case.shaper != "netem" and (forced or any(needs_shaper(case, cable) for cable in case.cables))


# ── up and down ──────────────────────────────────────────────────────────────────────────────────────
def _start_all(client: docker.DockerClient, plan: _Plan) -> dict[str, int]:
    """Start every container at once and return the nodes' first processes, as the engine numbers them."""
    case = plan.order.case
    places = {node.name: _node(plan, node.name) for node in case.nodes}
    places |= {switch.name: _switch(plan, switch.name) for switch in case.switches[1:]} | {plan.fabric: _fabric(plan)}
    pool = ThreadPoolExecutor(len(places), "rig-start")
    try:
        started = {place: pool.submit(_start, client, plan, settings) for place, settings in places.items()}
        pids = {place: future.result() for place, future in started.items()}
    finally:
        with undisturbed():  # one that is still starting would be missed by the removal that follows
            pool.shutdown(cancel_futures=True)
    del pids[plan.fabric]  # the fabric's own
    return pids


def _start(client: docker.DockerClient, plan: _Plan, settings: Mapping[str, Any]) -> int:
    with attempt(f"start container {settings['name']}"):
        container = client.containers.run(detach=True, **settings)
        _write_hosts(client, container, hosts_text(plan.order.case))
        container.reload()
    return int(container.attrs["State"]["Pid"])


def _write_hosts(client: docker.DockerClient, container: Container, text: str) -> None:
    """Docker's own extra_hosts would leave its own lines in; a mounted file would be left behind by a kill -9.

    Detached, and asked for until done: an attached exec leaves its socket open (docker 7.2).
    """
    command = ["sh", "-c", 'printf %s "$TEXT" >/etc/hosts']
    job = client.api.exec_create(container.id, command, environment={"TEXT": text})["Id"]
    client.api.exec_start(job, detach=True)
    until = time.monotonic() + _WRITE_WITHIN
    while (status := client.api.exec_inspect(job)["ExitCode"]) is None and time.monotonic() < until:
        time.sleep(0.01)
    if status != 0:
        raise LabError(f"lab docker: write /etc/hosts of {container.name}: exit status {status}; look at `docker info`")


@contextmanager
def _removed(client: docker.DockerClient, plan: _Plan) -> Iterator[None]:
    """Remove whatever of this lab exists afterwards, however it ends: found by label, since a name may be another's."""
    try:
        yield
    finally:
        with undisturbed():
            _remove_all(client, plan)


def _remove_all(client: docker.DockerClient, plan: _Plan) -> None:
    """Tell what could not be removed instead of raising, so that the error that ended the lab is not hidden."""
    wanted = [f"{name}={value}" for name, value in plan.labels.items()]
    try:
        with attempt("list its containers to remove them"):
            found = client.containers.list(all=True, ignore_removed=True, filters={"label": wanted})
    except LabError as error:
        plan.order.warn(f"{error}; then `rig clean` removes what is left")
        return
    if left := leftovers.remove(found):
        plan.order.warn(f"lab docker: still there: {', '.join(left)}; `rig clean` removes them once this run is over")
