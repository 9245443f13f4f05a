"""Linux namespaces by libc, since Python has os.unshare only from 3.12 on: a box to build in, and a way in.

    python namespaces.py box -- ARGV…            run ARGV as process 1 of a new box
    python namespaces.py enter BOX NODE -- ARGV… run ARGV inside node NODE of the box whose process 1 is BOX

A box is one new user, mount, network, host name, IPC and PID namespace. Its process 1 dies with whoever made
it, and the kernel then kills and removes all that is inside: pid_namespaces(7).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

MS_RDONLY, MS_REMOUNT = 0x1, 0x20
NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
FORBIDDEN = 77  # exit status of a box that may not be made; its reason is on stderr
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this process new namespaces; raises OSError."""
    _call("unshare", _libc.unshare(flags))


def setns(path: str, flags: int) -> None:
    """Move this process into the namespace at `path`, such as /proc/PID/ns/net; raises OSError."""
    join([(path, flags)])


def join(namespaces: Sequence[tuple[str, int]]) -> None:
    """Move into several namespaces in this order; all are opened first, while their paths can still be seen."""
    opened = [(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, flag) for path, flag in namespaces]
    try:
        for descriptor, path, flag in opened:
            _call(f"setns {path}", _libc.setns(descriptor, flag))
    finally:
        for descriptor, _, _ in opened:
            os.close(descriptor)


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """mount(2); raises OSError."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)
    _call(f"mount {target}", result)


def fix(path: str) -> None:
    """Make a folder or a file unwritable in this mount namespace, whoever writes; raises OSError.

    Flags that it was mounted with must be given again: who is root in a user namespace only may not take them away
    (mount_namespaces(7), "locked"). What else is mounted below it stays as it is.
    """
    had = os.statvfs(path).f_flag & 0xF  # ST_RDONLY, ST_NOSUID, ST_NODEV, ST_NOEXEC, which are as MS_… (statvfs(3))
    mount(path, path, "", MS_BIND | MS_REC)
    mount(path, path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | had)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends: prctl(2)."""
    _call("prctl", _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: prctl(2)."""
    _call("prctl", _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def box(argv: Sequence[str]) -> int:
    """Run argv as process 1 of a new box and return its exit status.

    The first line out is {"event": "box", "pid": its pid, seen from here}.
    The caller's user becomes root inside; root keeps every user as it is, so that files stay readable.
    Three processes: this one writes the user map (only a process outside may, for more than one user), its
    child makes the namespaces, and the grandchild is the first inside the new PID namespace.
    """
    die_with_parent()
    ready, mapped = os.pipe(), os.pipe()
    maker = os.fork()
    if maker == 0:
        os.close(ready[0])
        os.close(mapped[1])  # else it would wait for itself, should this process die
        _exit_with(lambda: _make(argv, ready[1], mapped[0]))
    os.close(ready[1])
    os.close(mapped[0])
    if os.read(ready[0], 1):
        _write_maps(maker)
        os.write(mapped[1], b"1")
    _forward_signals(maker)
    return _wait(maker)


def _make(argv: Sequence[str], ready: int, mapped: int) -> int:
    die_with_parent()
    try:
        unshare(NEWUSER | NEWNS | NEWNET | NEWUTS | NEWIPC | NEWPID)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return FORBIDDEN
    os.write(ready, b"1")
    if not os.read(mapped, 1):
        return FORBIDDEN  # whoever was to write the maps is gone, or said why not
    die_with_parent()  # a change of credentials clears it
    first = os.fork()
    if first == 0:
        _exit_with(lambda: _first(argv))
    os.write(1, (json.dumps({"event": "box", "pid": first}) + "\n").encode())
    _forward_signals(first)
    return _wait(first)


def _first(argv: Sequence[str]) -> int:
    die_with_parent()
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", 0)
    return _replace(argv)


def _write_maps(pid: int) -> None:
    root = os.geteuid() == 0
    if not root:  # user_namespaces(7): without privilege, setgroups must be given up first
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", _whole_map("uid") if root else f"0 {os.geteuid()} 1")
    _write(f"/proc/{pid}/gid_map", _whole_map("gid") if root else f"0 {os.getegid()} 1")


def _whole_map(kind: str) -> str:
    """The identity over every id that exists here (inside another user namespace that may be few)."""
    with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
        return "".join(f"{first} {first} {count}\n" for first, _, count in (line.split() for line in file))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def enter(box_pid: int, node_pid: int, argv: Sequence[str]) -> int:
    """Run argv in the node whose first process is `node_pid` inside the box; returns its exit status."""
    folder = os.getcwd()
    shared = (("user", NEWUSER), ("mnt", NEWNS), ("pid", NEWPID), ("ipc", NEWIPC))
    join([(f"/proc/{box_pid}/ns/{name}", flag) for name, flag in shared])
    own = (("net", NEWNET), ("uts", NEWUTS), ("mnt", NEWNS))
    join([(f"/proc/{node_pid}/ns/{name}", flag) for name, flag in own])  # /proc is the box's own by now
    os.chdir(folder)  # setns to a mount namespace goes to its root
    child = os.fork()
    if child == 0:
        _exit_with(lambda: _replace(argv))
    _forward_signals(child)
    return _wait(child)


def _replace(argv: Sequence[str]) -> int:
    die_with_parent()
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {os.strerror(error.errno or 0)}\n")
        return 127 if error.errno == errno.ENOENT else 126


def _exit_with(act: Callable[[], int]) -> None:
    try:
        status = act()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        status = FORBIDDEN
    os._exit(status)


def _forward_signals(pid: int) -> None:
    def forward(number: int, _: FrameType | None) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the rig decides what it means


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _call(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def main(arguments: Sequence[str]) -> int:
    """Parse `box -- ARGV` or `enter BOX NODE -- ARGV`."""
    verb, *rest = arguments
    split = rest.index("--")
    try:
        if verb == "box":
            return box(rest[split + 1 :])
        return enter(int(rest[0]), int(rest[1]), rest[split + 1 :])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return FORBIDDEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
