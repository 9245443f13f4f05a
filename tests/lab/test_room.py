"""Where the record cannot be written: one sentence, exit 3, and finished cases are still there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.runs import RIG, ROOT, Run, as_ordinary_user, rig, start, until

TINY = 'mount -t tmpfs -o size=2m none "$0" && exec "$@"'


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_no_finished_case(tmp_path: Path) -> None:
    """The disk is a tiny tmpfs in a mount namespace of the rig's own, filled once the first case is recorded."""
    out = tmp_path / "out"
    out.mkdir()
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    run = start(tmp_path, prefix=["unshare", *as_root, "--mount", "sh", "-c", TINY, str(out)])
    try:
        seen = f"/proc/{run.process.pid}/root{out}"
        until(lambda: os.stat(seen).st_dev != out.stat().st_dev)  # the tiny disk is there
        disk = os.open(seen, os.O_RDONLY)  # outlives the namespace
        inside = Run(run.process, Path(f"/proc/self/fd/{disk}"), run.temporary, run.mark)
        until(lambda: inside.cases() == ["pass"])
        fill(inside.out / "filler")
        code, _, err = run.end()
        record = inside.record()
    finally:
        run.kill()
    os.close(disk)
    assert code == 3
    assert "No space left on device; what was saved before is safe there" in err
    assert "Traceback" not in err
    assert [one["status"] for one in record["cases"]] == ["pass"]
    assert json.dumps(record, allow_nan=False)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


SCENARIO = "name: x\nlink: {rate: 1gbit}\nnodes: 1\nworkload: {kind: allreduce, size: 1KiB, steps: 2, warmup: 1}\n"


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SCENARIO, encoding="utf-8")
    answer = rig("run", tmp_path / "x.yaml", "--lab", "netns", "--out", tmp_path / "x.yaml")
    assert answer.returncode == 3
    assert "make the run's folder: Not a directory; name another with --out" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_out_is_read_only(tmp_path: Path) -> None:
    """/proc takes no folders, not even root's."""
    (tmp_path / "x.yaml").write_text(SCENARIO, encoding="utf-8")
    answer = rig("run", tmp_path / "x.yaml", "--lab", "netns", "--out", "/proc/self")
    assert answer.returncode == 3
    assert "make the run's folder: " in answer.stderr
    assert "name another with --out" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_out_is_forbidden() -> None:
    argv = [*as_ordinary_user(), *RIG, "run", "scenarios/allreduce.yaml", "--lab", "netns", "--out", "/etc"]
    answer = subprocess.run(argv, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 3
    assert "make the run's folder: Permission denied; name another with --out" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
