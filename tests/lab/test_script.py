"""Commands of a person's own in each lab: what they find on their node, and what they leave there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rig.lab import outputs
from rig.lab.outcome import Outcome
from rig.node.files import MOST_COPIED
from tests.lab.scripts import Stage


def said(outcome: Outcome) -> list[dict[str, Any]]:
    """The notes that a script made of itself, by rank."""
    return sorted((note for note in outcome.notes if note["event"] == "note"), key=lambda note: int(note["rank"]))


# ── what a rank finds ────────────────────────────────────────────────────────────────────────────────
FOUND = """
    import rig
    names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "RIG_WARMUP", "RIG_STEPS")
    tell("note", cwd=os.getcwd(), given=[os.environ[name] for name in names], read=sys.stdin.read(), first=sys.path[0],
         python=sys.executable, node=socket.gethostname())
    print(json.dumps({"event": "step", "text": 5}))  # words, whatever they look like
    joined(), steps(8)
"""


def test_what_a_rank_finds(stage: Stage) -> None:
    outcome = stage.run(FOUND, 1, 2, steps=2)
    address = stage.order.case.nodes[0].address
    assert [note["given"][:5] for note in said(outcome)] == [
        ["3", "0", "1", "0", address], ["3", "0", "2", "1", address], ["3", "1", "2", "1", address],
    ]  # fmt: skip
    for note in said(outcome):
        assert note["cwd"] == note["first"] == str(stage.folder), "it runs in its folder, and finds what is beside it"
        assert note["given"][5:] == ["3", "2"]
        assert note["read"] == "", "there is nothing on its standard input"
    assert [note["node"] for note in said(outcome)] == ["n0", "n1", "n1"]
    assert [sum(step["rank"] == rank for step in outcome.steps) for rank in range(3)] == [5, 5, 5], "two, and warm-up"
    assert sum('{"event": "step", "text": 5}' in line for line in outcome.log) == 3


WRITES = """
    for name in ("made.txt", "train.py"):
        try:
            open(name, "a").write("#")
            tell("note", name=name, there=sorted(os.listdir(".")))
        except OSError as error:
            tell("note", name=name, error=error.errno)
    joined(), steps(4)
"""
READ_ONLY = 30  # EROFS


def test_its_folder_cannot_be_written(stage: Stage) -> None:
    assert {note["error"] for note in said(stage.run(WRITES))} == {READ_ONLY}
    assert [path.name for path in stage.folder.iterdir()] == ["train.py"]


def test_a_copy_can_be_written_and_is_new_in_each_repeat(stage: Stage) -> None:
    (stage.folder / "data.csv").write_text("1,2\n", encoding="utf-8")
    (stage.folder / ".hidden").touch()
    for _ in range(2):
        notes = said(stage.run(WRITES, files="copied"))
        assert [note["there"] for note in notes] == [["data.csv", "made.txt", "train.py"]] * 4
    assert sorted(path.name for path in stage.folder.iterdir()) == [".hidden", "data.csv", "train.py"]
    assert not (stage.folder / "train.py").read_text(encoding="utf-8").endswith("#")


def test_a_folder_that_is_too_large_to_copy(stage: Stage) -> None:
    with (stage.folder / "data.bin").open("wb") as file:
        file.truncate(MOST_COPIED + 1)
    told = stage.refused("steps(4)", files="copied")
    assert f"copy {stage.folder}: it holds more than 256 MiB, and every node gets a copy; keep data outside" in told


# ── what it leaves ───────────────────────────────────────────────────────────────────────────────────
LEAVES = """
    out = os.environ["RIG_OUT"]
    os.makedirs(out + "/sub", exist_ok=True)
    with open(f"{out}/sub/{RANK}.bin", "wb") as file:
        file.write(bytes(100_000))
    os.symlink("/etc/passwd", f"{out}/link{RANK}")
    os.mkfifo(f"{out}/pipe{RANK}")
    joined(), steps(4)
"""


def test_outputs_are_collected_from_every_node(stage: Stage) -> None:
    stage.run(LEAVES, 1, 2)
    assert {path.relative_to(stage.out).as_posix(): path.stat().st_size for path in files(stage.out)} == {
        "n0/sub/0.bin": 100_000, "n1/sub/1.bin": 100_000, "n1/sub/2.bin": 100_000,
    }  # fmt: skip
    assert stage.told == []


def test_outputs_of_a_repeat_and_of_a_failure(stage: Stage) -> None:
    stage.refused(LEAVES + "    sys.exit(3)", repeat=1, repeats=2)
    assert [path.relative_to(stage.out).parts[0] for path in files(stage.out)] == ["n0.2", "n1.2"]


def test_outputs_without_end_are_cut_with_a_warning(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST", 2**16)
    stage.run(LEAVES)
    assert files(stage.out) == []
    assert [line.partition(":")[0] for line in stage.told] == ["node n0", "node n1"]
    assert "the rest of it is lost" in stage.told[0]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
