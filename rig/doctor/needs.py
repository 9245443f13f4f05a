"""What a scenario needs of this machine: "lack" where it cannot run here, "warn" where its result may suffer."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from math import ceil, log2

import psutil

from rig.doctor import containers, network
from rig.doctor.finding import Finding, Status
from rig.lab.ceiling import here, known_ceiling
from rig.lab.wiring import needs_shaper
from rig.model import Case
from rig.provision import capacity
from rig.report import figures

RANK = 350e6  # bytes a rank takes before it has a model: PyTorch, its threads' stacks, gloo's buffers
COPIES = 4  # of the parameters: weights, gradients, DDP's buckets, one state of the optimizer


def of(cases: Sequence[Case], lab: str) -> list[Finding]:
    """All needs of all cases, each named once, by the case that asks most."""
    kind = _kind(lab)
    found = [
        place(lab, kind), gpu(cases, kind), torch(kind), shaping(cases), congestion(cases), memory(cases),
        speed(cases), cpus(cases),
    ]  # fmt: skip
    return [one for one in found if one is not None]


def _needed(name: str, status: Status, found: str, mend: str = "") -> Finding:
    return Finding(name, status, found, mend, required=True)


def _kind(lab: str) -> str:
    """What `auto` would come to, without building the image."""
    if lab != "auto":
        return lab
    return "netns" if "lack" in containers.seen() else "docker"


def place(asked: str, kind: str) -> Finding:
    """Nodes need somewhere to live; where `auto` finds no engine, namespaces must do."""
    known = containers.docker() if kind == "docker" else network.user_namespaces()
    name = f"lab {kind}" if asked != "auto" else f"lab auto → {kind}"
    return _needed(name, "ok" if known.status == "ok" else "lack", known.found, known.mend)


def gpu(cases: Sequence[Case], kind: str) -> Finding | None:
    """Only where the scenario insists."""
    if not any(case.gpu == "required" for case in cases):
        return None
    there = containers.seen().get("gpu") if kind == "docker" else containers.gpus()
    if there:
        return _needed("gpu: required", "ok", containers.gpu().found)
    mend = containers.gpu().mend or "run it where there is one, or set gpu: auto, device: auto"
    return _needed("gpu: required", "lack", "no GPU can be given to the nodes", mend)


def torch(kind: str) -> Finding | None:
    """In lab netns the nodes use this very Python; a container's image holds PyTorch."""
    if kind == "docker":
        return None
    if importlib.util.find_spec("torch") is not None:
        return _needed("PyTorch", "ok", "this Python has it")
    return _needed("PyTorch", "lack", "this Python has none", "pip install torch, or use --lab docker")


def shaping(cases: Sequence[Case]) -> Finding:
    """A token bucket for every link, and netem or the delay line for what happens on the way."""
    if "refused" in network.tried():
        return _needed("links", "warn", "not known: no namespace to try them in")
    has = network.tried()["qdiscs"]
    if not has["tbf"]:
        return _needed("links", "lack", network.token_bucket().found, network.token_bucket().mend)
    asked = {case.shaper for case in cases if case.shaper != "auto" or _more_than_a_rate(case)}
    if not asked:
        return _needed("links", "ok", "rates only: token buckets are enough")
    if "netem" in asked and not has["netem"]:
        return _needed("shaper: netem", "lack", network.netem().found.partition(":")[0], "write shaper: auto")
    if has["netem"] and "delayline" not in asked:
        return _needed("links", "ok", "netem makes what happens on the way")
    taps = network.tap()
    if taps.status == "ok":
        return _needed("links", "ok", "the rig's own delay line makes what happens on the way")
    return _needed("links", "lack", taps.found, taps.mend)


def _more_than_a_rate(case: Case) -> bool:
    return any(needs_shaper(case, cable) for cable in case.cables)


def congestion(cases: Sequence[Case]) -> Finding:
    """TCP as the scenario says."""
    names = sorted({case.tcp.congestion for case in cases})
    missing = [name for name in names if not network.has_congestion(name)]
    if not missing:
        return _needed("TCP", "ok", ", ".join(names))
    mend = f"sudo modprobe {' '.join(f'tcp_{name}' for name in missing)}, or name one of {network.offered()}"
    return _needed("TCP", "lack", f"no {', '.join(missing)}", mend)


def memory(cases: Sequence[Case]) -> Finding:
    """An estimate; a script's own needs are not known."""
    most = max(cases, key=taken)
    free = float(psutil.virtual_memory().available)
    found = f"about {figures.size(taken(most))} for case {most.id}; {figures.size(free)} free"
    if taken(most) > free:
        return _needed("memory", "lack", found, "run fewer nodes or a smaller model, or close other programs")
    return _needed("memory", "ok" if taken(most) < 0.8 * free else "warn", found)


def taken(case: Case) -> float:
    """Bytes that all ranks of a case take, by an estimate that is rather high."""
    table = getattr(case.workload, "table", None)
    model = sum(one.nbytes for one in (*table.parameters, *table.buffers)) if table else 0
    buffer = int(getattr(case.workload, "size", 0))
    return case.size * (RANK + COPIES * model + 2 * buffer)


def speed(cases: Sequence[Case]) -> Finding:
    """Against the plan's own rule, and the ceiling that was measured."""
    hardest = max(cases, key=lambda case: demand(case) / allowed(case))
    asked, may = demand(hardest), allowed(hardest)
    found = f"{figures.rate(asked)} in all for case {hardest.id}; {figures.rate(may)} are safe here"
    if asked <= may:
        return _needed("speed", "ok", found)
    mend = "fewer nodes or a slower link: real compute cannot be slowed down"
    if not hardest.computes_real:
        mend = f"dilation: {2 ** ceil(log2(hardest.dilation * asked / may))}, or auto"
    ceiling = known_ceiling()
    beyond = ceiling is not None and asked / hardest.size > ceiling
    return _needed("speed", "lack" if beyond else "warn", found, mend)


def demand(case: Case) -> float:
    """All nodes at their fastest at once, in real time (bit/s): what `dilation: auto` goes by."""
    return max(max(link.up.rate, link.down.rate) for link in case.links) * case.size / case.dilation


def allowed(case: Case) -> float:
    """What this host carries beside the ranks' own work (bit/s)."""
    return capacity(case.links, case.shaper, here()[1])


def cpus(cases: Sequence[Case]) -> Finding | None:
    """Ranks that compute for real and share CPUs tell little about machines of their own."""
    mine = len(os.sched_getaffinity(0))
    real = [case for case in cases if case.computes_real]
    if not real:
        return None
    most = max(real, key=threads)
    found = f"{threads(most)} threads for case {most.id}, {mine} CPUs"
    if threads(most) <= mine:
        return _needed("CPUs", "ok", found)
    return _needed("CPUs", "warn", f"{found}: the ranks slow one another down", "fewer nodes, or paced compute")


def threads(case: Case) -> int:
    """Of all ranks together."""
    return sum(node.threads for node in case.nodes)
