"""`rig` in a process of its own, for tests that kill it, and what the machine looks like before and after."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[2]
RIG = (sys.executable, "-m", "rig.cli")
SMALL = """\
name: small
link: {{rate: 200mbit}}
workload: {{kind: allreduce, size: 2MiB, steps: {steps}, warmup: 1}}
timeout: {timeout}
sweep: {{nodes: [1, {nodes}]}}
expect: {{traffic: 0.05%}}
"""
MARK = "TEST_STARTED_BY"
SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
FOREIGN = ("/veth", "/docker")  # sysctls of an engine's links


@dataclass
class Run:
    """One `rig run` under way: its process, its scenario's folder and the folder it reports to."""

    process: subprocess.Popen[str]
    out: Path
    temporary: Path
    mark: str  # in the environment of whatever it started on this machine, containers left out
    spaces: set[str] = field(default_factory=set)  # every namespace its processes were seen in, the host's left out

    @property
    def id(self) -> str:
        """The run's id, empty before it has a folder."""
        return next((folder.name.rpartition("-")[2] for folder in self.out.glob("*-small-*")), "")

    def processes(self, *telltales: str) -> list[int]:
        """Living processes of this run, with all these texts in their environment or command line."""
        return [] if not self.id else self._having(f"RIG_RUN={self.id}", telltales)

    def descendants(self) -> list[int]:
        """Living processes that were started by this one, or by one of them."""
        return sorted({*self._having(f"{MARK}={self.mark}"), *self.processes()} - {self.process.pid})

    def _having(self, variable: str, telltales: Sequence[str] = ()) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            environment = _read(folder / "environ")
            text = environment + _read(folder / "cmdline")
            if variable in environment.split("\0") and all(one in text for one in telltales):
                found.append(int(folder.name))
        return found

    def containers(self) -> list[str]:
        """Names of its containers, running or not."""
        if not self.id or shutil.which("docker") is None:
            return []
        return _said("docker", "ps", "-a", "--filter", f"label=rig.run={self.id}", "--format", "{{.Names}}").split()

    def record(self) -> dict[str, Any]:
        """The record as it stands."""
        (path,) = self.out.glob("*-small-*/record.json")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def cases(self) -> list[str]:
        """Statuses of the cases recorded so far; none before there is a record."""
        return [case["status"] for case in self.record()["cases"]] if list(self.out.glob("*/record.json")) else []

    def note_spaces(self) -> None:
        """Remember the namespaces that this run's processes are in now."""
        mine = {space for pid in self.processes() for space in spaces_of(pid)}
        self.spaces |= mine - set(spaces_of(os.getpid()))

    def assert_gone(self, ended: float) -> None:
        """No process, no namespace and no temporary file is left of a run that ended at a moment (see now)."""
        until(lambda: not self.descendants(), 5)
        until(lambda: not self.spaces & inhabited(ended), 5)
        assert list(self.temporary.iterdir()) == []

    def kill(self) -> None:
        """End it as `kill -9` does, if it still runs."""
        self.process.kill()
        self.process.communicate()

    def end(self, within: float = 30.0) -> tuple[int, str, str]:
        """Wait for its end: exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=within)
        return self.process.returncode, out, err


def start(folder: Path, nodes: int = 2, steps: int = 3, timeout: str = "60s", prefix: Sequence[str] = ()) -> Run:
    """Start `rig run` of a small scenario in a folder, in lab netns; see start_of."""
    return start_of(SMALL.format(nodes=nodes, steps=steps, timeout=timeout), folder, prefix=prefix)


def start_of(text: str, folder: Path, lab: str = "netns", prefix: Sequence[str] = ()) -> Run:
    """Start `rig run` of a scenario called small; it is the leader of a process group, as in a terminal.

    All that it may write lies in the folder: reports, temporary files, notes of labs that are up.
    """
    out, temporary, mark = folder / "out", folder / "tmp", uuid4().hex
    temporary.mkdir(parents=True)
    temporary.chmod(0o777)  # the run may be another user's
    file = folder / "small.yaml"
    file.write_text(text, encoding="utf-8")
    argv = [*prefix, *RIG, "run", str(file), "--lab", lab, "--out", str(out), "--no-lock"]
    given = os.environ | {"TMPDIR": str(temporary), MARK: mark}
    process = subprocess.Popen(
        argv, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    return Run(process, out, temporary, mark)


def rig(
    *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None, within: float = 90
) -> subprocess.CompletedProcess[str]:
    """Run one command line to its end."""
    argv = [*RIG, *map(str, arguments)]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | dict(env or {})
    return subprocess.run(argv, check=False, cwd=cwd, env=given, capture_output=True, text=True, timeout=within)


def as_ordinary_user() -> list[str]:
    """A command prefix that gives up root, for good, and still sees this Python and the rig.

    Root's Python may lie in a folder that only root may enter. So, in a mount namespace that ends with the command,
    an open folder is put in its place, with nothing in it but what is needed. Empty where the caller is no root.
    """
    if os.getuid() != 0:
        return []
    script = "".join(f"{line}\n" for line in _opened(_closed_folders()))
    user = "setpriv --reuid 54321 --regid 54321 --clear-groups --inh-caps=-all --bounding-set=-all"
    return ["unshare", "--mount", "sh", "-ec", f'{script}cd "$PWD"\nexec {user} -- "$@"', "sh"]


def _closed_folders() -> dict[Path, set[Path]]:
    """The topmost folders that only their owner may enter, and what is needed below each."""
    closed: dict[Path, set[Path]] = {}
    for needed in {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}:
        for folder in reversed([needed, *needed.parents]):
            if not folder.stat().st_mode & 0o001:
                closed.setdefault(folder, set()).add(needed)
                break
    return closed


def _opened(closed: Mapping[Path, set[Path]]) -> Iterator[str]:
    """Shell lines: hold on to what is needed, hide the folder, put it back."""
    if closed:
        yield "mount -t tmpfs none /mnt"
    for number, (folder, needed) in enumerate(closed.items()):
        for place, path in enumerate(needed):
            yield f"mkdir /mnt/{number}-{place} && mount --bind '{path}' /mnt/{number}-{place}"
        yield f"mount -t tmpfs -o mode=755 none '{folder}'"
        for place, path in enumerate(needed):
            yield f"mkdir -p '{path}' && mount --bind /mnt/{number}-{place} '{path}'"


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something to become true; fails the test when it does not."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def spaces_of(pid: int) -> list[str]:
    """The namespaces of a process, such as "net:[4026531840]"; none when it is gone."""
    try:
        return [os.readlink(f"/proc/{pid}/ns/{name}") for name in SPACES if os.path.exists(f"/proc/{pid}/ns/{name}")]
    except OSError:
        return []


def inhabited(before: float) -> set[str]:
    """Every namespace that a process is in which began before a moment of CLOCK_BOOTTIME (s).

    Later ones do not count: the kernel gives the number of a namespace that is gone to the next one made.
    """
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return {space for pid in pids if _began(pid) < before for space in spaces_of(pid)}


def now() -> float:
    """This moment as CLOCK_BOOTTIME tells it, in which the kernel keeps when a process began (s)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _began(pid: int) -> float:
    """Field 22 of proc_pid_stat(5); the name in field 2 may hold blanks."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else float("inf")


def machine() -> dict[str, object]:
    """What a run must leave as it was: links, TAPs, namespaces, qdiscs, addresses, routes, mounts, sysctls, shared
    memory, temporary files, sockets with a name. Its processes and containers are known by their mark: see Run.

    Less what an engine that works beside has: the rig never calls a thing veth or docker.
    """
    return {
        "links": _foreign_left_out("\n".join(os.listdir("/sys/class/net"))),
        "taps": sorted(path.parent.name for path in Path("/sys/class/net").glob("*/tun_flags")),
        "qdiscs": _foreign_left_out(_said("tc", "qdisc", "show")),
        "addresses": _foreign_left_out(_said("ip", "-brief", "address")),
        "routes": _foreign_left_out(_said("ip", "route")),
        "mounts": _foreign_left_out(_read(Path("/proc/self/mountinfo"))),
        "shared memory": sorted(path.name for path in Path("/dev/shm").glob("rig*")),
        # Not rig-guest…: tests in User-mode Linux have those.
        "temporary files": sorted(path.name for path in Path(tempfile.gettempdir()).glob("rig-[!g]*")),
        "named namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "named sockets": ownerless(),
        "sysctls": _sysctls(),
    }


def ownerless() -> list[str]:
    """Abstract sockets of the rig's (unix(7)) that no process can be seen to hold; another rig may well have one."""
    held = {number: name for number, name in _named_sockets() if name.startswith("@rig")}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*") if held else ():
        try:
            held.pop(os.readlink(descriptor), None)
        except OSError:  # closed by now
            continue
    return sorted(held.values())


