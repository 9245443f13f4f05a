"""What only lab `docker` promises: whose containers it removes, what a node may do, plain words when it cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from rig.errors import LabError, LackError
from rig.lab import PACKAGE, Order, hosts_text, image, leftovers, open_lab
from rig.lab.daemon import TELLTALES, Telltale, available, explain
from tests.cases import case
from tests.lab.conftest import new_run, order, ran

ROOT = Path(__file__).resolve().parents[2]
HOLD_A_LAB = """
    import sys, time
    from rig.lab import open_lab
    from tests.lab.conftest import order
    print("opening", flush=True)
    with open_lab("docker", order(sys.argv[1])):
        print("open", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def client(with_docker: None) -> Iterator[docker.DockerClient]:
    found = docker.from_env()
    yield found
    found.close()


@pytest.fixture
def tag(with_docker: None) -> str:
    return image.ensure(print)


def containers_of(client: docker.DockerClient, run: str) -> list[str]:
    label = f"{leftovers.RUN}={run}"
    found = client.containers.list(all=True, ignore_removed=True, filters={"label": label})
    return [str(container.name) for container in found]


def holder(run: str) -> subprocess.Popen[str]:
    """An orchestrator of its own that holds a docker lab."""
    code = textwrap.dedent(HOLD_A_LAB)
    return subprocess.Popen([sys.executable, "-c", code, run], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout
    while (line := process.stdout.readline().strip()) != word:
        assert line, "the orchestrator ended early"


# ── clean ────────────────────────────────────────────────────────────────────────────────────────────
def test_clean_removes_a_dead_runs_containers_and_no_others(client: docker.DockerClient, tag: str) -> None:
    dead, living = new_run(), new_run()
    foreign = client.containers.create(tag, ["sleep", "60"], network_mode="none", labels={"rig.other": "x"})
    try:
        with open_lab("docker", order(living)), holder(dead) as orchestrator:
            wait_for(orchestrator, "open")
            assert len(containers_of(client, dead)) == 3
            orchestrator.kill()
            orchestrator.wait()
            told: list[str] = []
            removed, left = leftovers.clean(told.append)
            assert (removed, left) == (len(told), [])
            assert removed >= 3
            assert containers_of(client, dead) == []
            assert len(containers_of(client, living)) == 3
            foreign.reload()
    finally:
        foreign.remove(force=True)
    assert containers_of(client, living) == []


@pytest.mark.parametrize("after", [0.05, 0.4, 0.8])
def test_ctrl_c_while_opening_leaves_nothing(client: docker.DockerClient, tag: str, after: float) -> None:
    run = new_run()
    with holder(run) as orchestrator:
        wait_for(orchestrator, "opening")
        try:
            orchestrator.wait(after)
        except subprocess.TimeoutExpired:
            orchestrator.send_signal(signal.SIGINT)
        orchestrator.wait(20)
    assert containers_of(client, run) == []


def test_more_ctrl_c_while_closing_changes_nothing(client: docker.DockerClient, tag: str) -> None:
    run = new_run()
    with holder(run) as orchestrator:
        wait_for(orchestrator, "open")
        for _ in range(4):
            orchestrator.send_signal(signal.SIGINT)
            time.sleep(0.04)
        orchestrator.wait(20)
    assert orchestrator.returncode in (1, 130, -signal.SIGINT)
    assert containers_of(client, run) == []


def test_an_owner_is_that_process_and_no_later_one() -> None:
    me = leftovers.Owner.me()
    assert leftovers.Owner.read(str(me)) == me
    assert me.is_local
    assert me.lives
    assert not leftovers.Owner(me.pid, me.start + 1, me.boot, me.space).lives
    assert not leftovers.Owner(me.pid, me.start, "another boot", me.space).is_local
    assert leftovers.Owner.read("somebody else's words") is None


def test_an_owner_that_nobody_has_waited_for_is_gone() -> None:
    """A killed keeper is its dead parent's child: whoever takes it over may take its time to bury it."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        start = leftovers._start(child)
        me = leftovers.Owner.me()
        owner = leftovers.Owner(child, start, me.boot, me.space)
        assert owner.lives
        os.kill(child, signal.SIGKILL)
        until = time.monotonic() + 5
        while owner.lives and time.monotonic() < until:
            time.sleep(0.01)
        assert not owner.lives
    finally:
        os.waitpid(child, 0)


# ── a node ───────────────────────────────────────────────────────────────────────────────────────────
def test_a_node_may_do_nothing_but_compute(tag: str) -> None:
    with open_lab("docker", order(new_run())) as lab:
        status = ran(lab, "n0", ["cat", "/proc/self/status"]).stdout
        assert "CapEff:\t0000000000000000" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert ran(lab, "n0", ["id", "-u"]).stdout == f"{os.getuid()}\n"
        assert ran(lab, "n0", ["touch", "/opt/rig-code/rig/x"]).returncode != 0
        assert ran(lab, "n0", ["cat", "/etc/hosts"]).stdout == hosts_text(case(2))


def test_a_taken_name_is_said_and_kept(client: docker.DockerClient, tag: str) -> None:
    run = new_run()
    taken = client.containers.create(tag, ["true"], network_mode="none", name=f"rig-{run}-n1")
    try:
        said = f"start container rig-{run}-n1: that name is taken"
        with pytest.raises(LabError, match=said), open_lab("docker", order(run)):
            pass
        taken.reload()
        assert containers_of(client, run) == []
    finally:
        taken.remove(force=True)


def test_a_gpu_that_is_not_there_is_said(client: docker.DockerClient, tag: str) -> None:
    if "nvidia" in client.info()["Runtimes"]:
        return
    wanted = Order(new_run(), case(2, gpu="required"), print)
    said = "offers none; install nvidia-container-toolkit"
    with pytest.raises(LackError, match=said), open_lab("docker", wanted):
        pass


OPEN_AS_ANOTHER = """
    import os, subprocess, sys
    from rig.lab import Order, open_lab
    from tests.cases import case
    socket, user = sys.argv[1], int(sys.argv[2])
    def run():
        with open_lab("docker", Order("other-" + str(os.getpid()), case(2), print)) as lab:
            return subprocess.run(lab.command("n0", ["sh", "-c", f"test $(id -u) = {os.getuid()}"], {})).returncode
    assert run() == 0  # also imports what is imported late, from folders closed to others
    os.setgroups([os.stat(socket).st_gid])
    os.setgid(user)
    os.setuid(user)
    sys.exit(run())
"""


def test_an_ordinary_member_of_the_docker_group_has_a_lab(tag: str) -> None:
    """From a copy that all may read; a checkout may lie in a folder that only its owner may enter."""
    if os.getuid() != 0:
        return  # then all these tests are run by such a member
    socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(PACKAGE, Path(folder, "rig"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tests" / "cases.py", Path(folder, "tests.py"))
        code = textwrap.dedent(OPEN_AS_ANOTHER).replace("from tests.cases import", "from tests import")
        answer = subprocess.run(
            [sys.executable, "-c", code, socket, "54321"],
            check=False,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert answer.returncode == 0, answer.stderr


# ── plain words ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("unix:///nowhere/docker.sock", "no Docker engine runs here; start Docker"),
        ("tcp://127.0.0.1:9", "no Docker engine answers; start Docker"),
        ("garbage", "DOCKER_HOST is no address"),
    ],
)
def test_no_engine_is_one_sentence(monkeypatch: pytest.MonkeyPatch, host: str, said: str) -> None:
    if shutil.which("docker") is None:
        said = "no `docker` command is on the PATH"
    monkeypatch.setenv("DOCKER_HOST", host)
    reason = available()
    assert reason is not None
    assert said in reason
    assert "\n" not in reason
    with pytest.raises(LackError, match="lab docker"), open_lab("docker", order(new_run())):
        pass


def test_no_docker_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "no `docker` command" in (available() or "")


@pytest.mark.parametrize("telltale", TELLTALES, ids=lambda telltale: telltale.text)
def test_known_words_become_a_way_out(telltale: Telltale) -> None:
    error = explain("do a thing", f"500 Server Error: {telltale.text} and more")
    assert telltale.meaning in str(error)
    assert isinstance(error, LackError) is telltale.lacking


def test_unknown_words_are_passed_on() -> None:
    assert "the engine said: odd words; look at `docker info`" in str(explain("do a thing", "first\nodd words"))


# ── the image ────────────────────────────────────────────────────────────────────────────────────────
def test_the_tag_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_BASE_IMAGE", "one:1")
    one = image.recipe()
    monkeypatch.setenv("RIG_BASE_IMAGE", "two:2")
    assert image.recipe().tag != one.tag
    assert one.tag == image.Recipe(one.dockerfile, one.requirements, "one:1").tag


def test_the_image_has_the_hosts_torch_without_its_build() -> None:
    (torch,) = (line for line in image.requirements() if line.startswith("torch"))
    assert torch.startswith("torch==2.")
    assert "+" not in torch


def test_a_base_image_that_is_not_to_be_had_is_said(with_docker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_BASE_IMAGE", "rig-no-such-base:0")
    monkeypatch.setenv("RIG_WHEELHOUSE", tempfile.gettempdir())
    with pytest.raises(LackError, match=r"from rig-no-such-base:0: .*RIG_BASE_IMAGE"):
        image.ensure(print)


def test_a_wrong_wheelhouse_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_WHEELHOUSE", "/nowhere")
    with pytest.raises(LackError, match="/nowhere is no folder"):
        image.wheels()
