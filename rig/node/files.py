"""A script's files on its node: the folder it runs in, what it may write, and the way out for that.

`python -m rig.node.files FOLDER` writes the files of a folder to stdout, as a tar.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_COPIED = 256 * 2**20  # bytes of a folder, for each node; a node's own files may lie in memory
SKIPPED = ("__pycache__", "node_modules")  # and what begins with a dot, and runs of the rig
RECORD = "record.json"  # what a folder with a run of the rig holds
_CODE = Path(__file__).resolve().parents[1]


class Refused(Exception):
    """The folder cannot be had here, with the reason."""


@dataclass(frozen=True)
class Place:
    """Where a script runs, and the variables that tell it what is where."""

    folder: str
    env: Mapping[str, str]


def outputs(scratch: str) -> str:
    """The folder that RIG_OUT names."""
    return os.path.join(scratch, "rig-script", "out")


def prepared(order: Mapping[str, Any]) -> Place:
    """Empty folders for what a script writes, and its own folder, copied where that was asked for.

    `order`: {"folder", "copied", "scratch"}, the last a folder to write in. Python finds the lab's own programs first,
    then the instrumentation, then the rig. Raises Refused.
    """
    folder, out = order["folder"], outputs(order["scratch"])
    work = Path(out).parent
    temporary = work / "tmp"
    try:
        shutil.rmtree(work, ignore_errors=True)  # of an earlier repeat
        for needed in (Path(out), temporary):
            needed.mkdir(parents=True)
        if order["copied"]:
            folder = str(work / "copy")
            _copy(Path(order["folder"]), Path(folder))
    except (OSError, shutil.Error) as error:
        raise Refused(f"prepare {order['folder']}: {error}") from error
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    env = {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join((str(_CODE / "workloads" / "onlooker"), str(_CODE.parent))),
        "PYTHONSAFEPATH": "",  # a script finds modules that lie beside it
        "RIG_OUT": out,
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(temporary),
    }
    return Place(folder, env)


def _copy(source: Path, target: Path) -> None:
    size = 0
    for count in _sizes(source):
        size += count
        if size > MOST_COPIED:
            raise Refused(
                f"copy {source}: it holds more than {MOST_COPIED // 2**20} MiB, and every node gets a copy; keep data "
                "outside the folder and name it by its whole path, or write files: mounted"
            )
    shutil.copytree(source, target, symlinks=True, ignore=_skipped)


def _sizes(folder: Path) -> Iterator[int]:
    for path, folders, files in os.walk(folder):
        skipped = _skipped(path, [*folders, *files])
        folders[:] = [name for name in folders if name not in skipped]
        yield from (os.lstat(os.path.join(path, name)).st_size for name in files if name not in skipped)


def _skipped(folder: str, names: Iterable[str]) -> set[str]:
    """What is not copied: hidden things, caches, runs of the rig, and what is no file, folder or link."""
    return {name for name in names if name.startswith(".") or name in SKIPPED or _foreign(os.path.join(folder, name))}


def _foreign(path: str) -> bool:
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) or os.path.exists(os.path.join(path, RECORD))


def main() -> None:
    """Write the regular files of the folder that the command line names; what vanishes meanwhile is passed over."""
    root = sys.argv[1]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        for folder, _, names in os.walk(root):
            for path in (os.path.join(folder, name) for name in sorted(names)):
                try:
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        tar.add(path, os.path.relpath(path, root), recursive=False)
                except FileNotFoundError:
                    pass


if __name__ == "__main__":
    main()
