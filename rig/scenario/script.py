"""`kind: script` as written: a command of the user's own, which every node runs without a changed line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from rig.scenario.fields import Batch, Ranks, hint
from rig.scenario.reading import shown
from rig.scenario.workloads import Complaint, Surroundings, WorkloadKeys
from rig.work import Script

if TYPE_CHECKING:
    from rig.scenario.written import Written

MOST_WORDS, LONGEST_WORD = 1000, 10_000
_PYTHON = ("python", "python3")


def _command(value: Any) -> Any:
    """A list of words; numbers in it are words too, as `--epochs, 1` has one."""
    if isinstance(value, str):
        raise ValueError(f"needs a list, a word each, found {shown(value)}; write it like {_as_list(value)}")
    if value == []:
        raise ValueError("is empty; write it like [python, train.py]")
    return [_word(number, word) for number, word in enumerate(value)] if isinstance(value, list) else value


def _word(number: int, word: Any) -> str:
    if isinstance(word, int | float) and not isinstance(word, bool):
        return str(word)
    if not isinstance(word, str):
        raise ValueError(f"word {number + 1} is {shown(word)}, which is no text; if it is meant, put it in quotes")
    if "\0" in word or len(word) > LONGEST_WORD:
        raise ValueError(f"word {number + 1} is longer than {LONGEST_WORD} characters or holds a NUL character")
    if number == 0 and word != word.strip():
        raise ValueError(f"word 1, {shown(word)}, begins or ends with a blank; write the program's name alone")
    if number == 0 and " " in word and "/" not in word.split()[0]:
        raise ValueError(f"word 1, {shown(word)}, is a whole line; write a word each, like {_as_list(word)}")
    return word


def _as_list(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote without its end
        words = []
    return _shown(words or ["python", "train.py"])


def _shown(words: list[str]) -> str:
    """A list as YAML has it."""
    return shown(f"[{', '.join(words)}]", 200)


_COMMAND = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1, "maxItems": MOST_WORDS}


class ScriptKeys(WorkloadKeys):
    """Any command that trains with PyTorch; each rank is told of its place as torchrun tells it."""

    kind: Literal["script"]
    command: Annotated[list[str], BeforeValidator(_command), Field(max_length=MOST_WORDS), WithJsonSchema(_COMMAND)]
    ranks: Ranks = 1  # training processes of a node
    files: Literal["mounted", "copied"] = "mounted"
    torchrun: bool = False
    batch: Batch | None = None  # samples of a rank and step, for figures in samples
    steps: int | None = Field(None, ge=2, le=10**6)  # that count at most
    warmup: int = Field(3, ge=1, le=10_000)

    @property
    def computes_real(self) -> bool:
        return True

    def ranks_on(self, written: Written, node: str) -> int:
        machine = written.machines.get(node)
        return (machine and machine.ranks) or self.ranks

    def batch_on(self, written: Written, node: str) -> int:
        machine = written.machines.get(node)
        batch = (machine and machine.batch) or self.batch or 1  # a batch is what is counted where nothing tells more
        return batch * self.ranks_on(written, node)

    def resolve(self, folder: Path) -> Script:
        return Script(
            steps=self.steps or 0,
            warmup=self.warmup,
            command=tuple(self.command),
            folder=str(folder.absolute()),
            files=self.files,
            torchrun=self.torchrun,
            batch=self.batch or 0,
        )

    def complaints(self, written: Written, around: Surroundings) -> Iterator[Complaint]:
        yield from self._program_complaints(around.folder)
        if written.dilation not in ("auto", 1):
            text = f"{written.dilation} does not go with a script, whose time cannot be stretched; write 1 or auto"
            yield ("dilation",), text
        for node, machine in written.machines.items():
            if machine.compute is not None:
                yield ("machines", node, "compute"), "has no meaning for a script, which computes what it computes"
            if machine.batch is not None and self.batch is None:
                yield ("machines", node, "batch"), "stands alone: the script's own batch, workload.batch, is missing"

    def _program_complaints(self, folder: Path) -> Iterator[Complaint]:
        """What the command names, as far as it can be looked at from here."""
        loc = ("workload", "command")
        rest = self.command[1:] if self.command[0] in _PYTHON else self.command
        if self.torchrun and (not rest or not (rest[0].endswith(".py") or rest[0] == "-m")):
            text = "torchrun starts Python by itself; write the script first, like [train.py, --epochs, 1]"
            yield loc, f"{_shown(self.command)}: {text}"
            return
        script = next((word for word in rest if word.endswith(".py")), None)
        if script is None or script.startswith("-"):
            return
        path = Path(normpath(folder.absolute() / script))
        if not path.is_relative_to(normpath(folder.absolute())):
            text = "lies outside the scenario file's folder, which is all that nodes see; move one of the two"
            yield loc, f"{shown(script)} {text}"
        elif not path.is_file():
            there = sorted(str(file.relative_to(folder)) for file in folder.glob("*.py"))
            yield loc, f"there is no {shown(script)} in the scenario file's folder{hint(script, there, 'there are')}"
