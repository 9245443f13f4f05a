"""Real images: the digits that ship with the rig, or a folder with CIFAR-10 in its published binary layout.

Pixels stay bytes until a batch is taken: CIFAR-10 is 184 MB so, and would be four times that as float32.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import torch

from rig.errors import WorkloadError
from rig.workloads.nets import CHANNELS

DIGITS = Path(__file__).with_name("digits.csv.gz")
HELD_OUT_EVERY = 5  # every fifth digit is kept out of training
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
_RECORDS, _RECORD = 10_000, 3073  # a file's records; one label byte, then 3 × 32 × 32 pixels


@dataclass(frozen=True)
class Images:
    """Labelled images: pixels (n, channels, h, w) and labels (n), both uint8; `order` picks and sorts them."""

    pixels: torch.Tensor
    labels: torch.Tensor
    largest: int  # the value of a white pixel
    order: torch.Tensor

    def __len__(self) -> int:
        return len(self.order)

    def shard(self, rank: int, size: int, seed: int) -> Images:
        """Every size-th image of one shuffle that all ranks share; raises WorkloadError when none is left."""
        mixed = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        order = self.order[mixed[rank::size]]
        if len(order) == 0:
            raise WorkloadError(f"data: share {len(self)} images among {size} ranks: rank {rank} gets none; use fewer")
        return Images(self.pixels, self.labels, self.largest, order)

    def batch(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` images from place `first`, around the end: float32 (count, 3, h, w) in −1 … 1, int64 labels."""
        picked = self.order[torch.arange(first, first + count) % len(self)]
        pixels = self.pixels[picked].float() * (2 / self.largest) - 1
        return pixels.expand(-1, CHANNELS, -1, -1), self.labels[picked].long()


def load(folder: str | None) -> tuple[Images, Images]:
    """Training and held-out images: CIFAR-10 from a folder, or the digits. Raises WorkloadError."""
    return digits() if folder is None else cifar10(Path(folder))


def digits() -> tuple[Images, Images]:
    """The 1797 digits, 8 × 8 in 17 greys; rows of 64 pixels and a label."""
    with gzip.open(DIGITS, "rt", encoding="ascii") as file:
        rows = torch.tensor([[int(float(cell)) for cell in row] for row in csv.reader(file)], dtype=torch.uint8)
    pixels, labels = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1]
    places = torch.arange(len(rows))
    held_out = places % HELD_OUT_EVERY == 0
    return Images(pixels, labels, 16, places[~held_out]), Images(pixels, labels, 16, places[held_out])


def cifar10(folder: Path) -> tuple[Images, Images]:
    """CIFAR-10 as `cifar-10-binary.tar.gz` unpacks; raises WorkloadError when a file is missing or cut short."""
    for name in (*TRAIN_FILES, TEST_FILE):
        if (label := int(_records(folder / name)[:, 0].max())) > 9:
            raise WorkloadError(
                f"data: read {folder / name}: it has a label {label}, CIFAR-10 ends at 9; fetch it anew"
            )
    train = torch.cat([_records(folder / name) for name in TRAIN_FILES])
    return _cifar_images(train), _cifar_images(_records(folder / TEST_FILE))


def _cifar_images(records: torch.Tensor) -> Images:
    pixels = records[:, 1:].reshape(-1, 3, 32, 32)
    return Images(pixels, records[:, 0], 255, torch.arange(len(records)))


def _records(path: Path) -> torch.Tensor:
    """A memory map of one file, as (10000, 3073) bytes."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise WorkloadError(
            f"data: open {path}: {error.strerror}; give the folder that cifar-10-binary.tar.gz unpacks to, "
            "and make it visible in the node"
        ) from error
    if size != _RECORDS * _RECORD:
        raise WorkloadError(
            f"data: read {path}: it has {size} bytes, not {_RECORDS} records of {_RECORD}; fetch CIFAR-10 anew"
        )
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(_RECORDS, _RECORD)
