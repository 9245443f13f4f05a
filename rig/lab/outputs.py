"""What a script's ranks leave in the folder that RIG_OUT names: fetched from every node into the run's own folder."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from rig.errors import RigError
from rig.lab import Lab, Order, clean_environment
from rig.node.files import outputs
from rig.work import Script

MOST = 2**30  # bytes that are fetched from a node
_ENTRY = 4096  # bytes that a file takes at least, so that empty ones are not without end


@contextmanager
def collected(lab: Lab, order: Order, repeat: int) -> Iterator[None]:
    """Afterwards what ranks left is in `outputs/<case>/<node>/` of the order's folder, with `.<repeat>` behind the node
    where there are several; also where they have failed, but not after an interruption.
    """
    try:
        yield
    except RigError:
        _collect(lab, order, repeat)
        raise
    _collect(lab, order, repeat)


def _collect(lab: Lab, order: Order, repeat: int) -> None:
    case = order.case
    if order.out is None or not isinstance(case.workload, Script):
        return
    for node in case.nodes:
        name = node.name if case.repeats == 1 else f"{node.name}.{repeat + 1}"
        try:
            _fetch(lab, order, node.name, order.out / "outputs" / case.id[:120] / name)
        except (OSError, tarfile.TarError) as error:
            order.warn(f"node {node.name}: fetch what was written to $RIG_OUT: {error}; the rest of it is lost")


def _fetch(lab: Lab, order: Order, place: str, into: Path) -> None:
    """Raises OSError, tarfile.TarError; what was fetched before stays."""
    argv = lab.command(place, [*lab.python, "-m", "rig.node.files", outputs(lab.scratch)], {"RIG_RUN": order.run})
    process = subprocess.Popen(
        argv, env=clean_environment(order.run), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout
    try:
        if not _unpack(process.stdout, into):
            order.warn(
                f"node {place}: fetch what was written to $RIG_OUT: it is more than {MOST // 2**20} MiB; "
                f"the rest of it is lost: {into} has what came before"
            )
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


def _unpack(stream: IO[bytes], into: Path) -> bool:
    """Write the plain files of a tar below a folder; False where they are too much, and the rest is left out."""
    size = 0
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or path.is_absolute() or ".." in path.parts:  # none of ours
                continue
            size += max(member.size, _ENTRY)
            if size > MOST:
                return False
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
    return True
