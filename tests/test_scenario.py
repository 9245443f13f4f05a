"""Scenario files: what is accepted, and the exact words and place of what is not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rig import scenario
from rig.errors import ScenarioError
from rig.scenario.network import sources
from rig.units import Rate

HERE = Path(__file__).parent
SHIPPED = sorted(
    path for where in ("", "accuracy/", "scripts/") for path in (HERE.parent / "scenarios").glob(f"{where}*.yaml")
)
BAD = sorted((HERE / "scenarios" / "bad").glob("*.yaml"))

PLAIN = """\
name: plain
nodes: 2
link: {rate: 1gbit}
workload: {kind: allreduce, size: 1MiB}
"""


def refusal(text: str, *sets: str) -> str:
    with pytest.raises(ScenarioError) as error:
        scenario.loads(text, "x.yaml", sets)
    return str(error.value)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_file_is_told_exactly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)  # a trace's path counts from the scenario's folder
    with pytest.raises(ScenarioError) as error:
        scenario.loads(path.read_text(encoding="utf-8"), path.name)
    assert str(error.value) == path.with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenario_is_accepted(path: Path) -> None:
    loaded = scenario.load(path)
    assert loaded.name == path.stem
    assert loaded.description.endswith("?")
    assert loaded.text.startswith("# ")


def test_starter_is_accepted() -> None:
    assert len(scenario.loads(scenario.starter("mine"), "mine.yaml").cells) == 4
    with pytest.raises(ScenarioError, match="cannot name"):
        scenario.starter("a/b")


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────
def _no_file(path: Path) -> str:
    path.with_name("bandwidth.yaml").touch()
    return f"no such file; did you mean {path.with_name('bandwidth.yaml')}?"


def _folder(path: Path) -> str:
    path.mkdir()
    return "it is a folder"


def _pipe(path: Path) -> str:
    os.mkfifo(path)
    return "it is a device or a pipe"


def _huge(path: Path) -> str:
    path.write_bytes(b"#" * (2**20 + 1))
    return "larger than 1 MiB"


def _latin(path: Path) -> str:
    path.write_bytes(b"name: x\ndescription: caf\xe9\n")
    return ":2: read the scenario: it is not UTF-8"


def _loop(path: Path) -> str:
    path.symlink_to(path)
    return "read the scenario"


@pytest.mark.parametrize("arrange", [_no_file, _folder, _pipe, _huge, _latin, _loop])
def test_unreadable_file(arrange: Callable[[Path], str], tmp_path: Path) -> None:
    path = tmp_path / "bandwith.yaml"
    expected = arrange(path)
    with pytest.raises(ScenarioError) as error:
        scenario.load(path)
    assert expected in str(error.value)
    assert str(path) in str(error.value)


def test_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(PLAIN, encoding="utf-8-sig")
    assert scenario.load(path).name == "plain"


def test_data_folder_is_the_scenario_files_own(tmp_path: Path) -> None:
    (tmp_path / "cifar").mkdir()
    path = tmp_path / "x.yaml"
    workload = "workload: {kind: ddp, model: cnn, batch: 8, compute: real, data: cifar}\n"
    path.write_text(PLAIN.partition("workload")[0] + workload, encoding="utf-8")
    assert scenario.load(path).cells[0].written.workload.computes_real


# ── --set ────────────────────────────────────────────────────────────────────────────────────────────
def test_set_replaces_adds_and_sweeps() -> None:
    loaded = scenario.loads(PLAIN, "x.yaml", ["link.rate=2.5gbit", "tcp.congestion=reno", "sweep.nodes=[1, 4]"])
    written = loaded.cells[1].written
    assert (written.link.rate, written.tcp.congestion, written.nodes) == (Rate.parse("2.5gbit"), "reno", 4)
    assert loaded.resolved["link"] == {"rate": "2.5gbit"}
    assert loaded.text == PLAIN


def test_setting_a_swept_path_ends_its_sweep() -> None:
    swept = PLAIN + "sweep: {nodes: [1, 2], repeats: [1, 2]}\n"
    assert scenario.loads(swept, "x.yaml", ["nodes=4"]).sweep == {"repeats": (1, 2)}
    sizes = PLAIN.replace("size: 1MiB", "sizes: [1MiB, 2MiB]")
    assert len(scenario.loads(sizes, "x.yaml").cells) == 2
    assert len(scenario.loads(sizes, "x.yaml", ["workload.size=4KiB"]).cells) == 1
    assert scenario.loads(sizes, "x.yaml", ["workload.sizes=[4KiB]"]).sweep == {"workload.size": ("4KiB",)}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("link.rate=1G", "--set link.rate=1G: link.rate: 1G is no rate: unknown unit 'G'; did you mean 1gbit?"),
        ("link.rat=1gbit", "--set link.rat=1gbit: link.rat: unknown key; did you mean rate?"),
        ("nodes", "--set nodes: write it as path=value"),
        ("=1", "--set =1: write it as path=value"),
        ("a..b=1", "--set a..b=1: write it as path=value"),
        ("nodes.x=1", "--set nodes.x=1: x cannot be set"),
        ("nodes=[1", "--set nodes=[1:1:3: not YAML"),
        ("sweep=3", "--set sweep=3: sweep: needs a mapping"),
    ],
)
def test_set_is_refused_by_its_own_name(argument: str, expected: str) -> None:
    assert refusal(PLAIN, argument).startswith(expected)


# ── what goes together ───────────────────────────────────────────────────────────────────────────────
def test_a_case_from_another_tool_bare_burst_passes_nothing() -> None:
    assert "no packet would pass" in refusal(PLAIN.replace("1gbit", "10gbit, burst: 1500"))
    assert "no packet would pass" in refusal(PLAIN.replace("1gbit", "10gbit, mtu: 9000, burst: 1514B"))
    scenario.loads(PLAIN.replace("1gbit", "10gbit, burst: 1514B"), "x.yaml")


def test_sweeping_every_kind_of_place() -> None:
    text = PLAIN + "sweep:\n  machines.n1.link.rate: [10mbit, 1gbit]\n  env.MODE: [a, b]\n  link.up: [{rate: 1mbit}]\n"
    cells = scenario.loads(text, "x.yaml").cells
    assert [cell.written.env["MODE"] for cell in cells] == ["a", "b", "a", "b"]
    first, second = sources(cells[0].written).values()
    assert second.find("rate", "up") == (("machines", "n1", "link", "rate"), Rate.parse("10mbit"))
    assert first.find("rate", "up") == (("link", "up", "rate"), Rate.parse("1mbit"))
    assert first.find("rate", "down") == (("link", "rate"), Rate.parse("1gbit"))


CLUSTERS = """\
name: clusters
link: {rate: 1gbit}
clusters: {us: {nodes: 2}, eu: {nodes: 2}}
wan: [{between: [us, eu], rate: 200mbit, rtt: 20ms}]
workload: {kind: allreduce, size: 1MiB}
"""


def test_sweeping_clusters_and_items_of_lists() -> None:
    text = CLUSTERS + "sweep: {wan.0.rate: [100mbit, 1gbit], clusters.us.nodes: [1, 3], link.loss: [0%, 1%]}\n"
    cells = scenario.loads(text, "x.yaml").cells
    assert [cell.written.size for cell in cells] == [3, 3, 5, 5] * 2
    assert sources(cells[-1].written)["us-eu"].impairment("down").rate == Rate.parse("1gbit")
    assert scenario.loads(CLUSTERS, "x.yaml", ["wan.0.rtt=4ms", "clusters.eu.link.delay=1ms"]).cells
    assert refusal(CLUSTERS, "wan.1.rate=1gbit").startswith("--set wan.1.rate=1gbit: 1 cannot be set")


def test_machines_may_be_of_the_largest_cell() -> None:
    swept = CLUSTERS + "sweep: {clusters.eu.nodes: [1, 4]}\n"
    assert scenario.loads(swept, "x.yaml", ["machines.n5.link.rate=10mbit"]).cells
    assert "the largest node count is 6" in refusal(swept, "machines.n6.link.rate=10mbit")


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, value in (("delay", "0ms"), ("rtt", "0ms"), ("jitter", "0ms"), ("loss", "0%"))]
    + [(key, "0%") for key in ("duplicate", "corrupt", "reorder")]
    + [("loss", "{enter: 0%, leave: 0%}"), ("distribution", "uniform, jitter: 0ms")],
)
def test_nothing_at_all_is_valid_everywhere(key: str, value: str) -> None:
    places = [
        "link: {rate: 1gbit, %s}",
        "link: {rate: 1gbit, down: {%s}}",
        "link: {rate: 1gbit}\nmachines: {n1: {link: {%s}}}",
    ]
    for place in places:
        if key == "rtt" and "down" in place:
            continue
        text = PLAIN.replace("link: {rate: 1gbit}", place % f"{key}: {value}")
        assert not any(
            source.impairment(way).in_transit
            for source in sources(scenario.loads(text, "x.yaml").cells[0].written).values()
            for way in ("up", "down")
        )


def test_a_wrong_part_of_the_clusters_is_told_alone() -> None:
    told = refusal(CLUSTERS.replace("us: {nodes: 2}", "US: {nodes: 2}"))
    assert "US cannot name a cluster" in told and "\n" not in told
    assert "\n" not in refusal(CLUSTERS.replace("clusters: {us: {nodes: 2}, eu: {nodes: 2}}", "clusters: 3"))


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────────
BLOCKS = """\
sweep:
  - {nodes: [2, 4], link.rate: [1gbit, 10gbit]}
  - {nodes: [8], repeats: [3]}
