"""The way to the Docker engine: one client, and one place where what it says becomes a sentence with a way out."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import docker
import requests
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.context import ContextAPI
from docker.errors import DockerException

from rig.errors import LabError, LackError


class Telltale(NamedTuple):
    """A text the engine, or the way to it, is known by, and what it means to a person."""

    text: str
    meaning: str
    lacking: bool = True  # the machine lacks something, rather than: this lab broke


_NO_ENGINE = "start Docker (sudo systemctl start docker, or Docker Desktop), or use --lab netns"
_NO_BASE = "set RIG_BASE_IMAGE to an image that is here (docker images), or use --lab netns"
TELLTALES = (
    Telltale(
        "PermissionError(",
        "its socket refuses you; join the docker group (sudo usermod -aG docker $USER) and log in again",
    ),
    Telltale("FileNotFoundError(", f"no Docker engine runs here; {_NO_ENGINE}"),
    Telltale("Connection refused", f"no Docker engine answers; {_NO_ENGINE}"),
    Telltale("ConnectionRefusedError(", f"no Docker engine answers; {_NO_ENGINE}"),
    Telltale(
        "Invalid bind address", f"DOCKER_HOST is no address (unix:///var/run/docker.sock); correct it, or {_NO_ENGINE}"
    ),
    Telltale("Failed to resolve", f"the host in DOCKER_HOST is unknown; correct it, or {_NO_ENGINE}"),
    Telltale("pull access denied", f"the base image is not to be had; {_NO_BASE}"),
    Telltale("manifest unknown", f"the registry has no such base image; {_NO_BASE}"),
    Telltale("dial tcp", f"the registry of the base image cannot be reached; {_NO_BASE}"),
    Telltale("Client.Timeout", f"the registry of the base image did not answer; {_NO_BASE}"),
    Telltale("no space left on device", "the disk is full; make room (docker system df shows what takes it)"),
    Telltale("could not select device driver", "no GPU runtime; install nvidia-container-toolkit, or set gpu: none"),
    Telltale("source path does not exist", "that folder is not on the engine's machine; the rig needs a local engine"),
    Telltale("ounts denied", "Docker Desktop may not mount that folder; share it (Resources, File sharing)"),
    Telltale("No such image", "the image is not there; run again, and the rig builds it"),
    Telltale(
        "is already in use by container",
        "that name is taken; `rig clean` removes what a dead run left, and a living one keeps it",
        lacking=False,
    ),
    Telltale("timed out", "the Docker engine did not answer in time; look at `docker info`, or use --lab netns"),
)


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Translate what Docker's library raises into a LackError or LabError that says what was attempted."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise explain(what, str(error)) from error


def explain(what: str, words: str) -> LabError:
    """The engine's words as an error with a way out; unknown words are passed on, shortened."""
    for telltale in TELLTALES:
        if telltale.text in words:
            detail = f" ({_last_line(words)})" if not telltale.lacking else ""
            return (LackError if telltale.lacking else LabError)(f"lab docker: {what}: {telltale.meaning}{detail}")
    return LabError(
        f"lab docker: {what}: the engine said: {_last_line(words)}; look at `docker info` and `docker ps -a`"
    )


def _last_line(words: str) -> str:
    lines = words.strip().splitlines() or ["nothing"]
    return lines[-1][:400]


@contextmanager
def connected(what: str, timeout: float = 60.0) -> Iterator[docker.DockerClient]:
    """A client of the engine that `docker` itself would use (DOCKER_HOST, or the current context).

    `timeout`: seconds for one answer. Raises LackError where no engine answers or no `docker` command is found.
    """
    if shutil.which("docker") is None:
        raise LackError(f"lab docker: {what}: no `docker` command is on the PATH; install Docker, or use --lab netns")
    with attempt(what):
        _knock(what)
        # One connection for each of a lab's threads; the library's default pool is ten.
        client = docker.from_env(timeout=int(timeout), max_pool_size=32)
    try:
        with attempt(what):
            yield client
    finally:
        client.close()


def _knock(what: str) -> None:
    """Try the engine's socket first: where it cannot connect, Docker's library leaves one open (docker 7.2)."""
    address = os.environ.get("DOCKER_HOST") or ContextAPI.kwargs_from_context().get("base_url") or DEFAULT_UNIX_SOCKET
    scheme, _, path = str(address).partition("://")
    if not scheme.endswith("unix"):
        return
    try:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.connect(path)
    except OSError as error:
        raise explain(what, repr(error)) from error


def offers_gpu(info: Mapping[str, Any]) -> bool:
    """Whether an engine hands GPUs on, by its own word (`docker info`): a runtime of NVIDIA's, or CDI devices."""
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    return "nvidia" in info.get("Runtimes", {}) or any(one.startswith("nvidia.com/gpu") for one in devices)


def available() -> str | None:
    """None if an engine answers within five seconds, else the reason and the way out, in one sentence."""
    try:
        with connected("ask the engine", timeout=5.0) as client:
            client.ping()
    except LabError as error:
        return str(error)
    return None
