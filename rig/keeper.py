"""The process that holds a lab open for `rig up`, until `rig down`: `python -m rig.keeper`.

It reads one line on stdin, {"run", "file", "sets", "lab", "only"}, and tells on stdout how the lab comes up, one event
a line: "stage" and "warn" with a text, then "up" with the case, or "failed" with a text and an exit code. From "up" on
it is on its own, and answers on its socket in the folder of held labs: {"do": "status"} and {"do": "down"}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rig import held, pipeline, plan, scenario
from rig.errors import LabError, RigError
from rig.lab import Lab, Order, choose, kept, open_lab
from rig.lab.ceiling import here
from rig.lab.wiring import interfaces
from rig.model import WAYS, Cable, Case, Impairment
from rig.node.stream import Stream
from rig.node.undisturbed import ENDING

GLANCE = 1.0  # seconds between two looks at the fabric
PATIENCE = 2.0  # seconds for a client to say what it wants


def keep(stream: Stream, asked: Mapping[str, Any]) -> None:
    """Open the lab, serve until told to end, close it. Raises what the opening raises."""
    warnings: list[str] = []

    def tell(text: str) -> None:
        stream.emit("stage", text=text)

    loaded = scenario.load(Path(asked["file"]), asked["sets"])
    cases = plan.expand(loaded, *here())
    (case,) = plan.buildable([plan.first(cases, asked["only"])])
    kind, why = choose(asked["lab"] or loaded.lab, tell)
    if why:
        stream.emit("warn", text=why)
    order = Order(asked["run"], case, tell, pipeline.mounts(case), warnings.append)
    with held.listening(order.run) as server:
        with open_lab(kind, order) as lab:
            note = noted(lab, order, loaded.name)
            note.save()
            stream.emit("up", case=case.id, cases=len(cases), lab=kind, places=list(note.places), warnings=warnings)
            _detach()
            warnings.clear()
            client = serve(server, lab)
        if client is not None:
            with client, suppress(OSError):
                client.sendall(json.dumps({"warnings": warnings}).encode() + b"\n")


def serve(server: socket.socket, lab: Lab) -> socket.socket | None:
    """Answer until somebody asks for the end, who is returned, still waiting; None where the lab has died."""
    while lab.fabric.status is None:
        if not select.select([server], [], [], GLANCE)[0]:
            continue
        client, _ = server.accept()
        client.settimeout(PATIENCE)
        with suppress(OSError, ValueError, TypeError):  # one that leaves, or speaks nonsense, is no matter
            if json.loads(held.read_line(client)) == {"do": "down"}:
                client.settimeout(None)
                return client
            client.sendall(json.dumps(_status(lab)).encode() + b"\n")
        client.close()
    return None


def _status(lab: Lab) -> dict[str, Any]:
    try:
        return {"counters": lab.fabric.counters()}
    except LabError as error:
        return {"error": str(error)}


def noted(lab: Lab, order: Order, name: str) -> held.Held:
    """What others must know to look around in a lab."""
    case = order.case
    places = [*(node.name for node in case.nodes), *(switch.name for switch in case.switches)]
    return held.Held(
        run=order.run, pid=os.getpid(), since=kept.now(), lab=lab.kind,
        scenario=name, case=case.id,
        places={place: lab.command(place, [], {"RIG_RUN": order.run, "RIG_NODE": place}) for place in places},
        python=list(lab.python),
        links={cable.name: _link(case, cable) for cable in case.cables},
    )  # fmt: skip


def _link(case: Case, cable: Cable) -> dict[str, Any]:
    """Where a cable can be listened to, at its switch's end, and what was asked of it."""
    tap = [cable.end, interfaces(case, cable)[1]]
    return {"tap": tap} | {way: figures(cable.link.way(way)) for way in WAYS}


def figures(way: Impairment) -> dict[str, str]:
    """What was asked of one direction, as text; what a plain cable has not is left out."""
    asked = {
        "rate": str(way.rate),
        "delay": str(way.delay) if way.delay else "",
        "jitter": str(way.jitter) if way.jitter else "",
        "loss": f"{way.loss.mean * 100:.4g}%" if way.loss.mean else "",
        "duplicate": str(way.duplicate) if way.duplicate else "",
        "corrupt": str(way.corrupt) if way.corrupt else "",
        "reorder": str(way.reorder) if way.reorder else "",
    }
    return {name: text for name, text in asked.items() if text}


def _detach() -> None:
    """Leave the terminal and the folder that `rig up` was called in."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")


def main() -> int:
    """Hold one lab; the exit code is for whoever looks at it from outside."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in ENDING:
        signal.signal(number, interrupt)
    stream = Stream()
    try:
        keep(stream, json.loads(sys.stdin.readline()))
    except RigError as error:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDING))  # there is nothing left to interrupt
        with suppress(OSError):
            stream.emit("failed", text=str(error), exit=error.exit_code)
        return error.exit_code
    except (BrokenPipeError, KeyboardInterrupt):  # `rig up` itself was ended
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
