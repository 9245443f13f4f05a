"""`rig doctor`: what it finds is true, what it says helps, and a scenario that cannot run here is told so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rig import doctor, held
from rig.doctor import capacity, needs, remains
from rig.doctor.finding import Finding
from rig.lab import PACKAGE, ceiling, lock
from rig.model import Case, Tcp
from rig.units import Duration, Size
from rig.work import Allreduce
from tests.cases import case, impairment
from tests.lab.runs import RIG, ROOT, rig

BOX = [sys.executable, "-SE", str(PACKAGE / "node" / "namespaces.py"), "box", "--"]
SMALL = "name: small\nlink: {rate: 1gbit}\nnodes: 2\nworkload: {kind: allreduce, size: 1KiB, steps: 2, warmup: 1}\n"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what this machine knows of itself nor labs that are up on it shall matter."""
    for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def by_name(answer: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(answer.stdout)["checks"]}


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────────
def test_a_machine_that_runs_these_tests_is_fit(file: Path) -> None:
    answer = rig("doctor", file, "--lab", "netns", "--json")
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    found = by_name(answer)
    assert document["runs_here"] is True
    assert found["user namespaces"]["status"] == found["tbf"]["status"] == found["lab netns"]["status"] == "ok"
    assert found["CPUs"]["found"].startswith(str(len(os.sched_getaffinity(0))))
    assert "Gb/s in all by" in found["ceiling"]["found"] or "another rig measures" in found["ceiling"]["found"]
    for one in document["checks"]:
        assert one["status"] in ("ok", "warn", "lack")
        assert one["found"]
        assert one["mend"] or one["status"] != "lack"
    order = [(not one["required"], ("lack", "warn", "ok").index(one["status"])) for one in document["checks"]]
    assert order == sorted(order)


FORBID = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'  # counts for all namespaces below this one


