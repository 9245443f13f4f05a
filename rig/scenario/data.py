"""`data:` as written: what real compute learns from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from rig.scenario.fields import Keys
from rig.scenario.reading import shown
from rig.work import Data, Source

TOPICS = "topics"  # the word that stands for Python's own help topics
FOLDERS: tuple[Source, ...] = ("cifar10", "cifar100", "images")
IMAGE, TOKENS = 32, 128  # pixels along an edge, tokens of a window, where nothing is written
_FORMS = "write {images: FOLDER}, {cifar10: FOLDER}, {cifar100: FOLDER}, {text: FILE} or topics"


def _or_text(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "examples": [TOPICS]}, mapping]


class DataKeys(Keys):
    """One source; its folder or file, seen from the scenario file's own folder. A folder alone holds CIFAR-10."""

    model_config = ConfigDict(json_schema_extra=_or_text)

    cifar10: str | None = None
    cifar100: str | None = None
    images: str | None = None  # a subfolder for each class
    text: str | None = None  # a file, or `topics`
    image: Annotated[int, Field(ge=8, le=1024)] | None = None  # pixels along an edge, after resizing
    tokens: Annotated[int, Field(ge=2, le=1024)] | None = None  # of a window

    @model_validator(mode="before")
    @classmethod
    def _shape(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text" if value == TOPICS else "cifar10": value}
        if not isinstance(value, dict | cls):
            raise ValueError(f"found {shown(value)}; {_FORMS}")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> DataKeys:
        if len(self._given) != 1:
            raise ValueError(f"needs one source, found {len(self._given)}; {_FORMS}")
        if self.image is not None and self.images is None:
            raise ValueError("image is the size of a folder's images; it goes with images alone")
        if self.tokens is not None and self.text is None:
            raise ValueError("tokens is the length of a window of text; it goes with text alone")
        return self

    @property
    def _given(self) -> list[tuple[Source, str]]:
        sources: tuple[Source, ...] = (*FOLDERS, "text")
        return [(name, path) for name in sources if (path := getattr(self, name)) is not None]

    def resolve(self, folder: Path) -> Data:
        [(source, path)] = self._given
        if (source, path) == ("text", TOPICS):
            return Data("topics", "", self.tokens or TOKENS)
        size = {"images": self.image or IMAGE, "text": self.tokens or TOKENS}.get(source, 0)
        return Data(source, str((folder / path).absolute()), size)

    def complaints(self, folder: Path) -> Iterator[str]:
        [(source, path)] = self._given
        if (source, path) != ("text", TOPICS) and not _is_there(folder, path, source):
            what = "folder" if source in FOLDERS else "file"
            yield f"{shown(path)} is no {what}, seen from the scenario file's own folder; name one that exists"


def _is_there(folder: Path, path: str, source: Source) -> bool:
    if "\0" in path or len(path) >= 1024:
        return False
    return (folder / path).is_dir() if source in FOLDERS else (folder / path).is_file()
