"""What stands in a scenario beside its own text: `--set` arguments, and the short form of a sweep over sizes."""

from __future__ import annotations

from rig.errors import ScenarioError
from rig.scenario.reading import Place, Spot, read, shown
from rig.scenario.workloads import Loc


def applied(root: Spot, argument: str) -> Spot:
    """The document with one `--set` argument in place; a swept path that is set is no longer swept."""
    place = Place(f"--set {shown(argument)}")
    dotted, equals, text = argument.partition("=")
    path = _split(dotted.strip(), root)
    if not equals or not all(path):
        raise ScenarioError(f"{place}: write it as path=value, such as link.rate=2.5gbit")
    swept = "workload.size" if path == ("workload", "sizes") else ".".join(path)
    for block in _blocks(root):
        root = root.without((*block, swept))
    try:
        return root.replaced(path, _moved(read(text, str(place)), place), place)
    except KeyError as error:
        text = f"{error.args[0]} cannot be set: what it would stand in is not a mapping"
        raise ScenarioError(f"{place}: {text}") from error


def _split(dotted: str, root: Spot) -> Loc:
    for block in _blocks(root):  # a sweep's keys are dotted paths themselves
        before = ".".join(block) + "."
        if dotted.startswith(before):
            return (*block, dotted.removeprefix(before))
    return tuple(dotted.split("."))


def _blocks(root: Spot) -> list[Loc]:
    """Where the sweep's keys stand."""
    sweep = root.get("sweep")
    if sweep is not None and isinstance(sweep.value, list):
        return [("sweep", str(index)) for index in range(len(sweep.value))]
    return [("sweep",)]


def _moved(spot: Spot, place: Place) -> Spot:
    value = spot.value
    if isinstance(value, dict):
        return Spot(place, {key: _moved(child, place) for key, child in value.items()}, dict.fromkeys(value, place))
    return Spot(place, [_moved(child, place) for child in value] if isinstance(value, list) else value)


def sizes_as_sweep(root: Spot) -> Spot:
    """`workload.sizes: [a, b]` of an allreduce is short for a sweep over workload.size."""
    workload = root.get("workload")
    sizes = workload.get("sizes") if workload else None
    kind = workload.get("kind") if workload else None
    if workload is None or sizes is None or kind is None or kind.value != "allreduce":
        return root
    sweeps = [_at(root, block) for block in _blocks(root)]
    odd = not isinstance(sizes.value, list) or any(not isinstance(sweep.value, dict | None) for sweep in sweeps)
    if odd or workload.get("size") or any(sweep.get("workload.size") for sweep in sweeps):
        return root  # left where it is, and refused there
    place = workload.keys["sizes"]
    root = root.without(("workload", "sizes"))
    for block in _blocks(root):
        root = root.replaced((*block, "workload.size"), sizes, place)
    return root


def _at(root: Spot, path: Loc) -> Spot:
    for word in path:
        root = root.get(word) or Spot(root.place, None)
    return root
