"""What pydantic found, in the rig's words: what was found, what is allowed, what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from rig.scenario.fields import MISSING, hint
from rig.scenario.kinds import KINDS
from rig.scenario.links import WAN_FORMS
from rig.scenario.reading import shown
from rig.scenario.workloads import KEY, Complaint, Loc
from rig.scenario.written import Written

# Keys and values of the design that a later version brings.
LATER = frozenset({"faults", "ssh"})
_NOT_YET = "not in this version"


def complaint(error: Mapping[str, Any], kind: object) -> Complaint:
    """One of pydantic's errors as a place in the document and a sentence."""
    loc = _place(error["loc"], kind)
    if error["type"] == "extra_forbidden":
        return (*loc, KEY), _unknown_key(loc, kind)
    if error["type"].startswith("union_tag"):
        return (*loc, "kind"), _kind(error)
    say = _SENTENCES.get(error["type"])
    return loc, say(error) if say else shown(f"{error['msg']}, found {shown(error['input'])}", 300)


def known_keys(loc: Loc, kind: object = None) -> tuple[str, ...]:
    """The keys that may stand at a place of the document; none where any may, or no mapping belongs."""
    if loc[:1] == ("workload",):
        place: Any = KINDS.get(str(kind))
        loc = loc[1:]
    else:
        place = Written
    for word in loc:
        place = _under(place, word)
    keys = next((tuple(model.model_fields) for model in _members(place) if _is_model(model)), ())
    return (*keys, "sweep") if place is Written else keys


def _under(annotation: Any, word: str) -> Any:
    """The type of what stands under a word: a model's key, a mapping's free name, a list's index; else None."""
    for member in _members(annotation):
        if _is_model(member) and word in member.model_fields:
            return member.model_fields[word].annotation
        if get_origin(member) is dict or (get_origin(member) is list and word.isdecimal()):
            return get_args(member)[-1]
    return None


def _members(annotation: Any) -> Iterator[Any]:
    """The parts of a union, without what is only said about them."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _members(part)
    else:
        yield annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _place(loc: tuple[int | str, ...], kind: object) -> Loc:
    words = [str(word) for word in loc]
    member = {"workload": (kind,), "wan": WAN_FORMS}.get(words[0], ()) if words else ()
    if len(words) > 1 and words[1] in member:  # pydantic names the union's member too
        del words[1]
    return tuple(words)


def _unknown_key(loc: Loc, kind: object) -> str:
    key, known = loc[-1], known_keys(loc[:-1], kind)
    if key in LATER:
        return f"{_NOT_YET}; leave it out"
    if key not in _HOMES or loc in _HOMES[key]:
        return f"unknown key{hint(key, known)}"
    home = ".".join(_HOMES[key][0])
    return f"unknown key; did you mean {home}? Known here: {', '.join(known)}"


def _homes() -> dict[str, list[Loc]]:
    """Key → the places it belongs to, for a key that was written one level off."""
    places: list[tuple[Loc, object]] = [((), None), (("link",), None), (("tcp",), None), (("expect",), None)]
    places += [(("workload",), kind) for kind in KINDS]
    homes: dict[str, list[Loc]] = {}
    for loc, kind in places:
        for key in known_keys(loc, kind):
            homes.setdefault(key, []).append((*loc, key))
    return homes


_HOMES = _homes()


def _literal(error: Mapping[str, Any]) -> str:
    if isinstance(error["input"], str) and error["input"] in LATER:
        return f"{shown(error['input'])} is {_NOT_YET}; allowed: {error['ctx']['expected']}"
    allowed = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
    return f"found {shown(error['input'])}{hint(str(error['input']), allowed, 'allowed')}"


def _kind(error: Mapping[str, Any]) -> str:
    found = error["input"].get("kind") if isinstance(error["input"], dict) else None
    if found is None:
        return f"missing; known here: {', '.join(KINDS)}"
    if isinstance(found, str) and found in LATER:
        return f"{found} is {_NOT_YET}; known here: {', '.join(KINDS)}"
    return f"{shown(found)} is no workload{hint(str(found), KINDS)}"


def _found(allowed: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda error: f"needs {allowed}, found {shown(error['input'])}"


def _bound(word: str, name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda error: f"must be {word} {error['ctx'][name]}, found {shown(error['input'])}"


_SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda error: MISSING,
    "value_error": lambda error: shown(str(error["ctx"]["error"]), 300),
    "literal_error": _literal,
    "int_type": _found("a whole number"),
    "float_type": _found("a number"),
    "finite_number": _found("a number"),
    "string_type": lambda error: f"needs text, found {shown(error['input'])}; if that is meant, put it in quotes",
    "list_type": _found("a list [a, b]"),
    "too_long": _bound("at most", "max_length"),
    "dict_type": _found("a mapping {key: value}"),
    "model_type": _found("a mapping {key: value}"),
    "model_attributes_type": _found("a mapping {key: value}"),
    "greater_than_equal": _bound("at least", "ge"),
    "greater_than": _bound("greater than", "gt"),
    "less_than_equal": _bound("at most", "le"),
    "less_than": _bound("less than", "lt"),
}
