"""How long a plan takes: a hundred cases in a second, ten thousand nodes in two, and never more than in proportion.

CPU time, the least of a few tries, since others may keep the machine busy.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rig import outlook, scenario
from rig.model import Case
from rig.plan import expand
from tests.lab.runs import ROOT, rig

MANY = """\
name: many
nodes: {nodes}
link: {{rate: 1gbit}}
workload: {{kind: ddp, model: resnet50, batch: 32, compute: {{profile: resnet50-gtx1080ti}}}}
"""
HUNDRED = MANY.format(nodes=4) + "sweep: {nodes: [2, 3, 4, 8], link.rate: [100mbit, 500mbit, 1gbit, 2gbit, 10gbit]}\n"
HUNDRED = HUNDRED.replace("10gbit]}", "10gbit], link.rtt: [0ms, 1ms, 2ms, 5ms, 10ms]}")
CLUSTERED = MANY.format(nodes=0).replace("nodes: 0", "clusters: {us: {nodes: 5000}, eu: {nodes: 5000}}")
CLUSTERED += "wan: {rate: 1gbit, rtt: 20ms}\nmachines: {n7: {link: {rate: 100mbit}}}\n"
HEAVY = ("torch", "pandas", "docker", "matplotlib", "numpy", "pyroute2", "jinja2")
PLAN = """
import sys
sys.argv = ["rig", "plan", *sys.argv[1:]]
from rig import cli
try:
    cli.main()
finally:
    sys.stderr.write(" ".join(name for name in {heavy!r} if name in sys.modules))
"""


def least(work: Callable[[], object], tries: int = 3) -> float:
    """CPU seconds, of this process and of children that have ended."""

    def spent() -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + ended.ru_utime + ended.ru_stime

    found = []
    for _ in range(tries):
        began = spent()
        work()
        found.append(spent() - began)
    return min(found)


def planned(text: str) -> list[Case]:
    cases = expand(scenario.loads(text, "x.yaml"), 2)
    outlook.table("x", cases, outlook.Basis())
    return list(cases)


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize(
    ("text", "most"), [(HUNDRED, 1.0), (MANY.format(nodes=10_000), 2.0), (CLUSTERED, 2.0)], ids=["100", "10k", "two"]
)
def test_a_plan_is_quick_and_imports_little(text: str, most: float, more: list[str], tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")

    def plan() -> None:
        command = [sys.executable, "-c", PLAN.format(heavy=HEAVY), str(file), *more]
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=60,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},  # no calibration, so nothing to say of one
        )  # fmt: skip
        assert answer.stderr == ""
        assert len(answer.stdout.splitlines()) > 3

    # Half as much again: where several tests share the cores, CPU time grows as well.
    assert least(plan) < 1.5 * most


def test_time_grows_as_the_nodes_do() -> None:
    few = least(lambda: planned(MANY.format(nodes=2_500)))
    many = least(lambda: planned(MANY.format(nodes=10_000)))
    assert many / few < 8  # 4 where it is in proportion, 16 where it goes by the square


def test_time_grows_as_cases_and_buckets_do() -> None:
    def once(cases: int, cap: str) -> Callable[[], object]:
        seeds = list(range(cases))
        return lambda: planned(f"{MANY.format(nodes=2)}sweep: {{seed: {seeds}, workload.bucket_cap: [{cap}]}}\n")

    base, cases, buckets = (least(once(*asked)) for asked in ((40, "4MiB"), (160, "4MiB"), (40, "256KiB")))
    assert cases / base < 6
    assert buckets / base < 8  # ten times as many buckets


@pytest.mark.parametrize("verb", ["probe", "up"])
def test_what_is_too_large_to_build_is_refused(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(MANY.format(nodes=257), encoding="utf-8")
    answer = rig(verb, str(file), "--lab", "netns", *(["--only", "nodes=257"] if verb == "up" else []))
    assert answer.returncode == 2, answer.stderr
    assert "case nodes=257: build its lab: it has 257 nodes, and a lab has at most 256" in answer.stderr


def test_all_of_ten_thousand_nodes_have_addresses_of_their_own() -> None:
    (case,) = (case for case in planned(MANY.format(nodes=10_000)) if case.role == "case")
    addresses = {node.address for node in case.nodes} | {switch.address for switch in case.switches}
    assert len(addresses) == 10_001
    assert all(address.startswith(("198.18.", "198.19.")) for address in addresses)
    assert {part for address in addresses for part in address.split(".")[3:]} <= {str(octet) for octet in range(256)}


def test_the_same_nodes_written_one_by_one_are_predicted_the_same() -> None:
    """What is grouped for speed changes nothing: machines with links of their own that say what all others do."""
    link = "{link: {rate: 1gbit}}"
    apart = MANY.format(nodes=6) + "machines: {" + ", ".join(f"n{index}: {link}" for index in range(6)) + "}\n"
    for plain, other in zip(planned(MANY.format(nodes=6)), planned(apart), strict=True):
        one, two = (outlook.expected(case, outlook.Basis()).figures for case in (plain, other))
        assert {name: figure.value for name, figure in one.items()} == {n: figure.value for n, figure in two.items()}
