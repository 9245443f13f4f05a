"""The orchestrator's end of the fabric's pipes: one method per request, plain data in and out."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from rig.errors import FabricError
from rig.fabric.dialogue import Dialogue
from rig.node.undisturbed import undisturbed

ANSWER_WITHIN = 60.0  # seconds; a build of 256 nodes takes about 5


class Fabric:
    """A fabric process: started by a lab through whatever command prefix reaches the switch's namespace."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._words = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, bufsize=0,
            start_new_session=True,  # Ctrl-C in a terminal is the orchestrator's to interpret
        )  # fmt: skip
        self._dialogue = Dialogue("fabric", self._process, ANSWER_WITHIN, self._words)

    def ready(self) -> Mapping[str, Any]:
        """Read up to the fabric's first word and return what came before it (a box announces its pid)."""
        before: dict[str, Any] = {}
        while (said := self._dialogue.hear("start"))["event"] != "ready":
            before[said["event"]] = said
        return before

    def hold(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Make namespaces for nodes; returns {name: pid inside the box}. See holders.hold."""
        return dict(self._ask("hold", nodes=list(nodes)))

    def sysctls(self, values: Mapping[str, str]) -> None:
        """Set sysctls of the switch's namespace."""
        self._ask("sysctls", values=dict(values))

    def offers(self) -> dict[str, Any]:
        """What this kernel has for delay and loss: {"netem": bool}."""
        return dict(self._ask("offers"))

    def build(self, document: Mapping[str, Any]) -> None:
        """Make switches and cables, shaped and down. See wiring.Fabric.build."""
        self._ask("build", **document)

    def change(self, name: str, plugged: bool, ways: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Make a cable something else while it is in use; returns what is in force. See wiring.Fabric.change."""
        return dict(self._ask("change", name=name, plugged=plugged, **ways))

    def read_back(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What is in force, per link and direction. See wiring.Fabric.read_back."""
        return dict(self._ask("read_back"))

    def open(self) -> None:
        """Bring all links up."""
        self._ask("open")

    def counters(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Cumulative bytes, packets and drops, per link and direction."""
        return dict(self._ask("counters"))

    def close(self) -> None:
        """End the fabric process; after five seconds it is killed. Not cut short by a signal."""
        with undisturbed():
            self._close()

    def _close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._words.close()

    @property
    def status(self) -> int | None:
        """Exit status of the process, None while it runs."""
        return self._process.poll()

    def _ask(self, do: str, **fields: Any) -> Any:
        self._dialogue.say({"do": do, **fields})
        answer = self._dialogue.hear(do)
        if "error" in answer:
            raise FabricError(str(answer["error"]))
        return answer["ok"]
