"""The verbs for looking around: up, exec, status, capture, down, and doctor. cli.py lists them with the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rig.errors import LabError, LackError, RigError, UsageError
from rig.terminal import AsJson, File, LabName, Only, Sets, load, say, show

Run = Annotated[str | None, typer.Option("--run", help="A lab by its id, or the beginning of it.", metavar="ID")]
Node = Annotated[str, typer.Argument(help="A node or switch, such as n0.")]
Words = Annotated[list[str] | None, typer.Argument(help="The command and its arguments, after --.", metavar="-- CMD")]

LONGEST_END = 10.0  # seconds for a capture to write its last packets


def up(file: File, sets: Sets = None, lab: LabName = None, only: Only = "*") -> None:
    """Open the lab of one case and leave it open, until `rig down`."""
    from rig import record

    run = record.new_run_id()
    asked = {"run": run, "file": str(file), "sets": sets or [], "lab": lab, "only": only}
    told = _open(run, asked)
    others = f", one of {told['cases']}; --only names another" if told["cases"] > 1 and only == "*" else ""
    show(f"{run}: lab {told['lab']} is up: case {told['case']}{others}")
    show(
        f"places: {' '.join(told['places'])}\nlook around: rig exec {told['places'][0]} -- CMD; end it: rig down {run}"
    )


def exec_(node: Node, words: Words = None, run: Run = None) -> None:
    """Run a command in a node or switch of a lab that is up."""
    from rig import held
    from rig.lab import clean_environment

    lab = held.find(run)
    if not words:
        raise UsageError(f"exec {node}: run a command: none was given; write it after --: rig exec {node} -- bash")
    argv = [*_prefix(lab, node), *words]
    if lab.lab == "docker" and sys.stdin.isatty() and sys.stdout.isatty():
        argv[argv.index("-i")] = "-it"  # a shell without a terminal would not prompt
    _leave_for(argv, clean_environment(lab.run))


def status(as_json: AsJson = False) -> None:
    """Show labs that are up, their links and what crossed them."""
    from rig import survey

    found = survey.take()
    show(json.dumps(found, indent=1) if as_json else survey.tables(found))


def capture(
    link: Annotated[str, typer.Argument(help="A cable: a node's name, or two clusters' such as us-eu.")],
    run: Run = None,
    write: Annotated[str | None, typer.Option("-w", help="Write a pcap file; - is stdout.", metavar="FILE")] = None,
    count: Annotated[int, typer.Option(help="End after so many packets.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="End after so long.", min=0.0)] = 0.0,
) -> None:
    """Show or save the packets of one link.

    Both ways, as its switch sees them; `up` comes from the node, or from the first of two clusters.
    """
    from rig import held

    lab = held.find(run)
    if link not in lab.links:
        raise UsageError(f"capture {link}: find the link: run {lab.run} has none so called; it has {_some(lab.links)}")
    place, interface = lab.links[link]["tap"]
    limits = ["--count", str(count), "--seconds", str(seconds)]
    argv = [*_prefix(lab, place), *lab.python, "-m", "rig.node.capture", interface, *limits]
    if write is None:
        raise SystemExit(_captured([*argv, "--text"], None))
    if write == "-":
        raise SystemExit(_captured(argv, None))
    raise SystemExit(_captured(argv, Path(write)))


def down(run: Annotated[str | None, typer.Argument(help="A lab's id; the only one if absent.")] = None) -> None:
    """End a lab that is up, and all that runs in it."""
    from rig import held

    lab = held.find(run)
    for warning in lab.down():
        say(warning)
    show(f"{lab.run}: the lab is gone")


def doctor(
    file: Annotated[Path | None, typer.Argument(help="A scenario that is to run here.")] = None,
    sets: Sets = None, lab: LabName = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say what this machine can and cannot do, and how to mend it."""
    from rig import doctor as doctors

    scenario = load(file, sets) if file else None
    findings = doctors.examine(scenario, lab, say)
    show(json.dumps(doctors.document(findings), indent=1) if as_json else doctors.table(findings))
    if scenario and doctors.forbids(findings):
        raise SystemExit(LackError.exit_code)


# ── up ───────────────────────────────────────────────────────────────────────────────────────────────
def _open(run: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Start a keeper, pass on what it tells until the lab is up; an end before that ends it too."""
    keeper = _keeper(run, asked)
    try:
        return _listen(keeper)
    except RigError:
        keeper.wait()
        raise
    except BaseException:
        keeper.terminate()
        keeper.wait()  # closing a lab limits its own time
        raise


def _keeper(run: str, asked: dict[str, Any]) -> subprocess.Popen[str]:
    """Its code is this very installation's, whatever lies in the folder it is started from."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "rig.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "RIG_RUN": run}, start_new_session=True,
    )  # fmt: skip
    assert keeper.stdin
    keeper.stdin.write(json.dumps(asked) + "\n")
    keeper.stdin.close()
    return keeper


def _listen(keeper: subprocess.Popen[str]) -> dict[str, Any]:
    assert keeper.stdout
    for line in keeper.stdout:
        told: dict[str, Any] = json.loads(line)
        if told["event"] == "up":
            for warning in told["warnings"]:
                say(warning)
            return told
        if told["event"] == "failed":
            raise (UsageError if told["exit"] == UsageError.exit_code else LabError)(told["text"])
        say(told["text"])
    raise LabError(f"up: open the lab: its keeper ended with exit status {keeper.wait()}; its last words are above")


# ── exec and capture ─────────────────────────────────────────────────────────────────────────────────
def _prefix(lab: Any, place: str) -> list[str]:
    if not lab.lives:
        raise LabError(f"run {lab.run}: reach {place}: its keeper is gone; `rig clean` removes what it left")
    if place not in lab.places:
        raise UsageError(f"{place}: find it in run {lab.run}: there is none; there are {_some(lab.places)}")
    return list(lab.places[place])


def _some(names: Any) -> str:
    """Names for a message: at most a dozen."""
    names = list(names)
    return ", ".join(names if len(names) <= 12 else [*names[:10], "…", names[-1]])


def _leave_for(argv: list[str], env: dict[str, str]) -> None:
    """Become that command: streams, terminal, signals and exit status are then its own."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        raise LabError(f"{argv[0]}: start it: {error.strerror}") from error


def _captured(argv: Sequence[str], file: Path | None) -> int:
    """Run a capture to its end, which Ctrl-C may ask for as well; its exit status."""
    try:
        out = file.open("wb") if file else None
    except OSError as error:
        raise UsageError(f"{file}: write the packets: {error.strerror}; name another file with -w") from error
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, start_new_session=True)
    assert process.stdin
    try:
        return process.wait()
    except KeyboardInterrupt:  # how most captures are meant to end
        process.stdin.close()
        return process.wait(LONGEST_END)
    finally:
        process.kill()
        process.wait()
        if out:
            out.close()
