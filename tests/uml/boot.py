"""User-mode Linux: a kernel that has netem, as a program, for machines whose own kernel has not.

`boot("tests.uml.links", 120)` starts one on this machine's own files (hostfs), with init.sh as its first process;
that runs the module, and the guest switches itself off. It has one CPU, and a temporary folder, /dev and networks of
its own; all else it writes is written here. Debian: apt-get install user-mode-linux kmod.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from typing import Any

from rig.node.stream import Lines

CHECKOUT = Path(__file__).resolve().parents[2]
MODULES = Path("/usr/lib/uml/modules")
MEMORY = "2G"  # at most; a file in /dev/shm that the guest removes as soon as it has opened it
NEEDED = {"linux.uml": "user-mode-linux", "modprobe": "kmod", "ip": "iproute2"}  # program → Debian package


class GuestError(Exception):
    """A guest did not boot, did not end in time, or what it ran has failed."""


def lack() -> str | None:
    """Why no guest can be booted here, None if one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [package for program, package in NEEDED.items() if which(program, path=path) is None]
    if missing or not MODULES.is_dir():
        return f"User-mode Linux is not installed: apt-get install {' '.join(missing or ['user-mode-linux'])}"
    return None


def boot(module: str, patience: float) -> list[dict[str, Any]]:
    """Run `python -m MODULE` in a new guest; returns the JSON lines it wrote, less its stray text.

    Raises GuestError unless it has ended well within `patience` seconds; whatever happens, no process is left.
    """
    with tempfile.TemporaryDirectory(prefix="rig-guest-") as folder, tempfile.TemporaryFile() as console:
        guest = subprocess.Popen(
            _command(module, folder), stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            guest.wait(patience)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(guest)
        console.seek(0)
        said = Lines().feed(console.read() + b"\n")
    if late or {"event": "over", "code": 0} not in said:
        fate = f"not over after {patience:g} s" if late else f"ended with {said[-1:]}"
        raise GuestError(f"guest {module}: {fate}; its last words:\n{_words(said)}")
    return [event for event in said if event["event"] not in ("text", "over")]


def _command(module: str, folder: str) -> list[str]:
    """What the kernel does not know itself becomes the environment of its first process."""
    return [
        "linux.uml", f"mem={MEMORY}", f"uml_dir={folder}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw",
        "quiet", "loglevel=1", "con=null", "con0=fd:0,fd:1", f"init={Path(__file__).with_name('init.sh')}",
        f"RIG_FOLDER={CHECKOUT}", f"RIG_PYTHON={sys.executable}", f"RIG_GUEST={module}",
    ]  # fmt: skip


def _end(guest: subprocess.Popen[bytes]) -> None:
    """Every process inside is one of this machine's, in the guest's own process group."""
    try:
        os.killpg(guest.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    guest.wait()


def _words(said: list[dict[str, Any]]) -> str:
    lines = [event["text"].rstrip() if event["event"] == "text" else str(event)[:300] for event in said]
    return "\n".join(lines[-40:])
