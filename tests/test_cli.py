"""The command line as a person meets it: exit codes, one sentence for what is wrong, and never a traceback."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.runs import RIG, ROOT, as_ordinary_user, rig, until

SMALL = "name: small\nlink: {rate: 1gbit}\nnodes: 1\nworkload: {kind: allreduce, size: 1KiB, steps: 2, warmup: 1}\n"
HEAVY = ("torch", "pandas", "docker", "matplotlib", "pydantic", "numpy", "pyroute2", "jinja2", "ruamel")
HELP = f"""
import sys
sys.argv = ["rig", "--help"]
from rig import cli
try:
    cli.main()
finally:
    sys.stderr.write(" ".join(name for name in {HEAVY!r} if name in sys.modules))
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    return file


# ── help ─────────────────────────────────────────────────────────────────────────────────────────────
def test_help_imports_nothing_heavy() -> None:
    answer = subprocess.run([sys.executable, "-c", HELP], check=True, capture_output=True, text=True, cwd=ROOT)
    assert "Usage:" in answer.stdout
    assert answer.stderr == ""


def test_help_is_quick() -> None:
    """In CPU time, the least of five, since others may keep the machine busy."""

    def once() -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert rig("--help").returncode == 0
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    assert min(once() for _ in range(5)) < 0.3


VERBS = [
    "run", "probe", "plan", "advise", "graph", "validate", "schema", "init", "report", "calibrate", "profile", "clean",
    "up", "exec", "status", "capture", "down", "doctor",
]  # fmt: skip


def test_help_lists_every_verb_in_a_whole_sentence() -> None:
    answer = rig("--help", env={"COLUMNS": "80"})
    lines = answer.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == VERBS
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)
    assert all(len(line) <= 80 for line in answer.stdout.splitlines())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    answer = rig(verb, "--help")
    assert answer.returncode == 0
    assert "Usage:" in answer.stdout
    assert answer.stderr == ""


