"""YAML text → a tree of values that know their line and column. No tag is ever executed, no alias expanded.

The tree is built from the parser's events, so depth and size are bounded while reading, before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from rig.errors import ScenarioError

MAX_BYTES = 2**20
MAX_DEPTH = 16  # the deepest key there is lies at five
MAX_VALUES = 20_000

_INTEGER = re.compile(r"[-+]?[0-9]{1,40}", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][-+]?[0-9]{1,3})?", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,5}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}

# What the parser lets through on broken input besides its own errors (escapes beyond Unicode, odd directives, …).
_BROKEN = (YAMLError, ValueError, LookupError, TypeError, AttributeError, AssertionError, OverflowError, RecursionError)


@dataclass(frozen=True, order=True)
class Place:
    """Where something was written: a file's line and column, counted from 1, or a `--set` argument (line 0)."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True)
class Spot:
    """A value and its place; a mapping also knows the place of each key."""

    place: Place
    value: Any  # None, bool, int, float, str, list[Spot] or dict[str, Spot]
    keys: Mapping[str, Place] = field(default_factory=dict)

    def plain(self) -> Any:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: spot.plain() for key, spot in self.value.items()}
        if isinstance(self.value, list):
            return [spot.plain() for spot in self.value]
        return self.value

    def get(self, key: str) -> Spot | None:
        """The value under `key`, if this is a mapping that has one, or a list with so many items."""
        if isinstance(self.value, list):
            return self.value[int(key)] if _INDEX.fullmatch(key) and int(key) < len(self.value) else None
        return self.value.get(key) if isinstance(self.value, dict) else None

    def replaced(self, path: tuple[str, ...], new: Spot, key_place: Place) -> Spot:
        """A copy with `new` at `path`; mappings on the way are made where missing, items of a list are not.

        Raises KeyError when a value on the way is neither a mapping nor a list with such an item.
        """
        if not path:
            return new
        if isinstance(self.value, list) and (item := self.get(path[0])) is not None:
            changed = item.replaced(path[1:], new, key_place)
            return Spot(self.place, [changed if other is item else other for other in self.value])
        if not isinstance(self.value, dict | None):
            raise KeyError(path[0])
        head, children = path[0], dict(self.value or {})
        child = children.get(head, Spot(key_place, None))
        children[head] = child.replaced(path[1:], new, key_place)
        keys = {**self.keys, head: key_place if len(path) == 1 else self.keys.get(head, key_place)}
        return Spot(self.place, children, keys)

    def without(self, path: tuple[str, ...]) -> Spot:
        """A copy without the key at `path`; the same when there is none. Items of a list stay where they are."""
        child = self.get(path[0]) if path else None
        if child is None:
            return self
        if isinstance(self.value, list):
            changed = child.without(path[1:])
            return Spot(self.place, [changed if other is child else other for other in self.value])
        children = {key: spot for key, spot in self.value.items() if key != path[0]}
        if len(path) > 1:
            children = {**self.value, path[0]: child.without(path[1:])}
        return Spot(self.place, children, self.keys)


def text_of(path: Path) -> str:
    """A scenario file's text; raises ScenarioError for a folder, a device, over 1 MiB, or anything but UTF-8."""
    try:
        if path.is_dir():
            raise ScenarioError(f"{path}: read the scenario: it is a folder; name a .yaml file in it")
        if path.exists() and not path.is_file():
            raise ScenarioError(f"{path}: read the scenario: it is a device or a pipe; name an ordinary file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: read the scenario: there is no such file{_siblings(path)}") from error
    except (OSError, ValueError) as error:
        where = shown(str(path), 200)
        raise ScenarioError(f"{where}: read the scenario: {error}; name a file that can be read") from error
    if len(content) > MAX_BYTES:
        raise ScenarioError(f"{path}: read the scenario: it is larger than 1 MiB; a scenario takes a page")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{path}:{line}: read the scenario: it is not UTF-8 text; save it as UTF-8") from error


def _siblings(path: Path) -> str:
    names = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else "; `rig init` writes one to start from"


