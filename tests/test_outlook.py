"""What `rig plan` says of a network, on a terminal of 80 columns."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rig import outlook, scenario
from rig.plan import expand

SHIPPED = sorted((Path(__file__).parent.parent / "scenarios").rglob("*.yaml"))

FULL = """\
name: full
link: {rate: 1gbit, rtt: 4ms}
clusters: {us: {nodes: 2}, eu: {nodes: 1, link: {jitter: 100us}}}
wan: {rate: 100mbit, rtt: 20ms, up: {loss: {enter: 1%, leave: 30%}, reorder: 1%, duplicate: 0.1%}}
workload: {kind: allreduce, size: 1MiB}
timeline:
  - {at: 10s, link: n1, rate: 10mbit}
  - {at: 5s, link: us-eu, outage: 8s}
  - {at: 7s, link: us-eu, rtt: 40ms, down: {loss: 1%}}
background: [{link: n0, direction: up, rate: 200mbit}]
"""


def shown(text: str, source: str = "x.yaml") -> list[str]:
    cases = expand(scenario.loads(text, source), 2)
    output = StringIO()
    Console(width=80, file=output).print(outlook.table("x", cases, outlook.Basis()))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return [" ".join(line.split()) for line in lines]


def test_a_network_with_everything() -> None:
    lines = shown(FULL)
    expected = [
        "links: every node by one cable to its cluster's switch",
        "us-eu 8 100mbit 94.15 Mb/s 12.30 Mb/s 128KiB 550.0 kB 1500",
        "link delay jitter loss duplicate reorder",  # nothing is corrupted, so no column for it
        "n0…n1 1ms – – – –",
        "n2 1ms 100us normal – – –",
        "us-eu up 10ms – 3.226% bursty 0.1% 1%",
        "us-eu down 10ms – – – –",
        "inside us 4.000 ms 1.000 Gb/s",
        "us and eu 24.00 ms 100.0 Mb/s",
        "n0 always 200mbit of other traffic up",
        "us-eu 5s pulled out",
        "us-eu 7s up: delay 20ms; down: delay 20ms, loss 1%",
        "n1 10s rate 10mbit",
        "us-eu 13s plugged in again",
    ]
    found = [line for line in lines if line in expected]
    assert found == expected


def test_a_plain_network_has_none_of_it() -> None:
    lines = shown("name: x\nnodes: 2\nlink: {rate: 1gbit}\nworkload: {kind: allreduce, size: 1MiB}\n")
    assert not [line for line in lines if "delay" in line or "from node to node" in line or "while ranks" in line]


def test_a_long_trace_is_cut(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("".join(f"{second},{second + 1}mbit\n" for second in range(50)), encoding="utf-8")
    text = "name: x\nnodes: 2\nlink: {rate: 1gbit}\nworkload: {kind: allreduce, size: 1MiB}\n"
    lines = shown(text + "timeline: [{trace: t.csv, link: n1}]\n", str(tmp_path / "x.yaml"))
    assert "n1 11s rate 12mbit" in lines
    assert "n1 12s rate 13mbit" not in lines
    assert any(line.endswith("emulated; and 38 more") for line in lines)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_fit(path: Path) -> None:
    assert shown(path.read_text(encoding="utf-8"), str(path))


# ── the cases ────────────────────────────────────────────────────────────────────────────────────────
PACED = """\
name: paced
nodes: 4
link: {rate: 1gbit}
workload: {kind: ddp, model: resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}}
"""


def test_every_case_has_its_name_and_its_figures() -> None:
    lines = shown(PACED)
    at = lines.index("nodes=4")
    assert lines[at - 4] == "k sent step ± exposed samples/s speed-up eff. limit"
    assert lines[at - 2 : at] == ["nodes=1 (baseline)", "1 0 B 187.1 ms 1.0% 0 s 171 1.00 100% compute"]
    assert lines[at + 1] == "2 153.5 MB 1.370 s 1.5% 1.183 s 93.43 0.55 14% link"
    assert lines[at + 2].startswith("k: dilation; sent: TCP payload of one node in a step; ±: what the step may be")


def test_a_job_has_its_time() -> None:
    text = PACED.replace("batch: 32", "batch: 32, train: {epoch: 1281167, epochs: 90}")
    lines = shown(text)
    assert "k sent step ± exposed samples/s speed-up eff. in all limit" in lines
    assert "2 153.5 MB 1.370 s 1.5% 1.183 s 93.43 0.55 14% 14.3 d link" in lines


def test_an_allreduce_has_other_figures() -> None:
    lines = shown("name: x\nnodes: 2\nlink: {rate: 1gbit}\nworkload: {kind: allreduce, size: 25MiB}\n")
    assert "k sent step ± bus rate limit" in lines
    assert "1 26.22 MB 222.8 ms 1.5% 941.3 Mb/s link" in lines


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            PACED.replace("1gbit", "1gbit, loss: 1%"),
            "unknown: no formula tells how long an exchange takes there (loss)",
        ),
        (
            PACED.replace(
                "resnet50, batch: 32, compute: {profile: resnet50-gtx1080ti}", "cnn, batch: 8, compute: real"
            ),
            "unknown: real compute is unknown until a one-node run; then give --from RUN",
        ),
    ],
    ids=["loss", "real"],
)
def test_what_is_unknown_is_said_so(text: str, why: str) -> None:
    lines = shown(text)
    (row,) = (line for line in lines if " MB unknown" in line)
    assert not any(character.isdigit() for character in row.partition("unknown")[2])
    assert any(line.startswith(why) for line in lines)


def test_a_long_name_has_a_line_of_its_own() -> None:
    text = PACED + "sweep: {workload.compute: [{forward: 12.345ms, backward: 24.69ms, optimizer: 1ms}], seed: [7]}\n"
    lines = shown(text)
    assert "nodes=4,compute=forward:12.345ms+backward:24.69ms+optimizer:1ms,seed=7" in lines


def test_the_document_has_all_of_a_case() -> None:
    (baseline, case) = json.loads(outlook.document(expand(scenario.loads(PACED, "x.yaml"), 2), outlook.Basis()))[
        "cases"
    ]
    assert (baseline["bottleneck"], case["bottleneck"]) == ("compute", "link")
    step = case["predicted"]["step_time"]
    assert step["low"] < step["value"] < step["high"]
    assert step["inputs"]["confidence"]["regime"]["name"] == "links without delay"
    assert case["workload"]["table"] == "resnet50"
    assert [node["name"] for node in case["nodes"]] == ["n0", "n1", "n2", "n3"]
    assert case["nodes"][3]["link"]["up"]["rate"] == 10**9


def test_the_document_tells_what_each_cable_is_told() -> None:
    (entry,) = json.loads(outlook.document(expand(scenario.loads(FULL, "x.yaml"), 2), outlook.Basis()))["cases"]
    assert set(entry["built"]) == {"n0", "n1", "n2", "us-eu"}
    wan = entry["built"]["us-eu"]["kernel"]
    assert wan["up"]["rate"] == round(1e8 / 8 / 8 * 1514 / 1538)
    assert wan["up"]["transit"]["delay"] == wan["down"]["transit"]["delay"] == 80_000_000
    assert (wan["up"]["transit"]["enter"], wan["down"]["transit"]["enter"]) == (10**7, 0)
