"""The shipped scenarios, run as a person runs them: what the README promises of `make run`, and in both labs.

A case that is `invalid` was disturbed by something else on this machine, and says so; it gets four more chances.
One that fails does not.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.conftest import docker_lack
from tests.lab.runs import ROOT, rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TRIES, PAUSE = 5, 10.0  # runs at most of a disturbed case, and s to wait for whatever disturbs it
LINKS_WITHIN = 0.01


def run(folder: Path, scenario: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """Cases by id, after at most four more runs of those that were disturbed."""
    cases = once(folder, scenario, *arguments)
    for _ in range(TRIES - 1):
        for name in [name for name, case in cases.items() if disturbed(case)]:
            time.sleep(PAUSE)
            print(name, cases[name]["reason"] or "a link read more than 1 % off")
            cases |= once(folder, scenario, *arguments, "--only", name)
    assert {case["status"] for case in cases.values()} == {"pass"}, [case["reason"] for case in cases.values()]
    return cases


def disturbed(case: dict[str, Any]) -> bool:
    """Whether the rig itself says so, or a link read further off than it ever does on a quiet machine."""
    return case["status"] == "invalid" or max(map(off, case["links"]), default=0.0) > LINKS_WITHIN


def off(link: dict[str, Any]) -> float:
    return abs(float(link["measured"]["goodput"]) / float(link["asked"]["goodput"]) - 1)


def once(folder: Path, scenario: str, *arguments: str) -> dict[str, dict[str, Any]]:
    once_each = ("--set", "repeats=1", "--json")  # `make run` does each twice; here the suite's time counts
    answer = rig("run", str(ROOT / "scenarios" / scenario), *arguments, *once_each, cwd=folder, within=590)
    assert answer.returncode in (0, 1, 4), answer.stderr
    return {case["id"]: case for case in json.loads(answer.stdout)["cases"]}


def error(case: dict[str, Any], metric: str) -> float:
    return float(case["measured"][metric]["value"] / case["predicted"][metric]["value"] - 1)


@pytest.fixture(scope="module")
def bandwidth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run(tmp_path_factory.mktemp("netns"), "bandwidth.yaml", "--lab", "netns")


def test_every_case_of_bandwidth_passes(bandwidth: dict[str, dict[str, Any]]) -> None:
    assert len(bandwidth) == 9
    many = [case for case in bandwidth.values() if case["params"]["nodes"] > 1]
    off = [abs(error(case, "step_time")) for case in many]
    assert max(off) <= 0.025
    assert fmean(off) <= 0.01


def test_payload_is_the_formulas(bandwidth: dict[str, dict[str, Any]]) -> None:
    for case in bandwidth.values():
        if case["params"]["nodes"] == 1:
            assert case["measured"]["payload_tx"]["value"] == 0
            continue
        pairs = zip(
            case["measured"]["payload_tx"]["per_node"], case["predicted"]["payload_tx"]["per_node"], strict=True
        )
        assert all(abs(measured / predicted - 1) <= 5e-4 for measured, predicted in pairs)


def test_links_carry_what_a_cable_does(bandwidth: dict[str, dict[str, Any]]) -> None:
    links = [link for case in bandwidth.values() for link in case["links"]]
    assert len(links) == 2 * (3 * 1 + 3 * 2 + 3 * 4)
    assert max(map(off, links)) <= LINKS_WITHIN
    assert all(abs(link["applied"]["emulates"] / link["asked"]["rate"] - 1) <= 1e-3 for link in links)


def test_docker_agrees_with_netns(bandwidth: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    if reason := docker_lack():
        pytest.skip(reason)
    there = run(tmp_path, "bandwidth.yaml", "--lab", "docker", "--only", "nodes=2,rate=1gbit")
    for name, case in there.items():
        here = bandwidth[name]["measured"]["step_time"]["value"]
        assert case["measured"]["step_time"]["value"] == pytest.approx(here, rel=0.05)


def test_two_clusters_are_as_slow_as_their_line(tmp_path: Path) -> None:
    """200 Mb/s and 20 ms between them: bytes exact, step time within 10 % of the formula."""
    cases = run(tmp_path, "wan.yaml", "--lab", "netns", "--only", "*rate=200mbit")
    (case,) = (case for case in cases.values() if case["params"]["nodes"] == 4)
    assert {check["metric"]: check["status"] for check in case["checks"]} == {
        "payload_tx": "pass",
        "step_time": "pass",
    }
    line = {link["direction"]: link for link in case["links"] if link["name"] == "us-eu"}
    assert all(link["measured"]["rtt"] == pytest.approx(0.02, rel=0.05) for link in line.values())
    print(f"two clusters: step {error(case, 'step_time'):+.2%}, payload {error(case, 'payload_tx'):+.4%}")


def test_digits_are_learnt(tmp_path: Path) -> None:
    cases = run(tmp_path, "accuracy/digits.yaml", "--lab", "netns")
    assert all(check["metric"] == "payload_tx" for case in cases.values() for check in case["checks"])
    assert all(case["measured"]["loss"]["value"] < 1.0 for case in cases.values())


CHEAPEST = {  # of each other scenario a case of two nodes that takes least; dreambooth.yaml's takes two minutes
    "allreduce": "nodes=2,size=1MiB",
    "amortise": "nodes=2,accumulate=1",
    "batch": "nodes=2,batch=8",
    "exchange-cost": "nodes=2,size=25MiB",
    "frequency": "nodes=2,model=resnet18,compute=throughput:100_samples_s,accumulate=1",
    "lora": "nodes=2",
    "nodes": "nodes=2,model=resnet18",
    "parameter-server": "nodes=2,exchange=parameter_server",
    "send-less": "nodes=2,exchange=quantized,rate=1gbit",
    "shrink": "nodes=2,model=vgg16-quarter",
    "small-packets": "nodes=2,bucket_cap=25MiB,mtu=576",
}


@pytest.mark.parametrize("scenario", CHEAPEST)
def test_two_nodes_pass(scenario: str, tmp_path: Path) -> None:
    """Each experiment's file once, in its cheapest case: bytes and, where they are judged, times as predicted."""
    few = ("--set", "nodes=2") if scenario in ("amortise", "batch") else ()  # which have four throughout
    cases = run(tmp_path, f"{scenario}.yaml", "--lab", "netns", "--only", CHEAPEST[scenario], *few)
    (case,) = (case for case in cases.values() if case["params"]["nodes"] == 2)
    assert {check["metric"] for check in case["checks"]} >= {"payload_tx"}


TOO_SLOW = "+11 to +29 % where 8 are allowed: ranks scatter and compute slower beside an exchange (docs/limitations.md)"


@pytest.mark.parametrize(
    "rate", ["100mbit", pytest.param("1gbit", marks=pytest.mark.xfail(reason=TOO_SLOW, strict=False))]
)
def test_real_compute_is_predicted(rate: str, tmp_path: Path) -> None:
    """Two nodes on two cores, from a one-node run beside a silent sibling: within 8 %."""
    cases = run(tmp_path, "accuracy/real.yaml", "--lab", "netns", "--only", f"nodes=2,*rate={rate}")
    many = [case for case in cases.values() if case["params"]["nodes"] == 2]
    assert len(many) == 2
    assert all(abs(error(case, "step_time")) <= 0.08 for case in many)