def read(text: str, source: str) -> Spot:
    """The one document of a YAML text; raises ScenarioError with the place of whatever is wrong."""
    try:
        return _Reading(text, source).document()
    except MarkedYAMLError as error:
        raise ScenarioError(_syntax(error, source)) from error
    except _BROKEN as error:
        raise ScenarioError(_unreadable(error, text, source)) from error


def scalar(text: str) -> Any:
    """An unquoted word as YAML 1.2's core schema reads it, so `on`, `no` and `0x10` stay text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Reading:
    """One pass over a text's events."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._values = 0
        yaml = YAML(typ="safe", pure=True)
        yaml.allow_duplicate_keys = True  # refused here, with both places
        self._events: Iterator[Event] = iter(yaml.parse(text))

    def document(self) -> Spot:
        next(self._events)  # stream start
        first = next(self._events)
        if isinstance(first, StreamEndEvent):
            return Spot(Place(self._source, 1, 1), None)
        root = self._value(next(self._events), 0)
        while not isinstance(after := next(self._events), StreamEndEvent):
            if isinstance(after, DocumentStartEvent):
                raise self._refusal(after, "a second document starts here; a file holds one scenario")
            assert isinstance(after, DocumentEndEvent)  # the parser's grammar
        return root

    def _value(self, event: Event, depth: int) -> Spot:
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._refusal(event, f"more than {MAX_VALUES} values; a scenario needs far fewer")
        if depth > MAX_DEPTH:
            raise self._refusal(event, f"nested more than {MAX_DEPTH} deep; a scenario needs five")
        if isinstance(event, AliasEvent):
            text = f"*{event.anchor} is an alias, which the rig does not follow; write the value out"
            raise self._refusal(event, text)
        if getattr(event, "tag", None) not in (None, "!"):
            raise self._refusal(event, "a tag (!…), which the rig does not read; write the plain value")
        if isinstance(event, MappingStartEvent):
            return self._mapping(event, depth)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(event, depth)
        assert isinstance(event, ScalarEvent)  # the parser's grammar
        if _SURROGATE.search(event.value):
            raise self._refusal(event, "half a character (\\ud800 to \\udfff), which no file can hold; write it whole")
        return Spot(self._place(event), event.value if event.style else scalar(event.value))

    def _sequence(self, start: Event, depth: int) -> Spot:
        items: list[Spot] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return Spot(self._place(start), items)

    def _mapping(self, start: Event, depth: int) -> Spot:
        items: dict[str, Spot] = {}
        keys: dict[str, Place] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                raise self._refusal(event, "a key must be one word, found a list, a mapping or an alias")
            if event.value in items:
                first = keys[event.value].line
                raise self._refusal(event, f"{shown(event.value)} is written twice, first in line {first}; keep one")
            keys[event.value] = self._place(event)
            items[event.value] = self._value(next(self._events), depth + 1)
        return Spot(self._place(start), items, keys)

    def _place(self, event: Event) -> Place:
        mark = event.start_mark
        return Place(self._source, mark.line + 1, mark.column + 1)

    def _refusal(self, event: Event, text: str) -> ScenarioError:
        return ScenarioError(f"{self._place(event)}: {text}")


def shown(value: object, limit: int = 60) -> str:
    """A value as it may stand in an error text: on one line, printable, not too long."""
    text = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _syntax(error: MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
    context = f" ({shown(error.context, 200)})" if error.context else ""
    tab = "; indent with spaces, not tabs" if "\\t" in str(error.problem) else ""
    return f"{place}: not YAML: {shown(error.problem or 'unreadable', 200)}{context}{tab}"


def _unreadable(error: Exception, text: str, source: str) -> str:
    position = getattr(error, "position", None)
    if not isinstance(position, int):
        return f"{source}: not YAML: {type(error).__name__}: {shown(str(error), 200)}"
    before = text[:position]
    place = Place(source, before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)
    character = text[position : position + 1]
    return f"{place}: not YAML: the character {character!r} may not stand in a text file"
