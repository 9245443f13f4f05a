"""How busy the host is, and what it can carry in all."""

from __future__ import annotations

import os
from functools import cache

import psutil

from rig import record
from rig.doctor.finding import Finding
from rig.errors import LabError
from rig.lab import ceiling as ceilings
from rig.lab import lock
from rig.report import figures

QUIET = 0.2  # share of all CPUs that others may take before a measurement is worth nothing
LOOK = 0.5  # seconds


@cache
def busy() -> float:
    """Share of all CPUs that others take, 0 to 1."""
    return float(psutil.cpu_percent(interval=LOOK)) / 100


def load() -> Finding:
    """Whatever else runs disturbs what is measured."""
    found = f"{figures.percent(busy(), signed=False)} of the CPUs are busy; load {os.getloadavg()[0]:.1f}"
    if busy() <= QUIET:
        return Finding("load", "ok", found)
    return Finding("load", "warn", f"{found}: results will suffer", "end other programs while measuring")


def measuring() -> Finding:
    """Whether anybody measures now; they wait for one another."""
    return Finding("measurement", "ok", lock.holder() or "nobody measures now")


def ceiling() -> Finding:
    """Measured, and kept for `dilation: auto` when the host was quiet."""
    if who := lock.holder():
        return Finding(
            "ceiling", "warn", f"not measured, since another rig measures ({who})", "ask again when it is done"
        )
    quiet = busy() <= QUIET  # before the measurement makes it busy
    try:
        with lock.measuring(lambda _: None):
            measured = ceilings.measure(record.new_run_id())
    except LabError as error:
        return Finding("ceiling", "warn", f"not measured: {error}")
    found = (
        f"{figures.rate(measured.bit_s)} in all by {measured.streams} streams through 10 Gb/s links, "
        f"{measured.cpu_s_per_gbit:.2f} CPU-seconds per Gb"
    )
    if not quiet:
        return Finding("ceiling", "warn", f"{found}; not kept, since others were busy", "run it on a quiet machine")
    try:
        ceilings.keep(measured)
    except OSError as error:
        return Finding("ceiling", "warn", f"{found}; not kept: {error}", "set XDG_CACHE_HOME to a folder of yours")
    return Finding("ceiling", "ok", f"{found}; kept for dilation: auto")
