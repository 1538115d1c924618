import errno
import itertools
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_images import noise, write_images, write_maps
from tiny_models import tiny_vqgan

from taming.data import (
    ImageDataset,
    ImageFiles,
    ImageTransform,
    LabelMapReader,
    LoaderOptions,
    PairFiles,
    PictureReader,
    TokenDataset,
)
from taming.data.module import ImageDataModule
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN, CellClasses
from taming.training.encode_dataset import encode_dataset


def tokenizer(seed: int = 0, **changes: Any) -> VQGAN:
    return tiny_vqgan(seed, resolution=16, channel_multipliers=(1, 1, 1), **changes)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Seven pictures and label maps of five classes, 20×20."""
    write_images(tmp_path / "pairs" / "image", 7, 20)
    write_maps(tmp_path / "pairs" / "label", noise(7, 5, 5, most=4).repeat(4, 1).repeat(4, 2))
    return tmp_path / "pairs"


def copied(path: Path) -> Path:
    """Something to validate on, so that all of `path` is trained on."""
    return Path(shutil.copytree(path, path.with_name("copy"), dirs_exist_ok=True))


def pair_files(path: Path, **changes: Any) -> PairFiles:
    settings = {"condition_reader": LabelMapReader(5), "val_path": copied(path), **changes}
    return PairFiles(path=path, reader=PictureReader(), **settings)


def dataset(source: Path | ImageFiles | PairFiles, **changes: Any) -> ImageDataset:
    """The training part, with crops and flips."""
    if isinstance(source, Path):
        source = pair_files(source)
    seed = changes.pop("seed", 0)
    transform = {"resize": "shorter_side", "crop": "random", "horizontal_flip": True, **changes}
    module = ImageDataModule(
        source, ImageTransform(resolution=16, **transform), LoaderOptions(2), seed
    )
    return module.train_dataset


def encoded(
    data: ImageDataset, cache: Path, images: VQGAN, conditions: Any = None, **changes: Any
) -> TokenDataset:
    settings = {"num_views": 3, "batch_size": 4, "num_workers": 0, "device": torch.device("cpu")}
    settings |= {"condition_tokenizer": conditions, **changes}
    return encode_dataset(images, data, cache, **settings)


def interrupting(model: Any, after: int, error: BaseException) -> list[int]:
    """Makes `encode` raise at its batch number `after`; returns the sizes of batches so far."""
    sizes: list[int] = []
    encode_images = type(model).encode

    def encode(images: torch.Tensor) -> torch.Tensor:
        if len(sizes) == after:
            raise error
        sizes.append(len(images))
        return encode_images(model, images)

    model.encode = encode
    return sizes


def caches(cache: Path) -> list[Path]:
    return list(cache.glob("[!.]*"))  # without the locks


def files(cache: Path) -> dict[str, bytes]:
    (directory,) = caches(cache)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


CELLS = CellClasses(5, 8, (16, 16))


@pytest.fixture
def shards_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """21 items are six shards, the last of one item."""
    monkeypatch.setattr("taming.data.token_writer.SHARD_ITEMS", 4)


@pytest.mark.parametrize("kind", ["cells", "vqgan"])
def test_images_and_conditions_share_a_view(pairs: Path, tmp_path: Path, kind: str) -> None:
    images = tokenizer()
    conditions = CELLS if kind == "cells" else tokenizer(1, image_channels=5)
    data = dataset(pairs)
    tokens = encoded(data, tmp_path / "cache", images, conditions)
    assert len(tokens) == 7
    models = {"images": ("indices", images), "conditions": ("condition_indices", conditions)}
    with torch.inference_mode():
        for index, view in itertools.product(range(7), range(3)):
            item = data[index] if view == 0 else data[index, 7 * view + index]
            for source, (name, model) in models.items():
                expected = model.encode(item[source][None])[0].numpy()
                assert np.array_equal(tokens.arrays[name][index, view], expected)
    assert tokens.arrays["condition_indices"].shape[2:] == ((2, 2) if kind == "cells" else (4, 4))
    views = tokens.arrays["condition_indices"]
    assert (views[:, 1] != views[:, 0]).any()  # crops and flips


def test_a_replacement_keeps_its_own_class(tmp_path: Path) -> None:
    for index, label in enumerate(("cat", "dog", "cow", "cow")):
        folder = tmp_path / "zoo" / label
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (index * 60, 20, 0)).save(folder / f"{index}.png")
    (tmp_path / "zoo" / "dog" / "1.png").write_bytes(b"broken, and the only one of its class")
    source = ImageFiles(
        path=tmp_path / "zoo", val_path=copied(tmp_path / "zoo"), reader=PictureReader(),
        max_broken_fraction=0.5, check="none",
    )  # fmt: skip
    data = dataset(source)
    assert [data.label(index) for index in range(4)] == [0, 1, 1, 2]  # cat, cow, cow, dog
    model = tokenizer()
    sizes = interrupting(model, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        encoded(data, tmp_path / "cache", model, num_views=2, batch_size=3)
    assert sizes == [3]
    tokens = encoded(data, tmp_path / "cache", tokenizer(), num_views=2, batch_size=3)
    assert tokens[[0, 1, 2, 3]]["labels"].tolist() == [0, 1, 1, 0]  # the dog's stand-in is a cat
    assert np.array_equal(tokens.arrays["indices"][3, 0], tokens.arrays["indices"][0, 0])


@pytest.mark.usefixtures("shards_of_four")
def test_a_cache_names_replaced_images(
    pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One image cannot be read for a moment; after an interruption, another."""

    def tokens(model: VQGAN, unreadable: Path | None = None) -> TokenDataset:
        data = dataset(pair_files(pairs, check="none"))
        if unreadable is not None:
            unreadable.rename(tmp_path / "away")
        caplog.clear()
        try:
            return encoded(data, tmp_path / "cache", model, num_workers=2)
        finally:
            if unreadable is not None:
                (tmp_path / "away").rename(unreadable)

    model = tokenizer()
    interrupting(model, 3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        tokens(model, pairs / "image" / "002.png")
    for unreadable in (pairs / "image" / "006.png", None):  # made, and then found
        assert tokens(tokenizer(), unreadable).replaced_names == ["image/002.png", "image/006.png"]
        (directory,) = caches(tmp_path / "cache")
        for part in ("pairs: 2 images could not be read", "image/002.png", f"delete {directory}"):
            assert part in caplog.messages[-1]


@pytest.mark.usefixtures("shards_of_four")
@pytest.mark.parametrize("batches", [0, 2, 5])
def test_an_interrupted_encoding_continues(
    pairs: Path, tmp_path: Path, batches: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """21 items in batches of 4: of 6 batches some are done before, and the rest after."""
    encoded(dataset(pairs), tmp_path / "whole", tokenizer(), CELLS)
    model = tokenizer()
    interrupting(model, batches, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        encoded(dataset(pairs), tmp_path / "cache", model, CELLS)
    (unfinished,) = caches(tmp_path / "cache")
    assert unfinished.name.endswith(".unfinished")
    model = tokenizer()
    sizes = interrupting(model, 100, KeyboardInterrupt())
    capsys.readouterr()
    encoded(dataset(pairs), tmp_path / "cache", model, CELLS)
    assert sizes == [4, 4, 4, 4, 4, 1][batches:]
    assert files(tmp_path / "cache") == files(tmp_path / "whole")
    first, *_, last = capsys.readouterr().err.split("\r")[1:]
    assert f" {4 * batches}/21 " in first
    assert " 21/21 " in last
    sizes.clear()
    encoded(dataset(pairs), tmp_path / "cache", model, CELLS)  # the cache is whole now
    assert sizes == []


def test_full_disk_while_encoding(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """21 items in shards of 8, of which the second does not fit: the first one stays."""
    encoded(dataset(pairs), tmp_path / "whole", tokenizer(), CELLS)
    monkeypatch.setattr("taming.data.token_writer.SHARD_ITEMS", 8)
    save = np.savez

    def save_one(file: Any, **arrays: Any) -> None:
        if list((tmp_path / "cache").glob("*/*.npz")):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr("numpy.savez", save_one)
        with pytest.raises(UserError, match=r"cannot be written .*No space left.*Free some"):
            encoded(dataset(pairs), tmp_path / "cache", tokenizer(), CELLS)
    model = tokenizer()
    sizes = interrupting(model, 100, SystemExit(9))
    encoded(dataset(pairs), tmp_path / "cache", model, CELLS)
    assert sizes == [4, 4, 4, 1]
    assert files(tmp_path / "cache") == files(tmp_path / "whole")


def test_a_cache_depends_on_tokenizers_images_and_views(pairs: Path, tmp_path: Path) -> None:
    directories: set[Path] = set()

    def is_new(**changes: Any) -> bool:
        settings = {"images": tokenizer(), "conditions": CELLS, "num_views": 2, **changes}
        data = settings.pop("data", None) or dataset(pairs)
        encoded(data, tmp_path / "cache", **settings)
        before = len(directories)
        directories.update(caches(tmp_path / "cache"))
        return len(directories) > before

    assert is_new() and not is_new() and not is_new(batch_size=3)
    assert is_new(images=tokenizer(1))
    for conditions in (CellClasses(5, 4, (16, 16)), tokenizer(image_channels=5), None):
        assert is_new(conditions=conditions)
    assert is_new(num_views=3)
    assert is_new(data=dataset(pairs, seed=1))
    assert is_new(num_views=1)
    assert not is_new(num_views=1, data=dataset(pairs, seed=1))  # nothing of it is random
    assert is_new(data=dataset(pairs, horizontal_flip=False))
    file = pairs / "label" / "000.png"
    Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(file)
    assert is_new()


@pytest.mark.usefixtures("shards_of_four")
def test_two_processes_share_an_encoding(
    pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One is slow: it has its first batch only when the other has made the rest, and waits."""
    encoded(dataset(pairs), tmp_path / "whole", tokenizer(), CELLS)
    data, sizes, results = dataset(pairs), [], []
    at_work = threading.Event()

    def work(model: VQGAN, slow: bool) -> None:
        sizes.append(interrupting(model, 100, KeyboardInterrupt()))
        encode, deadline = model.encode, time.monotonic() + 60

        def with_the_other(images: torch.Tensor) -> torch.Tensor:
            if slow:
                at_work.set()
                while "waiting for other" not in caplog.text and time.monotonic() < deadline:
                    time.sleep(0.01)
            assert at_work.wait(60)
            return encode(images)

        model.encode = with_the_other
        results.append(encoded(data, tmp_path / "cache", model, CELLS))

    threads = [threading.Thread(target=work, args=[tokenizer(), slow]) for slow in (True, False)]
    with caplog.at_level(logging.INFO):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(sum, sizes)) in ([4, 17], [1, 20])
    assert torch.equal(results[0][[6]]["indices"], results[1][[6]]["indices"])
    assert files(tmp_path / "cache") == files(tmp_path / "whole")
    (directory,) = caches(tmp_path / "cache")
    assert f"waiting for other processes that work on {directory}" in caplog.text
