"""What ranks of a lab are told of GPUs and of NCCL, and what becomes of NCCL's log; a script stands in for NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rig import cards
from tests.lab.scripts import Stage

LOGS = Path(__file__).parents[1] / "data" / "nccl"
NAMES = ("NCCL_HOSTID", "NCCL_ALGO", "NCCL_SOCKET_IFNAME", "NCCL_SHM_DISABLE", "CUDA_VISIBLE_DEVICES")
TALKS = f"""
    with open(os.environ["NCCL_DEBUG_FILE"], "w", buffering=1) as log:  # as NCCL opens it
        log.write(open("nccl.txt").read())
        log.write("n0:1:1 [0] init.cc:12 (init) NCCL WARN odd\\n")
    tell("note", given=[os.environ.get(name) for name in {NAMES}])
    joined(), steps(4)
"""


def run(stage: Stage, log: str, *nodes: int, **changes: Any) -> Any:
    (stage.folder / "nccl.txt").write_bytes((LOGS / f"{log}.txt").read_bytes())
    return stage.run(TALKS, *nodes, **changes)


def test_nccls_log_becomes_a_note_and_its_warnings_stay(stage: Stage) -> None:
    outcome = run(stage, "socket")
    found = [note for note in outcome.notes if note["event"] == "transport"]
    assert sorted(note["node"] for note in found) == ["n0", "n1"]
    assert {note["version"] for note in found} == {"2.28.9+cuda13.0"}
    assert {line.partition("NCCL ")[2] for line in outcome.log if "NCCL" in line} == {"WARN odd"}
    assert cards.told(stage.scripted(), outcome.notes)["nccl"]["bypass"] == ""


def test_a_bypass_is_one_between_nodes(stage: Stage) -> None:
    """The log says SHM from rank 0 to 1 and P2P from 1 to 2: over a border between nodes each is a bypass."""
    for nodes, said in (((1, 2), "n0 → n1 went by SHM"), ((2, 1), "n0 → n1 went by P2P")):
        outcome = run(stage, "shared-memory", *nodes)
        assert said in cards.told(stage.scripted(*nodes), outcome.notes)["nccl"]["bypass"]


def test_every_node_is_a_host_of_its_own_and_sees_cards_where_there_are_any(stage: Stage) -> None:
    outcome = run(stage, "socket", 1, 2, env={"NCCL_ALGO": "Tree"})
    given = {note["node"]: note["given"] for note in outcome.notes if note["event"] == "note"}
    assert given["n0"][:4] == ["n0", "Tree", "=eth0", "1"]
    assert given["n1"][:4] == ["n1", "Tree", "=eth0", None]
    assert {bool(of_node[4]) for of_node in given.values()} == {stage.lab.facts["gpu"]}
