"""The fabric process: `{"do": NAME, …}` a line in, `{"ok": RESULT}` or `{"error": TEXT}` a line out.

It ends when its stdin does. Inside a box it is process 1, and with it the kernel ends all the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rig.errors import RigError
from rig.fabric import holders
from rig.node.stream import Stream

if TYPE_CHECKING:
    from rig.fabric.wiring import Fabric


def main() -> None:
    """Answer requests until stdin ends."""
    stream = Stream()
    fabric: list[Fabric] = []  # made on first use, after the box's own sysctls are set

    def the() -> Fabric:
        if not fabric:
            from rig.fabric.wiring import Fabric  # it is large, and holders are forks of this process

            fabric.append(Fabric())
        return fabric[0]

    requests: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
        "sysctls": lambda request: holders.set_sysctls(request["values"]),
        "hold": lambda request: holders.hold(request["nodes"]),
        "offers": lambda _: the().offers(),
        "build": lambda request: the().build(request),
        "read_back": lambda _: the().read_back(),
        "open": lambda _: the().open(),
        "counters": lambda _: the().counters(),
        "change": lambda request: the().change(request),
    }
    stream.emit("ready")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": requests[request["do"]](request)}
        except RigError as error:
            answer = {"error": str(error)}
        except (OSError, KeyError, TypeError, ValueError) as error:
            answer = {"error": f"fabric: {request.get('do')}: {type(error).__name__}: {error}"}
        stream.emit("answer", **answer)


if __name__ == "__main__":
    main()