"""


def test_blocks_come_together() -> None:
    loaded = scenario.loads(PLAIN + BLOCKS, "x.yaml")
    assert [dict(cell.params) for cell in loaded.cells] == [
        {"nodes": 2, "link.rate": "1gbit"},
        {"nodes": 2, "link.rate": "10gbit"},
        {"nodes": 4, "link.rate": "1gbit"},
        {"nodes": 4, "link.rate": "10gbit"},
        {"nodes": 8, "repeats": 3},
    ]
    assert loaded.cells[-1].written.link.rate == Rate.parse("1gbit")  # a path of another block is as it stands
    assert loaded.sweep == {"nodes": (2, 4, 8), "link.rate": ("1gbit", "10gbit"), "repeats": (3,)}


def test_machines_may_be_of_the_largest_block() -> None:
    assert scenario.loads(PLAIN + BLOCKS, "x.yaml", ["machines.n7.link.rate=10mbit"]).cells
    assert "the largest node count is 8" in refusal(PLAIN + BLOCKS, "machines.n8.link.rate=10mbit")


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("[]", "x.yaml:5:8: sweep: needs a mapping {dotted path: [values]}, or a list of such mappings, found []"),
        ("[{nodes: [2]}, 3]", "x.yaml:5:23: sweep.1: needs a mapping {dotted path: [values]}, or a list"),
        ("[{nodes: [2]}, {nodes: []}]", "x.yaml:5:31: sweep.1.nodes: needs a list of at least one value, found []"),
        ("[{nodes: [2]}, {name: [a]}]", "x.yaml:5:24: sweep.1.name: cannot be swept: one run has one of it"),
        ("[{nodes: [2]}, {link.x: [1]}]", "x.yaml:5:24: link.x: unknown key"),
        ("[{nodes: [2]}, {nodes.x: [1]}]", "x.yaml:5:24: sweep.1.nodes.x: no such key"),
        ("[{nodes: [2]}, {nodes: [4, 4]}]", "x.yaml:5:35: sweep.1.nodes: 4 is 4 again; write each value once"),
        (
            "[{nodes: [2, 4], link.rate: [1gbit]}, {nodes: [4], link.rate: [1000mbit]}]",
            "x.yaml:5:46: sweep.1: its cell {nodes: 4, link.rate: 1000mbit} is one of sweep.0 already; "
            "write each cell once",
        ),
        ("[{}, {nodes: [2]}]", "x.yaml:5:13: sweep.1: its cell {nodes: 2} is one of sweep.0 already"),
    ],
)
def test_a_wrong_block_is_told_with_its_place(sweep: str, expected: str) -> None:
    told = refusal(f"{PLAIN}sweep: {sweep}\n")
    assert told.startswith(expected)
    assert "\n" not in told


def test_blocks_count_together() -> None:
    swept = ", ".join(f"{{nodes: [{index + 1}], seed: {list(range(350))}}}" for index in range(3))
    told = refusal(f"{PLAIN}sweep: [{swept}]\n")
    assert told == "x.yaml:5:8: sweep: makes 1050 cases, and more than 1000 are refused; sweep fewer values"


def test_setting_a_path_that_blocks_sweep() -> None:
    def cells(*sets: str) -> list[dict[str, object]]:
        return [dict(cell.params) for cell in scenario.loads(PLAIN + BLOCKS, "x.yaml", sets).cells]

    assert cells("link.rate=2.5gbit") == [{"nodes": 2}, {"nodes": 4}, {"nodes": 8, "repeats": 3}]
    assert cells("nodes=3") == [{"link.rate": "1gbit"}, {"link.rate": "10gbit"}, {"repeats": 3}]
    assert cells("nodes=3", "link.rate=1gbit", "repeats=3") == [{}]  # what has become alike is one
    assert cells("sweep.1.nodes=[16, 32]")[-2:] == [{"nodes": 16, "repeats": 3}, {"nodes": 32, "repeats": 3}]
    assert cells("sweep={nodes: [2]}") == [{"nodes": 2}]


def test_sizes_go_with_every_block() -> None:
    text = PLAIN.replace("size: 1MiB", "sizes: [1MiB, 2MiB]") + BLOCKS
    assert len(scenario.loads(text, "x.yaml").cells) == 10


def test_the_schema_knows_blocks() -> None:
    block, several = scenario.schema()["properties"]["sweep"]["anyOf"]
    assert (block["type"], several["type"], several["items"]) == ("object", "array", block)


# ── traces ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"0,5mbit\n1,-2mbit\n", "t.csv:2: the rate -2mbit is negative"),
        (b"-1,5mbit\n", "t.csv:1: the time -1 is negative"),
        (b"0,5mbit\n2,5mbit\n1,5mbit\n", "t.csv:3: the time 1s is not after 2s, line 2"),
        (b"0,5mbit\n0,6mbit\n", "t.csv:2: the time 0ns is not after 0ns"),
        (b"", "t.csv: the trace is empty"),
        (b"# nothing\n\ntime,rate\n", "t.csv: the trace is empty"),
        (b"time,rate\nseconds,rate\n", "t.csv:2: the time seconds is no number of seconds"),
        (b"0,fast\n", "t.csv:1: 'fast' is not a rate"),
        (b"0,nan\n", "t.csv:1: 'nan' is not a rate"),
        (b"0,5G\n", "did you mean 5gbit?"),
        (b"0,1000\n", "t.csv:1: 1kbit is too slow"),
        (b"0 5mbit\n", "t.csv:1: needs a time and a rate"),
        (b"0,5mbit\n1,0\n", "t.csv:2: the last rate is 0"),
        (b"\xff\xfe", "t.csv: read the trace: 'utf-8' codec"),
        (b"".join(b"%d,5mbit\n" % second for second in range(100_001)), "t.csv:100001: more than 100000 lines"),
        (b" " * 6_400_001, "more than 100000 lines need"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_trace_is_told_by_its_own_line(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    path = tmp_path / "x.yaml"
    path.write_text(PLAIN + "timeline: [{trace: t.csv, link: n1}]\n", encoding="utf-8")
    with pytest.raises(ScenarioError) as error:
        scenario.load(path)
    assert str(error.value).startswith(f"{path}:5:20: timeline.0.trace: {tmp_path}/")
    assert expected in str(error.value)


@pytest.mark.parametrize("trace", ['"\\0"', ".", "no-such.csv", '""', "x" * 5000])
def test_no_trace_there(trace: str) -> None:
    assert "read the trace: " in refusal(PLAIN + f"timeline: [{{trace: {trace}, link: n1}}]\n")


def test_too_many_changes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("".join(f"{second},5mbit\n" for second in range(60_000)), encoding="utf-8")
    path = tmp_path / "x.yaml"
    path.write_text(PLAIN + "timeline: [{trace: t.csv, link: all}]\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="makes 120000 changes"):
        scenario.load(path)


def test_a_fault_of_the_sweep_hides_none_of_its_other_faults() -> None:
    text = PLAIN.replace("nodes: 2\n", "") + "sweep:\n  nodes: []\n  link.rate: [1gbit, 2gbit]\n"
    assert refusal(text) == "x.yaml:5:10: sweep.nodes: needs a list of at least one value, found []"
    assert refusal(text.replace("2gbit", "2G")).count("\n") == 1


def test_a_fault_in_a_value_that_the_sweep_replaces_is_told() -> None:
    told = refusal(PLAIN.replace("1gbit", "1000") + "sweep: {link.rate: [1gbit]}\n")
    assert told.startswith("x.yaml:3:14: link.rate: a rate needs a unit, found 1000")


def test_many_faults_are_cut_short() -> None:
    text = PLAIN + "".join(f"key{number}: 1\n" for number in range(60))
    assert refusal(text).endswith("… and 35 more")


def test_control_characters_do_not_reach_the_terminal() -> None:
    told = refusal(PLAIN + '"\\e[31mred\\n": 1\n')
    assert told.isprintable()
    assert told.startswith("x.yaml:5:1: ")


def test_half_a_character_is_refused() -> None:
    assert refusal(PLAIN + 'description: "\\ud800"\n').startswith("x.yaml:5:14: half a character")


# ── the JSON Schema ──────────────────────────────────────────────────────────────────────────────────
def test_schema_names_every_key() -> None:
    document = json.loads(json.dumps(scenario.schema()))
    assert {"name", "nodes", "link", "workload", "sweep", "expect"} <= set(document["properties"])
    assert {"clusters", "wan", "shaper", "seed", "timeline", "background", "probe"} <= set(document["properties"])
    assert {"delay", "rtt", "loss", "up", "mtu"} <= set(document["$defs"]["LinkKeys"]["properties"])
    assert document["required"] == ["name", "workload"]
    assert document["additionalProperties"] is False
    assert set(document["properties"]["workload"]["discriminator"]["mapping"]) == {"ddp", "allreduce", "script"}
