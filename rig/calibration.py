"""`rig calibrate`: measure what this machine itself adds, keep it, and show it. The measuring is in rig.lab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rig import record
from rig.doctor import capacity
from rig.errors import LabError
from rig.lab import calibration, ceiling
from rig.lab.lock import measuring
from rig.model import Host
from rig.report import figures

if TYPE_CHECKING:
    from rich.table import Table

UNKEPT = 4  # exit code: measured, and not to be relied on


@dataclass(frozen=True)
class Calibrated:
    """What was measured, and where it is kept; or why it is not."""

    host: Host
    ceiling: ceiling.Ceiling
    kept: Path | None
    why: str = ""

    @property
    def exit_code(self) -> int:
        return 0 if self.kept else UNKEPT


def calibrate(tell: Callable[[str], None], locked: bool = True) -> Calibrated:
    """Measure this machine and keep it for later runs, unless others were busy meanwhile; see Calibrated.why.

    Raises LackError, LabError, WorkloadError where no lab is to be had.
    """
    run = record.new_run_id()
    with measuring(tell, locked):
        others = capacity.busy()  # before the measurement makes it busy
        host = calibration.measure(run, tell)
        tell("measure what the host carries in all")
        carries = ceiling.measure(run)
    if others > capacity.QUIET:
        share = figures.percent(others, signed=False)
        return Calibrated(host, carries, None, f"others took {share} of the CPUs; end them, and calibrate again")
    return _kept(host, carries)


def _kept(host: Host, carries: ceiling.Ceiling) -> Calibrated:
    try:
        ceiling.keep(carries)
        return Calibrated(host, carries, calibration.keep(host))
    except OSError as error:
        raise LabError(
            f"calibrate: keep what was measured: {error.strerror}; set XDG_CACHE_HOME to a folder of yours"
        ) from error


def document(found: Calibrated) -> dict[str, Any]:
    """The same as JSON data."""
    told = {"host": asdict(found.host), "ceiling": asdict(found.ceiling)}
    return dict(record.plain({**told, "kept": str(found.kept) if found.kept else None, "why": found.why}))


def table(found: Calibrated) -> Table:
    """The same for a terminal of 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    host = found.host
    shown = Table(title=f"{host.cpu}, {host.cores} CPUs, Linux {host.kernel}", title_justify="left", box=SIMPLE_HEAD)
    shown.add_column("what this machine itself adds")
    shown.add_column("measured", justify="right")
    for ranks, seconds in sorted(host.alpha.items()):
        shown.add_row(f"a small all-reduce of {ranks} ranks", figures.seconds(seconds))
    shown.add_row("a gigabyte sent, received and added up", figures.seconds(host.reduce * 1e9))
    shown.add_row("a paced step beyond its pace", figures.seconds(host.step))
    shown.add_row("all links together carry at most", figures.rate(found.ceiling.bit_s))
    where = f"kept in {found.kept}" if found.kept else f"not kept: {found.why}"
    shown.caption, shown.caption_justify = where, "left"
    return shown
