"""What every lab promises, in one body over all of them: a new row in LABS is covered by that alone."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.lab import SWITCH, SWITCH_ADDRESS, Lab, open_lab
from tests.lab.conftest import PATIENCE, network_namespaces, new_run, order, processes_of, ran

NODES = {"n0": "198.18.0.1", "n1": "198.18.0.2"}
PLACES = (*NODES, SWITCH)
# A kernel with tunnels built in puts these, down, into every new namespace.
FALLBACK = {"tunl0", "sit0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6tnl0", "ip6gre0"}
SHOW_ARGUMENTS = "import sys, json; print(json.dumps(sys.argv[1:]))"


def until(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within five seconds."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(("argv", "status"), [(["true"], 0), (["sh", "-c", "exit 42"], 42), (["no-such-program"], 127)])
@pytest.mark.parametrize("place", PLACES)
def test_exit_status(lab: Lab, place: str, argv: list[str], status: int) -> None:
    assert ran(lab, place, argv).returncode == status


@pytest.mark.parametrize("place", PLACES)
def test_arguments_arrive_as_they_are(lab: Lab, place: str) -> None:
    given = ["a b", "'\"$HOME`id`*", "", "-n", "A=b", "two\nlines", "grüße 🛰", "\\"]
    answer = ran(lab, place, [*lab.python, "-c", SHOW_ARGUMENTS, *given])
    assert answer.stderr == ""
    assert json.loads(answer.stdout) == given


def test_streams_are_separate_and_stdin_arrives(lab: Lab) -> None:
    answer = ran(lab, "n0", ["sh", "-c", "cat; echo wrong >&2"], stdin="grüße 🛰\n")
    assert (answer.stdout, answer.stderr) == ("grüße 🛰\n", "wrong\n")


def test_environment_is_passed(lab: Lab) -> None:
    value = "b c=d $HOME\n'🛰'"
    assert ran(lab, "n1", ["sh", "-c", 'printf %s "$RIG_MARK"'], {"RIG_MARK": value}).stdout == value


def test_working_directory_does_not_shadow_modules(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "rig.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    answer = ran(lab, "n0", [*lab.python, "-c", "import json, rig.node; print(rig.__name__)"])
    assert (answer.stdout, answer.stderr) == ("rig\n", "")


@pytest.mark.parametrize("place", NODES)
def test_host_name_is_the_node(lab: Lab, place: str) -> None:
    assert ran(lab, place, ["hostname"]).stdout == f"{place}\n"


@pytest.mark.parametrize("place", NODES)
def test_every_name_resolves_everywhere(lab: Lab, place: str) -> None:
    """Its own name too: gloo listens on what that resolves to, and 127.0.1.1 would make the others wait for ever."""
    code = "import socket, sys; print(*map(socket.gethostbyname, sys.argv[1:]))"
    answer = ran(lab, place, [*lab.python, "-c", code, *NODES, SWITCH])
    assert answer.stdout.split() == [*NODES.values(), SWITCH_ADDRESS]


@pytest.mark.parametrize("place", NODES)
def test_a_node_has_its_link_and_nothing_else(lab: Lab, place: str) -> None:
    code = "import socket; print(*(name for _, name in socket.if_nameindex()))"
    assert set(ran(lab, place, [*lab.python, "-c", code]).stdout.split()) - FALLBACK == {"lo", "eth0"}


@pytest.mark.parametrize("place", NODES)
def test_a_node_has_no_way_out(lab: Lab, place: str) -> None:
    routes = [line.split() for line in ran(lab, place, ["cat", "/proc/net/route"]).stdout.splitlines()[1:]]
    assert routes
    assert {route[0] for route in routes} == {"eth0"}
    assert "00000000" not in {route[7] for route in routes}  # the mask of a default route


def test_nodes_reach_each_other(lab: Lab) -> None:
    serve = (
        "import socket; server = socket.create_server(('n1', 7000)); print('up', flush=True)\n"
        "connection, peer = server.accept(); print(peer[0], connection.recv(9).decode())"
    )
    call = "import socket; socket.create_connection(('n1', 7000), 5).sendall(b'hello')"
    command = lab.command("n1", [*lab.python, "-c", serve], {})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "up\n"
        assert ran(lab, "n0", [*lab.python, "-c", call]).returncode == 0
        assert server.stdout.readline() == f"{NODES['n0']} hello\n"


@pytest.mark.parametrize("place", PLACES)
def test_killing_the_client_ends_what_reads_stdin(lab: Lab, place: str) -> None:
    mark = f"RIG_MARK={new_run()}"
    name, _, value = mark.partition("=")
    client = subprocess.Popen(lab.command(place, ["cat"], {name: value}), stdin=subprocess.PIPE)
    try:
        assert until(lambda: len(processes_of(mark)) > 0)
    finally:
        client.kill()
        client.wait()
    assert until(lambda: not processes_of(mark))
    assert client.stdin
    client.stdin.close()


@pytest.mark.parametrize("ending", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left(kind: str, ending: type[BaseException]) -> None:
    run, inside = new_run(), set[str]()
    with pytest.raises(ending):  # noqa: PT012, SIM117
        with open_lab(kind, order(run)) as lab:
            inside |= {ran(lab, place, ["readlink", "/proc/self/ns/net"]).stdout.strip() for place in PLACES}
            abandoned = subprocess.Popen(lab.command("n0", ["sleep", "600"], {"RIG_RUN": run}))
            raise ending
    abandoned.wait(PATIENCE)
    assert len(inside) == len(PLACES)
    assert until(lambda: not inside & network_namespaces())
    assert until(lambda: not processes_of(f"RIG_RUN={run}"))


def test_every_process_of_a_run_is_marked(kind: str) -> None:
    """Those that the lab itself starts, too: the fabric, and one in each node."""
    run = new_run()
    with open_lab(kind, order(run)):
        assert len(processes_of(f"RIG_RUN={run}")) >= len(PLACES)


def test_two_labs_do_not_meet(lab: Lab, kind: str) -> None:
    """The same addresses and names twice, side by side, as when two people use one machine."""
    with open_lab(kind, order(new_run())) as other:
        here, there = (ran(one, "n0", ["readlink", "/proc/self/ns/net"]).stdout for one in (lab, other))
        assert here != there
    assert ran(lab, "n0", ["true"]).returncode == 0