def _named_sockets() -> Iterator[tuple[str, str]]:
    """("socket:[INODE]", name) of every UNIX socket that has one."""
    for line in _read(Path("/proc/net/unix")).splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8:
            yield f"socket:[{fields[6]}]", fields[7]


def changes(before: dict[str, object]) -> dict[str, tuple[object, object]]:
    """What of `machine()` is no longer as it was: before and now."""
    old, new = _flat(before), _flat(machine())
    return {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}


def _flat(figures: dict[str, object]) -> dict[str, object]:
    sysctls = figures["sysctls"]
    assert isinstance(sysctls, dict)
    return {**figures, **sysctls, "sysctls": None}


def assert_unchanged(before: dict[str, object], within: float = 5.0) -> None:
    """Fail with the differences unless the machine soon is as it was."""
    end = time.monotonic() + within
    while differences := changes(before):
        assert time.monotonic() < end, differences
        time.sleep(0.1)


def _foreign_left_out(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if "docker" not in line and "veth" not in line)


def _sysctls() -> dict[str, str]:
    files = (Path(folder, name) for folder, _, names in os.walk("/proc/sys/net") for name in names)
    return {
        str(file): _read(file)
        for file in files
        if file.name != "nf_conntrack_count" and not any(word in str(file) for word in FOREIGN)
    }


def _said(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
