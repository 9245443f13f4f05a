"""The image that nodes and fabric run in: the dependencies only, built on first use, tagged by its recipe."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import ImageNotFound

from rig.errors import LabError, LackError
from rig.lab import Tell
from rig.lab.daemon import attempt, connected, explain

_DOCKERFILE = Path(__file__).with_name("Dockerfile")
_DEFAULT_BASE = "python:3.11-slim-bookworm"
_PACKAGES = ("torch", "numpy", "pillow", "pyroute2")  # of workloads (torch warns without numpy) and fabric
_PINNED = ("torch", "pyroute2")  # versions whose behaviour the rig's formulas and read-back were checked with
_BUILD_SECONDS = 3600.0  # a GPU build of torch is some gigabytes


@dataclass(frozen=True)
class Recipe:
    """All that decides what is in the image."""

    dockerfile: str
    requirements: str
    base: str

    @property
    def tag(self) -> str:
        """`trainrig:` and twelve hex digits: the same recipe is never built twice."""
        text = "\0".join((self.dockerfile, self.requirements, self.base))
        return f"trainrig:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def requirements() -> tuple[str, ...]:
    """What pip installs into the image, pinned to this installation's versions where it has them."""
    return tuple(_pinned(name) if name in _PINNED else name for name in _PACKAGES)


def _pinned(name: str) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name
    return f"{name}=={version.partition('+')[0]}"  # "+cpu" names a build, which no index need have


def recipe() -> Recipe:
    """The recipe on this machine; RIG_BASE_IMAGE names another base with Python 3.11 or later."""
    lines = "".join(f"{line}\n" for line in requirements())
    return Recipe(_DOCKERFILE.read_text(encoding="utf-8"), lines, os.environ.get("RIG_BASE_IMAGE") or _DEFAULT_BASE)


def ensure(tell: Tell) -> str:
    """The image's tag, once it is there; building it takes about a minute and is told line by line.

    Raises LackError where it cannot be built (no engine, no base image, disk full, a package not to be had).
    """
    wanted = recipe()
    with connected(f"find image {wanted.tag}", _BUILD_SECONDS) as client:
        if not _present(client, wanted.tag):
            tell(f"image {wanted.tag}: building it from {wanted.base}; this is done once")
            _build(client, wanted, tell)
    return wanted.tag


def _present(client: docker.DockerClient, tag: str) -> bool:
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def _build(client: docker.DockerClient, wanted: Recipe, tell: Tell) -> None:
    with _context(wanted) as context, attempt(f"build image {wanted.tag}"):
        answers = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=wanted.tag,
            buildargs={"BASE_IMAGE": wanted.base},
            labels={"rig.image": wanted.tag},
            rm=True,
            forcerm=True,
            decode=True,
        )
        _follow(answers, wanted, tell)


def _follow(answers: Iterable[Mapping[str, Any]], wanted: Recipe, tell: Tell) -> None:
    """Tell the build's lines; the engine reports a failed step as a last answer, not by an exception."""
    last = ""
    for answer in answers:
        if "error" in answer:
            raise _failed(wanted, str(answer["error"]), last)
        for line in str(answer.get("stream", "")).splitlines():
            if line.strip():
                last = line.strip()
                tell(f"image: {last[:160]}")


def _failed(wanted: Recipe, error: str, last: str) -> LabError:
    known = explain(f"build image {wanted.tag} from {wanted.base}", f"{last}\n{error}")
    if isinstance(known, LackError):
        return known
    return LackError(
        f"lab docker: build image {wanted.tag} from {wanted.base}: {error.strip()} (last said: {last[:200]}); "
        "it needs that base image and a Python package index, or RIG_BASE_IMAGE and a RIG_WHEELHOUSE"
    )


@contextmanager
def _context(wanted: Recipe) -> Iterator[IO[bytes]]:
    """The build context as a tar in a temporary file: a wheelhouse can be larger than is good for memory."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            _add_text(tar, "Dockerfile", wanted.dockerfile)
            _add_text(tar, "requirements.txt", wanted.requirements)
            tar.addfile(_folder("wheelhouse"))
            for wheel in wheels():
                tar.add(wheel, f"wheelhouse/{wheel.name}")
        file.seek(0)
        yield file


def wheels() -> list[Path]:
    """Wheels to install from instead of an index: in RIG_WHEELHOUSE, else in ./wheelhouse; usually none."""
    named = os.environ.get("RIG_WHEELHOUSE")
    if named and not Path(named).is_dir():
        raise LackError(f"lab docker: read RIG_WHEELHOUSE: {named} is no folder; correct it or unset it")
    return sorted(Path(named or "wheelhouse").glob("*.whl"))


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    tar.addfile(entry, io.BytesIO(text.encode()))


def _folder(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry
