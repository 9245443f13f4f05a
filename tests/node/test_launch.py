"""A launcher passes on what ranks say, says how they ended, and leaves none behind, children included."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.node import files
from rig.node.launch import LOG_LIMIT, TAIL
from rig.node.stream import Lines
from tests.lab.conftest import new_run, processes_of
from tests.lab.runs import ROOT, until

RANK = "import sys, json, os, time, signal, subprocess\n"


class Launcher:
    """`python -m rig.node.launch` under test, and what it has said."""

    def __init__(self) -> None:
        self.mark = new_run()
        env = os.environ | {"PYTHONPATH": str(ROOT), "RIG_RUN": self.mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rig.node.launch"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        self.heard: list[dict[str, Any]] = []
        self._lines = Lines()
        self._returned = 0  # events before it were returned by hear

    def say(self, document: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(document).encode() + b"\n")

    def start(self, *codes: str, cpus: list[int] | None = None) -> None:
        """One rank per piece of Python."""
        argvs = [[sys.executable, "-c", RANK + textwrap.dedent(code)] for code in codes]
        self.launch(*argvs, cpus=cpus)

    def launch(self, *argvs: list[str], cpus: list[int] | None = None) -> None:
        ranks = [
            {"rank": number, "argv": argv, "env": {"RANK": str(number)}, "job": {"n": number}}
            for number, argv in enumerate(argvs)
        ]
        self.say({"ranks": ranks, "cpus": cpus})

    def hear(self, *events: str, within: float = 20.0) -> dict[str, Any]:
        """The next event of these kinds, all before it kept in `heard`."""
        assert self.process.stdout
        end = time.monotonic() + within
        seen = self._returned
        while not (found := [one for one in self.heard[seen:] if one["event"] in events]):
            assert select.select([self.process.stdout], [], [], end - time.monotonic())[0], f"no {events} in time"
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            assert chunk, f"it ended without {events}"
            self.heard += self._lines.feed(chunk)
        self._returned = self.heard.index(found[0], seen) + 1
        return found[0]

    def end(self) -> list[dict[str, Any]]:
        """All it says up to its end; it must end by itself."""
        assert self.process.stdout
        self.heard += self._lines.feed(self.process.stdout.read())
        assert self.process.wait(5) == 0
        return self.heard

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.heard if one["event"] == event]

    def ranks(self) -> list[int]:
        """Processes that it started, and theirs."""
        return [pid for pid in processes_of(f"RIG_RUN={self.mark}") if pid != self.process.pid]


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.process.kill()
    made.process.wait()
    for pipe in (made.process.stdin, made.process.stdout):
        assert pipe
        pipe.close()
    until(lambda: not made.ranks(), 5)


# ── what it passes on ────────────────────────────────────────────────────────────────────────────────
def test_events_carry_their_rank_and_the_job_arrives(launcher: Launcher) -> None:
    launcher.start(*['print(json.dumps({"event": "job", "job": json.load(sys.stdin), "r": os.environ["RANK"]}))'] * 2)
    launcher.end()
    assert sorted((one["rank"], one["job"]["n"], one["r"]) for one in launcher.of("job")) == [(0, 0, "0"), (1, 1, "1")]
    assert sorted((one["rank"], one["code"]) for one in launcher.of("exit")) == [(0, 0), (1, 0)]


def test_megabytes_on_both_streams_are_passed_on_bounded_and_the_tail_kept(launcher: Launcher) -> None:
    launcher.start(
        """
        for n in range(40_000):
            print("out", n, "x" * 60)
            sys.stderr.write(f"err {n} " + "y" * 60 + "\\n")
        """
    )
    launcher.end()
    (leaving,) = launcher.of("exit")
    assert leaving["code"] == 0
    assert len(leaving["tail"]) == TAIL
    assert leaving["tail"][-1].startswith("err 39999 ")
    assert sum(len(one["text"]) for one in launcher.of("log")) <= LOG_LIMIT
    assert launcher.of("text")[-1]["text"].startswith("out 39999 ")


def test_stray_words_between_events(launcher: Launcher) -> None:
    launcher.start('print("hello"); print(json.dumps({"event": "step"})); print("{"); print("no end", end="")')
    launcher.end()
    assert [one["event"] for one in launcher.heard] == ["text", "step", "text", "text", "exit"]
    assert launcher.heard[-2]["text"] == "no end"


def test_a_rank_may_not_speak_for_another(launcher: Launcher) -> None:
    launcher.start('print(json.dumps({"event": "step", "rank": 7}))')
    launcher.end()
    assert launcher.of("step")[0]["rank"] == 0


def test_clock_answers_while_ranks_run(launcher: Launcher) -> None:
    launcher.start("time.sleep(30)")
    launcher.say({"do": "clock"})
    before = time.monotonic()
    assert abs(launcher.hear("clock")["at"] - before) < 5


def test_states_tell_who_stands_still(launcher: Launcher) -> None:
    up = 'print(json.dumps({"event": "up"}), flush=True);'
    launcher.start(f"{up} time.sleep(30)", f"{up} os.kill(os.getpid(), signal.SIGSTOP)")
    until(lambda: launcher.hear("up") and len(launcher.of("up")) == 2)
    time.sleep(0.2)
    launcher.say({"do": "states"})
    until(lambda: launcher.hear("state") and len(launcher.of("state")) == 2)
    assert {one["rank"]: one["state"] for one in launcher.of("state")} == {0: "S", 1: "T"}


def test_ranks_keep_to_the_nodes_cpus(launcher: Launcher) -> None:
    cpu = min(os.sched_getaffinity(0))
    launcher.start('print(json.dumps({"event": "on", "cpus": list(os.sched_getaffinity(0))}))', cpus=[cpu])
    launcher.end()
    assert launcher.of("on")[0]["cpus"] == [cpu]


# ── how ranks end ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(42)", 42),
        ("raise ValueError('odd')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.abort()", -6),
    ],
)
def test_exit_codes_and_signals(launcher: Launcher, code: str, status: int) -> None:
    launcher.start("sys.stderr.write('last words\\n'); sys.stderr.flush();" + code)
    launcher.end()
    (leaving,) = launcher.of("exit")
    assert leaving["code"] == status
    assert "last words" in leaving["tail"]
    assert abs(leaving["at"] - time.monotonic()) < 10


def test_an_exit_is_told_at_once(launcher: Launcher) -> None:
    launcher.start("time.sleep(30)", "sys.exit(3)")
    leaving = launcher.hear("exit")
    assert (leaving["rank"], leaving["code"]) == (1, 3)
    assert launcher.process.poll() is None


@pytest.mark.parametrize(("name", "status"), [("no-such-program", 127), ("/etc/hostname", 126)])
def test_a_program_that_cannot_be_started(launcher: Launcher, name: str, status: int) -> None:
    launcher.launch([sys.executable, "-c", "import time; time.sleep(30)"], [name])
    leaving = launcher.hear("exit")
    assert (leaving["rank"], leaving["code"]) == (1, status)
    assert name in leaving["tail"][-1]


# ── nobody is left ───────────────────────────────────────────────────────────────────────────────────
CHILD = 'subprocess.Popen(["sleep", "600"]);'


def test_children_that_a_rank_left_behind_are_killed(launcher: Launcher) -> None:
    """One of them holds the rank's pipes open, which must not delay the news."""
    began = time.monotonic()
    launcher.start(CHILD + "print('bye')")
    launcher.end()
    assert time.monotonic() - began < 10
    assert launcher.of("exit")[0]["code"] == 0
    until(lambda: not launcher.ranks(), 2)


STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN);"


@pytest.mark.parametrize("how", ["stdin", "stop", "SIGTERM"])
@pytest.mark.parametrize("rank", ["", CHILD, STUBBORN, "os.kill(os.getpid(), signal.SIGSTOP);"])
def test_ended_within_two_seconds(launcher: Launcher, how: str, rank: str) -> None:
    launcher.start(f'print(json.dumps({{"event": "up"}}), flush=True); {rank} time.sleep(600)')
    launcher.hear("up")
    time.sleep(0.1)
    began = time.monotonic()
    assert launcher.process.stdin
    if how == "stdin":
        launcher.process.stdin.close()
    elif how == "stop":
        launcher.say({"do": "stop"})
    else:
        launcher.process.terminate()
    launcher.end()
    assert time.monotonic() - began < 2
    assert launcher.of("exit")[0]["code"] in (-15, -9)
    until(lambda: not launcher.ranks(), 1)


def test_killing_the_launcher_kills_the_ranks(launcher: Launcher) -> None:
    launcher.start('print(json.dumps({"event": "up"}), flush=True); time.sleep(600)')
    launcher.hear("up")
    assert launcher.ranks()
    launcher.process.kill()
    until(lambda: not launcher.ranks(), 5)


# ── a command of the user's own ──────────────────────────────────────────────────────────────────────
SPEAK = """
import socket
door = socket.socket(socket.AF_UNIX)
door.connect("\\0" + os.environ["RIG_EVENTS"][1:])
def tell(**said):
    door.sendall(json.dumps(said).encode() + b"\\n")
"""


def own(launcher: Launcher, folder: Path, *codes: str, copied: bool = False) -> None:
    """One rank per piece of Python, run as a script in a folder."""
    for number, code in enumerate(codes):
        (folder / f"{number}.py").write_text(RANK + SPEAK + textwrap.dedent(code), encoding="utf-8")
    ranks = [
        {"rank": number, "argv": ["python", f"{number}.py"], "env": {"RANK": str(number)}, "job": None}
        for number in range(len(codes))
    ]
    scratch = folder.parent / "scratch"
    script = {"folder": str(folder), "copied": copied, "scratch": str(scratch), "first": 0, "count": len(codes)}
    launcher.say({"ranks": ranks, "cpus": None, "script": script})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "own"
    made.mkdir()
    return made


def test_a_script_speaks_by_the_socket_and_what_it_prints_is_words(launcher: Launcher, folder: Path) -> None:
    code = """
        print(json.dumps({"event": "step", "text": 7}))
        sys.stderr.write("10%\\r20%\\r\\n")
        tell(event="step", rank=0, step=4)
        tell(event="exit", rank=0, code=9)  # not its to say
        tell(event="step", rank=1, step=5)  # nor is that
        tell(event="log", rank=0, text="heard")
        os._exit(0)  # with all of it still unread
    """
    own(launcher, folder, code)
    launcher.end()
    assert launcher.heard[-1]["event"] == "exit", "all that was said comes before the end of who said it"
    assert (launcher.heard[-1]["code"], launcher.heard[-1]["rank"]) == (0, 0)
    assert [(one["rank"], one["step"]) for one in launcher.of("step")] == [(0, 4)]
    words = [one["text"] for one in launcher.of("log")]
    assert {'{"event": "step", "text": 7}', "20%", "heard"} <= set(words)


@pytest.mark.parametrize(("done", "code"), [({"failed": False}, 0), ({"failed": True}, -6), ({}, -6), (None, -6)])
def test_an_abort_after_the_end_of_a_script_is_none(
    launcher: Launcher, folder: Path, done: dict[str, bool] | None, code: int
) -> None:
    """What torch does to some processes that leave is not the script's; an abort on its way, or after a failure, is."""
    said = "" if done is None else f'tell(event="done", rank=0, steps=3, **{done})'
    own(launcher, folder, f"{said}\nos.abort()")
    launcher.end()
    assert launcher.heard[-1]["code"] == code
    words = [one["text"] for one in launcher.of("log")]
    assert any("aborted after its script had ended well" in text for text in words) == (code == 0)


def test_a_script_finds_its_folder_its_programs_and_the_rig(launcher: Launcher, folder: Path) -> None:
    code = """
        import rig, shutil, tempfile
        tell(event="note", rank=0, cwd=os.getcwd(), read=sys.stdin.read(), rig=rig.__file__,
             python=shutil.which("python"), out=os.environ["RIG_OUT"], temporary=tempfile.gettempdir(),
             path=sys.path[0])
    """
    own(launcher, folder, code)
    launcher.end()
    (note,) = launcher.of("note")
    assert note["cwd"] == note["path"] == str(folder)
    assert note["read"] == ""
    assert note["rig"] == str(ROOT / "rig" / "__init__.py")
    assert note["python"] == str(Path(sys.executable).parent / "python")
    scratch = folder.parent / "scratch"
    assert Path(note["out"]).is_relative_to(scratch) and Path(note["temporary"]).is_relative_to(scratch)


def test_a_copy_leaves_out_what_nobody_trains_with(launcher: Launcher, folder: Path) -> None:
    for name in (".git", "__pycache__", "reports/run", "data"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    (folder / "reports" / "run" / "record.json").touch()
    os.mkfifo(folder / "pipe")
    own(launcher, folder, 'tell(event="note", rank=0, there=sorted(os.listdir()), cwd=os.getcwd())', copied=True)
    launcher.end()
    (note,) = launcher.of("note")
    assert note["there"] == ["0.py", "data", "reports"]
    assert Path(note["cwd"]).is_relative_to(folder.parent / "scratch")


def test_a_folder_that_cannot_be_copied_is_refused(folder: Path) -> None:
    order = {"folder": str(folder / "gone"), "copied": True, "scratch": str(folder.parent / "scratch")}
    with pytest.raises(files.Refused, match=r"prepare .*gone: .*No such file"):
        files.prepared(order)


def test_states_tell_the_cpu_time_of_a_rank_and_its_children(launcher: Launcher) -> None:
    spin = "until = time.process_time() + 0.3\nwhile time.process_time() < until: pass\n"
    up = 'print(json.dumps({"event": "up"}), flush=True); time.sleep(30)'
    launcher.start(f"subprocess.run([sys.executable, '-c', {('import time' + chr(10) + spin)!r}]); {up}", up)
    until(lambda: launcher.hear("up") and len(launcher.of("up")) == 2)
    launcher.say({"do": "states"})
    until(lambda: launcher.hear("state") and len(launcher.of("state")) == 2)
    used = {one["rank"]: one["cpu"] for one in launcher.of("state")}
    assert used[0] - used[1] > 0.25


def test_a_daemon_is_ended_with_the_last_rank(launcher: Launcher) -> None:
    """In a session of its own, its parent gone: only who adopts orphans still knows whose it is."""
    launcher.start('subprocess.run(["sh", "-c", "setsid sleep 600 &"])')
    launcher.end()
    assert launcher.ranks() == []


def test_no_order_no_rank(launcher: Launcher) -> None:
    assert launcher.process.stdin
    launcher.process.stdin.close()
    assert launcher.end() == []


def test_the_launcher_needs_nothing_of_the_rig() -> None:
    """It is carried to a node as it is: standard library only."""
    code = "import sys, rig.node.launch; print(*(name for name in sys.modules if name.startswith('rig')))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert {name.rpartition(".")[0] for name in answer.stdout.split()} == {"", "rig", "rig.node"}
    assert Path(ROOT, "rig", "node", "launch.py").exists()
