"""The machine itself: kernel, CPUs, clock, limits and room."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from rig.doctor.finding import Finding
from rig.report import figures

OLDEST_KERNEL = (4, 19)  # tcp_info with bytes_retrans: rig.node.counters
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen")
LATE = 0.2e-3  # s; a paced wait that is later than this is felt at 10 Gb/s
FEW_FILES, FEW_PROCESSES = 1024, 2048
LITTLE_MEMORY, LITTLE_SHARED, LITTLE_DISK = 2e9, 64e6, 1e9  # bytes


def kernel() -> Finding:
    """Its version, against the oldest that the counters work on."""
    release = platform.release()
    numbers = tuple(int(part) for part in release.partition("-")[0].split(".")[:2] if part.isdigit())
    if numbers >= OLDEST_KERNEL:
        return Finding("kernel", "ok", f"Linux {release}")
    return Finding("kernel", "lack", f"Linux {release}: older than 4.19", "use a newer kernel")


def cpus() -> Finding:
    """How many there are, and how many this process may use."""
    mine, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{mine} of {all_of_them}" if mine < all_of_them else f"{mine}"
    if mine >= 2:
        return Finding("CPUs", "ok", f"{found} ({platform.machine()})")
    return Finding("CPUs", "warn", f"{found}: all ranks share it", "give this process more (taskset, cpuset)")


def governor() -> Finding:
    """A CPU whose frequency wanders makes real compute wander."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        name = path.read_text(encoding="ascii").strip()
    except OSError:
        return Finding("CPU frequency", "ok", "not told by this system")
    if name == "performance":
        return Finding("CPU frequency", "ok", f"governor {name}")
    mend = "for real compute: sudo cpupower frequency-set -g performance"
    return Finding("CPU frequency", "warn", f"governor {name}: real compute may wander", mend)


def clock() -> Finding:
    """Reading a slow clock source costs a microsecond and a system call each time."""
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    try:
        name = path.read_text(encoding="ascii").strip()
    except OSError:
        return Finding("clock", "ok", "source not told by this system")
    if name in GOOD_CLOCKS:
        return Finding("clock", "ok", f"source {name}")
    return Finding(
        "clock", "warn", f"source {name}: slow to read", "boot with clocksource=tsc where the CPU's is stable"
    )


def sleeping() -> Finding:
    """Paced compute and the delay line sleep to deadlines."""
    late = median(_overshoot() for _ in range(100))
    found = f"a sleep of 1 ms ends {late * 1e6:.0f} µs late (median of 100)"
    if late <= LATE:
        return Finding("timer", "ok", found)
    return Finding("timer", "warn", found, "leave the machine alone while measuring; a virtual machine may be at fault")


def _overshoot() -> float:
    began = time.monotonic()
    time.sleep(0.001)
    return time.monotonic() - began - 0.001


def open_files() -> Finding:
    """A lab opens a few for each node, and the delay line two for each link."""
    return _limit("open files", resource.RLIMIT_NOFILE, FEW_FILES, "ulimit -n")


def processes() -> Finding:
    """A node has three or so, each rank some threads."""
    return _limit("processes", resource.RLIMIT_NPROC, FEW_PROCESSES, "ulimit -u")


def _limit(name: str, which: int, few: int, command: str) -> Finding:
    soft = resource.getrlimit(which)[0]
    if soft == resource.RLIM_INFINITY or soft >= few:
        return Finding(name, "ok", "no limit" if soft == resource.RLIM_INFINITY else f"{soft} at most")
    return Finding(name, "warn", f"{soft} at most: little for large labs", f"{command} {few}")


def memory() -> Finding:
    """A rank of PyTorch takes some 250 MB before it has a model."""
    free = psutil.virtual_memory().available
    return _room("memory", free, LITTLE_MEMORY, "close other programs, or run fewer nodes")


def shared_memory() -> Finding:
    """Data loaders of real workloads use it."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Finding("/dev/shm", "warn", "there is none: lab netns needs it", "sudo mount -t tmpfs none /dev/shm")
    return _room("/dev/shm", free, LITTLE_SHARED, "sudo mount -o remount,size=1g /dev/shm")


def disk() -> Finding:
    """Records go to the folder one is in, scratch to the temporary one."""
    free = min(shutil.disk_usage(folder).free for folder in (os.getcwd(), tempfile.gettempdir()))
    return _room("disk", free, LITTLE_DISK, "make room here or in the temporary folder, or set TMPDIR and --out")


def _room(name: str, free: float, little: float, mend: str) -> Finding:
    found = f"{figures.size(float(free))} free"
    return Finding(name, "ok", found) if free >= little else Finding(name, "warn", found, mend)