# ── bad usage ────────────────────────────────────────────────────────────────────────────────────────
BAD = {
    "no verb at all": ([], "Usage:"),
    "an unknown verb": (["rum"], "rum"),
    "an unknown option": (["plan", "--fast", "{small}"], "--fast"),
    "no file named": (["run"], "FILE"),
    "a file that is missing": (["run", "nowhere.yaml"], "nowhere.yaml"),
    "a folder for a file": (["plan", "{folder}"], "{folder}"),
    "an unknown lab": (["run", "{small}", "--lab", "cloud"], "lab 'cloud' is unknown; there are netns, docker"),
    "a glob that names nothing": (["run", "{small}", "--only", "nodes=9*"], "--only 'nodes=9*': select cases: none"),
    "a setting without a value": (["plan", "{small}", "--set", "link.rate"], "link.rate"),
    "a setting that is no rate": (["plan", "{small}", "--set", "link.rate=1G"], "did you mean 1gbit"),
    "a setting of an unknown key": (["plan", "{small}", "--set", "link.rte=1gbit"], "rte"),
    "an unknown form of drawing": (["graph", "{small}", "--format", "gif"], "there are text, mermaid, svg"),
    "a drawing of no case": (["graph", "{small}", "--only", "nodes=9*"], "select cases: none"),
    "an unknown lab to probe": (["probe", "{small}", "--lab", "cloud"], "lab 'cloud' is unknown"),
    "an unknown lab to hold": (["up", "{small}", "--lab", "cloud"], "lab 'cloud' is unknown"),
    "a missing file to hold": (["up", "nowhere.yaml"], "nowhere.yaml"),
    "a missing file to check": (["doctor", "nowhere.yaml"], "nowhere.yaml"),
    "a count that is none": (["capture", "n0", "--count", "many"], "--count"),
    "a missing file to validate": (["validate", "{small}", "nowhere.yaml"], "nowhere.yaml"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_usage_is_exit_2_and_words(small: Path, what: str) -> None:
    arguments, said = BAD[what]
    names = {"{small}": str(small), "{folder}": str(small.parent)}
    given = [names.get(word, word) for word in arguments]
    answer = rig(*given, cwd=small.parent)
    assert answer.returncode == 2, answer.stderr
    assert names.get(said, said) in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr
    assert [path.name for path in small.parent.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"\x00", b"name: [", b"- 1", b"a: &a [*a]", b"[" * 3000])
@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_rubbish_never_shows_a_traceback(tmp_path: Path, verb: str, content: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    answer = rig(verb, tmp_path / "x.yaml")
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert "x.yaml" in answer.stderr


# ── verbs ────────────────────────────────────────────────────────────────────────────────────────────
def test_validate_counts_cases_and_says_every_error(small: Path) -> None:
    good = rig("validate", *sorted((ROOT / "scenarios").glob("*.yaml")))
    assert good.returncode == 0
    assert "bandwidth.yaml: 9 cases, no errors" in good.stdout
    small.write_text(SMALL.replace("1gbit", "1G").replace("nodes: 1", "nodes: x"), encoding="utf-8")
    bad = rig("validate", small)
    assert bad.returncode == 2
    assert "small.yaml:2:" in bad.stderr
    assert "small.yaml:3:" in bad.stderr


def test_plan_shows_cases_and_predictions() -> None:
    answer = rig("plan", "scenarios/bandwidth.yaml")
    assert answer.returncode == 0
    assert "bandwidth: 9 cases" in answer.stdout
    document = json.loads(rig("plan", "scenarios/bandwidth.yaml", "--json").stdout)
    assert len(document["cases"]) == 9
    assert all("step_time" in one["predicted"] for one in document["cases"])


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "docker", "pyroute2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from rig import cli
cli.main()
"""


@pytest.mark.parametrize("verb", [["plan"], ["plan", "--json"], ["validate"]])
def test_plan_needs_neither_torch_nor_docker_nor_root(verb: list[str]) -> None:
    argv = [*as_ordinary_user(), sys.executable, "-c", BLOCKED, *verb, "scenarios/bandwidth.yaml"]
    answer = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "nodes=4" in answer.stdout or "9 cases" in answer.stdout
    assert answer.stderr == ""


def test_probe_measures_links_alone(small: Path) -> None:
    answer = rig("probe", small, "--lab", "netns", "--json", "--no-lock")
    assert answer.returncode in (0, 4), answer.stderr  # a busy host may spoil the reading
    (network,) = json.loads(answer.stdout)["networks"]
    assert {link["name"] for link in network["links"]} == {"n0"}
    assert all(link["measured"]["goodput"] > 1e8 for link in network["links"])
    assert list(small.parent.iterdir()) == [small]


@pytest.mark.parametrize(("form", "said"), [("text", "1gbit"), ("mermaid", "n0"), ("svg", "<svg")])
def test_graph_draws_the_network(small: Path, form: str, said: str) -> None:
    answer = rig("graph", small, "--format", form)
    assert answer.returncode == 0, answer.stderr
    assert said in answer.stdout
    assert form == "svg" or all(len(line) <= 80 for line in answer.stdout.splitlines())


def test_schema_is_a_json_schema() -> None:
    document = json.loads(rig("schema").stdout)
    assert document["type"] == "object"
    assert {"name", "link", "workload", "sweep"} <= set(document["properties"])


def test_init_writes_a_scenario_that_plans_and_never_overwrites(tmp_path: Path) -> None:
    first = rig("init", "mine.yaml", cwd=tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    text = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert rig("plan", "mine.yaml", cwd=tmp_path).returncode == 0
    second = rig("init", "mine.yaml", cwd=tmp_path)
    assert second.returncode == 2
    assert second.stderr == "mine.yaml: write a starter: it is there already; name another file\n"
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == text
    assert rig("init", "no/such/folder.yaml", cwd=tmp_path).returncode == 2


def test_dry_run_builds_nothing(small: Path) -> None:
    answer = rig("run", small, "--dry-run", "--out", small.parent / "out")
    assert answer.returncode == 0
    assert "small: 1 cases" in answer.stdout or "small: 1 case" in answer.stdout
    assert not (small.parent / "out").exists()


def test_json_is_the_record_and_nothing_else_and_report_rebuilds(small: Path) -> None:
    answer = rig("run", small, "--lab", "netns", "--json", "--out", small.parent / "out")
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    (folder,) = (small.parent / "out").iterdir()
    assert document == json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert [case["status"] for case in document["cases"]] == ["pass"]
    made = {"report.html", "steps.csv", "links.csv", "trace.json", "junit.xml"}
    assert made <= {path.name for path in folder.iterdir()}
    for name in made:
        (folder / name).unlink()
    again = rig("report", folder)
    assert again.returncode == 0
    assert {Path(line).name for line in again.stdout.splitlines()} == made
    assert made <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("text", "said"), [(None, "there is none"), ("{", "damaged"), ('{"schema": 99}', "schema")])
def test_report_on_what_is_no_record(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "record.json").write_text(text, encoding="utf-8")
    answer = rig("report", tmp_path)
    assert answer.returncode == 3
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{' '.join(RIG)} plan scenarios/bandwidth.yaml --json | head -n 1"
    answer = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert answer.stdout == "{\n"
    assert "Traceback" not in answer.stderr
    assert "BrokenPipe" not in answer.stderr


def test_no_engine_is_one_sentence_and_exit_3(small: Path) -> None:
    env = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    answer = rig("run", small, "--lab", "docker", "--out", small.parent / "out", env=env)
    assert answer.returncode == 3
    assert "lab docker" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_installed_command() -> None:
    found = shutil.which("rig", path=os.path.dirname(sys.executable))
    if found is None:
        pytest.skip("the package is not installed here, only importable")
    answer = subprocess.run([found, "--help"], check=True, capture_output=True, text=True)
    assert "Usage:" in answer.stdout


@pytest.mark.parametrize(("redirect", "code"), [("| true", 0), (">&-", 0), (">/dev/full", 3)])
def test_an_output_that_is_gone_changes_no_verdict(redirect: str, code: int) -> None:
    """A reader that leaves early is no failure; a result that cannot be written is one, in a sentence."""
    command = f"{sys.executable} -m rig.cli plan scenarios/bandwidth.yaml {redirect}; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(
        ["bash", "-c", command], check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=60
    )
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_dry_run_keeps_to_only() -> None:
    answer = rig("run", "scenarios/bandwidth.yaml", "--dry-run", "--only", "nodes=2,rate=1gbit", "--json")
    cases = json.loads(answer.stdout)["cases"]
    assert [case["id"] for case in cases] == ["nodes=1,rate=1gbit", "nodes=2,rate=1gbit"]


def test_a_plan_from_a_run_of_other_work_is_refused(tmp_path: Path) -> None:
    scenario = tmp_path / "one.yaml"
    scenario.write_text(
        "name: one\nnodes: 1\nlink: {rate: 1gbit}\nworkload: {kind: allreduce, size: 64KiB, steps: 2}\n"
    )
    assert rig("run", scenario, "--lab", "netns", "--out", tmp_path / "out").returncode in (0, 4)
    (run,) = (tmp_path / "out").iterdir()
    answer = rig("plan", "scenarios/accuracy/digits.yaml", "--from", run)
    assert answer.returncode == 2
    assert "look for the same work on one node: that run has none" in answer.stderr


# ── several scenarios ────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two scenarios, a file that is none, and a scenario further down."""
    made = tmp_path / "several"
    (made / "deeper").mkdir(parents=True)
    for name in ("two", "one", "deeper/three"):
        (made / f"{name}.yaml").write_text(SMALL.replace("small", Path(name).name), encoding="utf-8")
    (made / "notes.txt").touch()
    return made


def test_a_folder_stands_for_its_scenarios_in_order(folder: Path) -> None:
    answer = rig("validate", folder)
    assert answer.stdout.splitlines() == [f"{folder}/{name}.yaml: 1 cases, no errors" for name in ("one", "two")]
    planned = rig("run", folder, "--dry-run", "--only", "nodes=1")
    assert planned.returncode == 0
    assert planned.stdout.index("one: 1 case") < planned.stdout.index("two: 1 case")


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_a_folder_without_scenarios_is_refused(tmp_path: Path, verb: str) -> None:
    answer = rig(verb, tmp_path)
    assert answer.returncode == 2
    assert answer.stderr == f"{tmp_path}: look for scenarios: the folder has no *.yaml; name another, or a file\n"


def test_every_broken_file_is_told_before_anything_runs(folder: Path) -> None:
    for name in ("broken", "worse"):
        (folder / f"{name}.yaml").write_text(SMALL.replace("1gbit", "1G"), encoding="utf-8")
    answer = rig("run", folder, "--lab", "netns", "--out", folder / "out")
    assert answer.returncode == 2
    assert [line.partition(":")[0] for line in answer.stderr.splitlines()] == [
        f"{folder}/broken.yaml", f"{folder}/worse.yaml",
    ]  # fmt: skip
    assert not (folder / "out").exists()


def test_what_only_does_not_name_is_left_out(folder: Path) -> None:
    (folder / "three.yaml").write_text(SMALL.replace("small", "three").replace("nodes: 1", "nodes: 2"), "utf-8")
    answer = rig("run", folder, "--dry-run", "--only", "nodes=2")
    assert answer.returncode == 0
    assert "three: 1 case" in answer.stdout and "one: 1 case" not in answer.stdout
    assert "one: no case is called 'nodes=2'; left out" in answer.stderr
    nothing = rig("run", folder, "--only", "nodes=9")
    assert nothing.returncode == 2
    assert nothing.stderr == "--only 'nodes=9': select cases: none matches in one, three, two\n"


def test_one_that_breaks_stops_no_other_and_one_page_tells_of_all(folder: Path) -> None:
    """The first wants an engine that does not answer. `rig report` makes the same page of the runs."""
    (folder / "engine.yaml").write_text(SMALL.replace("small", "engine") + "lab: docker\n", encoding="utf-8")
    out = folder / "out"
    answer = rig("run", folder, "--out", out, "--no-lock", env={"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    assert answer.returncode == 3
    assert "engine: lab docker: " in answer.stderr
    (page,) = out.glob("*-experiments/report.html")
    assert answer.stderr.splitlines()[-1] == f"experiments: {page}"
    runs = sorted(path for path in out.iterdir() if path != page.parent)
    assert [run.name.split("-")[1] for run in runs] == ["engine", "one", "two"]
    text = page.read_text(encoding="utf-8")
    assert all(f'href="../{run.name}/report.html"' in text for run in runs)
    again = rig("report", *runs, "--out", folder / "again")
    assert again.returncode == 0
    (second,) = (folder / "again").glob("*-experiments/report.html")
    assert again.stdout == f"{second}\n"
    assert second.read_text(encoding="utf-8").replace("../../out/", "../") == text


def test_an_interrupted_run_of_several_leaves_the_page(folder: Path) -> None:
    (folder / "two.yaml").write_text(SMALL.replace("small", "long").replace("steps: 2", "steps: 100000"), "utf-8")
    argv = [*RIG, "run", str(folder), "--lab", "netns", "--out", str(folder / "out"), "--no-lock"]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: list(folder.glob("out/*-long-*/record.json")))
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    (page,) = folder.glob("out/*-experiments/report.html")
    assert f"experiments: {page}" in said
    text = page.read_text(encoding="utf-8")
    assert "1 pass" in text and "1 skipped" in text