def test_forbidden_namespaces_are_a_lack_and_no_failure_without_a_scenario(file: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c", FORBID, "sh", *RIG, "doctor"]
    alone, asked = (
        subprocess.run([*inside, *more], check=False, cwd=ROOT, capture_output=True, text=True, timeout=90)
        for more in (["--json"], [str(file), "--lab", "netns"])
    )
    assert alone.returncode == 0, alone.stderr
    found = by_name(alone)["user namespaces"]
    assert found["status"] == "lack"
    assert "user.max_user_namespaces" in found["mend"]
    assert asked.returncode == 3
    assert "this scenario cannot run here" in asked.stdout
    assert "Traceback" not in asked.stderr + alone.stderr


@pytest.mark.parametrize(("text", "said"), [("name: [", "small.yaml"), (SMALL.replace("1gbit", "1G"), "did you mean")])
def test_a_wrong_scenario_is_bad_usage(file: Path, text: str, said: str) -> None:
    file.write_text(text, encoding="utf-8")
    answer = rig("doctor", file)
    assert answer.returncode == 2
    assert said in answer.stderr


def test_an_unknown_lab_is_bad_usage(file: Path) -> None:
    answer = rig("doctor", file, "--lab", "cloud")
    assert (answer.returncode, answer.stderr.splitlines()[-1][:26]) == (2, "lab 'cloud' is unknown; th")


def test_a_table_fits_80_columns() -> None:
    found = [Finding("a" * 20, "warn", "found " * 30, "mend " * 30, required=True), Finding("b", "ok", "c")]
    console = Console(width=80)
    with console.capture() as drawn:
        console.print(doctor.table(found))
    assert max(len(line) for line in drawn.get().splitlines()) <= 80
    assert drawn.get().count("found") == 31
    assert "0 lacking, 1 to look at, 1 in order; this scenario can run here" in drawn.get()


# ── what a scenario needs ────────────────────────────────────────────────────────────────────────────
CORES = len(os.sched_getaffinity(0))
DELAYED = replace(impairment(), delay=Duration.parse("5ms"))


def needed(changed: Any, lab: str = "netns") -> dict[str, Finding]:
    return {one.name: one for one in needs.of([case(2), changed], lab)}


def test_a_modest_case_lacks_nothing() -> None:
    found = needed(case(1))
    assert {one.status for one in found.values()} == {"ok"}
    assert all(one.required for one in found.values())


LACKING: dict[str, tuple[Callable[[], Case], str, str]] = {
    "GPU": (lambda: case(2, gpu="required"), "gpu: required", "gpu: auto"),
    "congestion control": (lambda: case(2, tcp=Tcp(congestion="nosuch")), "TCP", "modprobe tcp_nosuch"),
    "memory": (lambda: case(2, workload=Allreduce(steps=1, warmup=1, size=Size(2**50))), "memory", "fewer nodes"),
}


@pytest.mark.parametrize("what", list(LACKING))
def test_what_is_lacking(what: str) -> None:
    changed, name, mend = LACKING[what]
    if what == "GPU" and list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has one")
    found = needed(changed())[name]
    assert found.status == "lack"
    assert mend in found.mend
    assert doctor.forbids([found])


def test_a_link_that_is_more_than_a_rate_needs_netem_or_the_delay_line() -> None:
    plain = case(2)
    delayed = replace(plain, nodes=tuple(replace(one, link=replace(one.link, up=DELAYED)) for one in plain.nodes))
    assert needed(plain)["links"].found == "rates only: token buckets are enough"
    assert needed(delayed)["links"].found.endswith("what happens on the way")


@pytest.mark.parametrize(("nodes", "rate", "dilation"), [(1, "1gbit", 1), (16 * CORES, "10gbit", 128)])
def test_a_case_beyond_the_host_is_told_the_dilation_that_helps(nodes: int, rate: str, dilation: int) -> None:
    found = needed(case(nodes, rate))["speed"]
    assert (found.status, found.mend) == (("ok", "") if dilation == 1 else ("warn", f"dilation: {dilation}, or auto"))
    if dilation > 1:
        assert needed(case(nodes, rate, dilation=dilation))["speed"].status == "ok"
        assert needed(case(nodes, rate, dilation=dilation // 2))["speed"].status == "warn"


# ── the ceiling ──────────────────────────────────────────────────────────────────────────────────────
def test_a_ceiling_is_measured_and_known_from_then_on() -> None:
    assert ceiling.known_ceiling() is None
    measured = ceiling.measure("test-ceiling")
    assert 1e8 < measured.bit_s < 1.05e10 * measured.streams  # no stream passes its bucket
    assert 0.001 < measured.cpu_s_per_gbit < 20
    ceiling.keep(measured)
    assert ceiling.known_ceiling() == measured.bit_s
    ceiling.keep(replace(measured, bit_s=2.8e9))
    assert ceiling.worth(CORES) == pytest.approx(0.4)
    assert needs.allowed(case(2)) == pytest.approx(0.4 * 1.25e9)
    ceiling.keep(replace(measured, bit_s=1e13))
    assert ceiling.worth(CORES) == CORES  # never more than there are


@pytest.mark.parametrize("what", ["cpu", "cores", "kernel", "memory"])
def test_a_ceiling_of_another_host_is_not_this_ones(what: str) -> None:
    path = ceiling.keep(ceiling.Ceiling(1e10, 0.1, 2))
    assert ceiling.known_ceiling() == 1e10
    document = json.loads(path.read_text(encoding="utf-8"))
    document["machine"][what] = "another"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert ceiling.known_ceiling() is None
    path.write_text("{", encoding="utf-8")
    assert ceiling.known_ceiling() is None


def test_a_ceiling_is_not_measured_while_another_rig_measures() -> None:
    with lock.measuring(print):
        found = capacity.ceiling()
    assert found.status == "warn"
    assert f"process {os.getpid()}" in found.found


# ── what is left, and others' doings ─────────────────────────────────────────────────────────────────
def test_notes_of_a_dead_lab_are_leftovers() -> None:
    assert "notes of run" not in remains.leftovers().found
    held.folder().mkdir(mode=0o700)
    held.Held("deadbeef", 1, "2026-01-01T00:00:00Z", "netns", "small", "nodes=1", {}, [], {}).save()
    found = remains.leftovers()
    assert (found.status, found.mend) == ("warn", "rig clean")
    assert "notes of run deadbeef" in found.found
    assert held.clean(lambda _: None) == 1
    assert "notes of run" not in remains.leftovers().found


def test_only_processes_without_a_parent_are_leftovers() -> None:
    """A child of ours has one; one that is taken over by the system's first process has none."""
    script = "RIG_RUN=test-orphan sleep 600 >/dev/null 2>&1 & echo $!"
    with subprocess.Popen(["sleep", "600"], env={"RIG_RUN": "test-child"}) as child:
        answer = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
        orphan = int(answer.stdout)
        try:
            adopted = Path(f"/proc/{orphan}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            found = remains.orphaned()
        finally:
            child.kill()
            os.kill(orphan, 9)
    assert "test-child" not in found
    assert (found.get("test-orphan") == [orphan]) == (adopted == "1")  # elsewhere some other process takes it over


SHAPED = """
import socket
from rig.doctor import remains
from rig.node.netlink import ROOT, Netlink
print(remains.foreign_qdiscs().status)
Netlink().put_qdisc("pfifo", (socket.if_nametoindex("lo"), 0x10000, ROOT), bytes([9, 0, 0, 0]))
print(remains.foreign_qdiscs().found)
"""


def test_a_qdisc_that_somebody_set_is_found_and_left_alone() -> None:
    argv = [*BOX, "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", SHAPED]
    answer = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    assert answer.stdout.splitlines()[-2:] == ["ok", "lo: pfifo"]
