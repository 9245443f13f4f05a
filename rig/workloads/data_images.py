"""Images: the digits that ship with the rig, CIFAR-10 and CIFAR-100 as published, and folders of one's own.

Pixels stay bytes until a batch is taken: CIFAR-10 is 184 MB so, and would be four times that as float32.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from rig.errors import WorkloadError
from rig.workloads.nets import CHANNELS
from rig.workloads.samples import Samples

DIGITS = Path(__file__).with_name("digits.csv.gz")
HELD_OUT_EVERY = 5  # every fifth digit, and every fifth image of a class, is kept out of training
SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm")
_PIXELS = 3 * 32 * 32  # of a CIFAR image: its red plane, its green, its blue


# ── the digits ───────────────────────────────────────────────────────────────────────────────────────
def digits(path: str, size: int) -> tuple[Samples, Samples]:
    """The 1797 digits, 8 × 8 in 17 greys; rows of 64 pixels and a label."""
    with gzip.open(DIGITS, "rt", encoding="ascii") as file:
        rows = torch.tensor([[int(float(cell)) for cell in row] for row in csv.reader(file)], dtype=torch.uint8)
    pixels, labels = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1]
    places = torch.arange(len(rows))
    held_out = places % HELD_OUT_EVERY == 0
    pick = partial(_picked, pixels, labels, 16)
    return Samples(places[~held_out], pick, 10), Samples(places[held_out], pick, 10)


def _picked(
    pixels: torch.Tensor, labels: torch.Tensor, white: int, picked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 (n, 3, h, w) in −1 … 1, int64 labels, from bytes of which `white` is the largest."""
    images = pixels[picked].float() * (2 / white) - 1
    return images.expand(-1, CHANNELS, -1, -1), labels[picked].long()


# ── CIFAR ────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Layout:
    """How one of the CIFAR sets is published: files of so many records, each its label bytes and then the pixels."""

    name: str
    archive: str
    train: tuple[str, ...]
    test: str
    records: tuple[int, int]  # of a training file, of the test file
    labels: tuple[int, ...]  # how many values each label byte has; the last one is learnt

    @property
    def record(self) -> int:
        return len(self.labels) + _PIXELS


CIFAR10 = Layout(
    "CIFAR-10", "cifar-10-binary.tar.gz", tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin",
    (10_000, 10_000), (10,),
)  # fmt: skip
CIFAR100 = Layout("CIFAR-100", "cifar-100-binary.tar.gz", ("train.bin",), "test.bin", (50_000, 10_000), (20, 100))


def cifar10(path: str, size: int) -> tuple[Samples, Samples]:
    """CIFAR-10 as `cifar-10-binary.tar.gz` unpacks; raises WorkloadError when a file is missing or cut short."""
    return _cifar(CIFAR10, Path(path))


def cifar100(path: str, size: int) -> tuple[Samples, Samples]:
    """CIFAR-100 as `cifar-100-binary.tar.gz` unpacks: its 100 fine labels; raises WorkloadError as cifar10."""
    return _cifar(CIFAR100, Path(path))


def _cifar(layout: Layout, folder: Path) -> tuple[Samples, Samples]:
    train = torch.cat([_records(layout, folder / name, layout.records[0]) for name in layout.train])
    test = _records(layout, folder / layout.test, layout.records[1])
    return _cifar_samples(layout, train), _cifar_samples(layout, test)


def _cifar_samples(layout: Layout, records: torch.Tensor) -> Samples:
    before = len(layout.labels)
    pixels = records[:, before:].reshape(-1, 3, 32, 32)
    return Samples(torch.arange(len(records)), partial(_picked, pixels, records[:, before - 1], 255), layout.labels[-1])


def _records(layout: Layout, path: Path, count: int) -> torch.Tensor:
    """A memory map of one file, as bytes (count, record); raises WorkloadError unless it holds what it should."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise WorkloadError(
            f"data: open {path}: {error.strerror}; give the folder that {layout.archive} unpacks to"
        ) from error
    if size != count * layout.record:
        raise WorkloadError(
            f"data: read {path}: it has {size} bytes, not {count} records of {layout.record}; fetch {layout.name} anew"
        )
    records = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(count, layout.record)
    for place, values in enumerate(layout.labels):
        if (label := int(records[:, place].max())) >= values:
            raise WorkloadError(
                f"data: read {path}: it has a label {label}, {layout.name} ends at {values - 1}; fetch it anew"
            )
    return records


# ── a folder of one's own ────────────────────────────────────────────────────────────────────────────
class Pictures:
    """Image files, each decoded when it is first asked for, and kept as bytes (3, size, size)."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], size: int) -> None:
        self._paths, self._labels, self._size = paths, torch.tensor(labels), size
        self._pixels = torch.empty(len(paths), CHANNELS, size, size, dtype=torch.uint8)
        self._known = torch.zeros(len(paths), dtype=torch.bool)

    def pick(self, picked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `_picked`; raises WorkloadError for a file that is no image."""
        for place in picked[~self._known[picked]].tolist():
            self._pixels[place] = decoded(self._paths[place], self._size)
            self._known[place] = True
        return _picked(self._pixels, self._labels, 255, picked)


def folder(path: str, size: int) -> tuple[Samples, Samples]:
    """A folder with a subfolder of images for each class, in the order of their names, resized to size × size. Of each
    class the last image of five is held out. Raises WorkloadError for a class of less than two images, and for
    less than two classes.
    """
    paths, labels, held_out = [], [], []
    classes = list(_classes(Path(path)))
    for label, files in enumerate(classes):
        paths += files
        labels += [label] * len(files)
        held_out += [(len(files) - 1 - place) % HELD_OUT_EVERY == 0 for place in range(len(files))]
    pick, kept = Pictures(paths, labels, size).pick, torch.tensor(held_out)
    places = torch.arange(len(paths))
    return Samples(places[~kept], pick, len(classes)), Samples(places[kept], pick, len(classes))


def _classes(folder: Path) -> Iterator[list[Path]]:
    """The image files of each class, sorted."""
    try:
        subfolders = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
        if len(subfolders) < 2:
            raise WorkloadError(
                f"data: list {folder}: it has {len(subfolders)} subfolders; make one of images for each class, "
                "two at least"
            )
        for subfolder in subfolders:
            files = sorted(one for one in subfolder.iterdir() if one.suffix.lower() in SUFFIXES)
            if len(files) < 2:
                raise WorkloadError(
                    f"data: list {subfolder}: it has {len(files)} images ({', '.join(SUFFIXES)}); a class needs two "
                    "at least, for one is held out"
                )
            yield files
    except OSError as error:
        raise WorkloadError(f"data: list {error.filename}: {error.strerror}; give a folder that can be read") from error


def decoded(path: Path, size: int) -> torch.Tensor:
    """One image file as bytes (3, size, size), by Pillow, which only folders of images need. Raises WorkloadError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise WorkloadError(f"data: decode {path}: Pillow is not installed where ranks run; install pillow") from error
    try:
        with Image.open(path) as image:
            small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise WorkloadError(f"data: decode {path}: {error}; remove the file, or save it anew") from error
    planes = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return planes.view(size, size, CHANNELS).permute(2, 0, 1)
