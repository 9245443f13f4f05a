"""Real data: as published or as a person keeps it, shared among ranks, refused in a sentence where it is wrong."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch
from PIL import Image

from rig.errors import WorkloadError
from rig.work import Data
from rig.workloads import data_images
from rig.workloads.data import load
from rig.workloads.samples import Samples

CIFAR10 = [data_images.CIFAR10.test, *data_images.CIFAR10.train]


def loaded(source: Data = Data()) -> tuple[Samples, Samples]:  # noqa: B008  frozen
    return load(vars(source))


# ── sharing ──────────────────────────────────────────────────────────────────────────────────────────
def test_same_seed_same_order_no_overlap() -> None:
    images, held_out = loaded()
    assert (len(images), len(held_out)) == (1437, 360)
    shards = [images.shard(rank, 3, seed=7).order.tolist() for rank in range(3)]
    assert sorted(chain.from_iterable(shards)) == images.order.tolist()
    assert images.shard(1, 3, seed=7).order.tolist() == shards[1]
    assert images.shard(1, 3, seed=8).order.tolist() != shards[1]
    assert not set(images.order.tolist()) & set(held_out.order.tolist())


def test_a_batch_wraps_around_the_end() -> None:
    images, _ = loaded()
    pixels, labels = images.batch(len(images) - 1, 3)
    _, last = images.batch(len(images) - 1, 1)
    _, first = images.batch(0, 2)
    assert (pixels.shape, labels.tolist()) == ((3, 3, 8, 8), [*last.tolist(), *first.tolist()])
    assert (pixels.abs() <= 1).all()
    with pytest.raises(WorkloadError, match="rank 1437 gets none"):
        images.shard(1437, 1438, seed=0)


@pytest.mark.parametrize("most", [1, 7, 400, 1000, 2000])
def test_thinned_samples_are_spread_over_all(most: int) -> None:
    images, _ = loaded()
    order = images.thinned(most).order
    assert min(most, len(images)) / 2 < len(order) <= most
    gaps = {images.order.tolist().index(place) for place in order.tolist()[:2]}
    assert gaps <= {0, -(-len(images) // most)}


# ── CIFAR ────────────────────────────────────────────────────────────────────────────────────────────
def published(path: Path, labels: list[int], size: int) -> None:
    """A file of records, the first of which has these labels, and its red plane full; all others are naught."""
    with open(path, "wb") as file:
        file.write(bytes(labels) + bytes([255]) * 1024)
        file.truncate(size)


def cifar10(folder: Path, size: int = 10_000 * 3073, label: int = 7) -> Data:
    for name in CIFAR10:
        published(folder / name, [label], size)
    return Data("cifar10", str(folder))


def cifar100(folder: Path, fine: int = 99, coarse: int = 19, records: int = 50_000) -> Data:
    published(folder / "train.bin", [coarse, fine], records * 3074)
    published(folder / "test.bin", [coarse, fine], 10_000 * 3074)
    return Data("cifar100", str(folder))


def test_cifar10_is_read_as_published(tmp_path: Path) -> None:
    images, held_out = loaded(cifar10(tmp_path))
    assert (len(images), len(held_out), images.classes) == (50_000, 10_000, 10)
    pixels, labels = held_out.batch(0, 2)
    assert labels.tolist() == [7, 0]
    assert pixels.shape == (2, 3, 32, 32)
    assert [plane.unique().tolist() for plane in pixels[0]] == [[1], [-1], [-1]]


def test_cifar100_is_read_as_published(tmp_path: Path) -> None:
    images, held_out = loaded(cifar100(tmp_path))
    assert (len(images), len(held_out), images.classes) == (50_000, 10_000, 100)
    pixels, labels = images.batch(0, 2)
    assert labels.tolist() == [99, 0]
    assert [plane.unique().tolist() for plane in pixels[0]] == [[1], [-1], [-1]]


def test_cifar_must_be_whole_and_have_its_labels(tmp_path: Path) -> None:
    for source in (Data("cifar10", str(tmp_path)), Data("cifar100", str(tmp_path))):
        with pytest.raises(WorkloadError, match=r"No such file or directory; give the folder that cifar-100?-binary"):
            loaded(source)
    with pytest.raises(WorkloadError, match=r"data_batch_1.bin: it has 1000 bytes, not 10000 records of 3073"):
        loaded(cifar10(tmp_path, size=1000))
    with pytest.raises(WorkloadError, match=r"data_batch_1.bin: it has a label 10, CIFAR-10 ends at 9"):
        loaded(cifar10(tmp_path, label=10))
    with pytest.raises(WorkloadError, match=r"train.bin: it has 153696926 bytes, not 50000 records of 3074"):
        loaded(cifar100(tmp_path, records=49_999))
    with pytest.raises(WorkloadError, match=r"train.bin: it has a label 20, CIFAR-100 ends at 19"):
        loaded(cifar100(tmp_path, coarse=20))


# ── folders of images ────────────────────────────────────────────────────────────────────────────────
def pictures(folder: Path, counts: dict[str, int], suffix: str = ".png") -> Data:
    """A folder with a subfolder for each class, of images in a colour of its own."""
    for place, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            colour = (255, 0, 0) if place == 0 else (0, 0, 255)
            Image.new("RGB", (40, 24), colour).save(folder / name / f"{number:02}{suffix}")
    return Data("images", str(folder), 16)


@pytest.mark.parametrize("suffix", [".png", ".PPM", ".jpg"])
def test_a_folder_of_images_has_a_class_for_each_subfolder(tmp_path: Path, suffix: str) -> None:
    source = pictures(tmp_path / "pets", {"cats": 11, "dogs": 2}, suffix)
    (tmp_path / "pets" / "cats" / "notes.txt").write_text("no image")
    images, held_out = loaded(source)
    assert (len(images), len(held_out), images.classes) == (9, 4, 2)
    pixels, labels = held_out.batch(0, 4)
    assert labels.tolist() == [0, 0, 0, 1]
    assert pixels.shape == (4, 3, 16, 16)
    red, blue = ([1, -1, -1], [-1, -1, 1])
    for colour, wanted in zip(pixels.mean(dim=(2, 3))[2:].tolist(), (red, blue), strict=True):
        assert colour == pytest.approx(wanted, abs=0.02)


def test_a_folder_that_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere: No such file or directory; give a folder"):
        loaded(Data("images", str(tmp_path / "nowhere"), 16))
    with pytest.raises(WorkloadError, match=r"it has 0 subfolders; make one of images for each class"):
        loaded(Data("images", str(tmp_path), 16))
    with pytest.raises(WorkloadError, match=r"dogs: it has 0 images \(.png, .jpg, .jpeg, .ppm\); a class needs two"):
        loaded(pictures(tmp_path / "empty", {"cats": 3, "dogs": 0}))


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    source = pictures(tmp_path / "pets", {"cats": 3, "dogs": 3})
    damaged = tmp_path / "pets" / "dogs" / "00.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    images, held_out = loaded(source)
    held_out.touch(len(held_out))
    with pytest.raises(WorkloadError, match=r"data: decode .*dogs/00.png: .*; remove the file, or save it anew"):
        images.touch(len(images))


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────
def test_text_is_windows_of_bytes_labelled_with_what_follows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("añb" * 20, encoding="utf-8")
    texts, held_out = loaded(Data("text", str(tmp_path / "a.txt"), 4))
    assert (len(texts), len(held_out), texts.classes) == (18, 1, 256)
    tokens, labels = texts.batch(0, 2)
    assert bytes(tokens.flatten().tolist()).decode() == "añbañb"
    assert bytes(labels.flatten().tolist()) == "añbañb".encode()[1:] + b"a"
    assert tokens.dtype == labels.dtype == torch.int64


def test_pythons_own_topics_are_always_there() -> None:
    texts, held_out = loaded(Data("topics", size=128))
    assert len(texts) > 2000
    assert len(texts) == pytest.approx(9 * len(held_out), rel=0.01)
    tokens, _ = texts.batch(0, 1)
    assert "assert" in bytes(tokens.flatten().tolist()).decode()


def test_text_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"a.txt: No such file or directory; give a file of text"):
        loaded(Data("text", str(tmp_path / "a.txt"), 4))
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    with pytest.raises(WorkloadError, match=r"a.txt: it is not UTF-8: byte 3: invalid start byte; convert it"):
        loaded(Data("text", str(tmp_path / "a.txt"), 4))
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(WorkloadError, match=r"windows of 4 tokens: its 5 bytes give 1; 10 are the least"):
        loaded(Data("text", str(tmp_path / "a.txt"), 4))
