import hashlib
import pickle
import shutil
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits
from tiny_data import data_module
from torchvision import datasets

from taming.data import CIFAR10, Digits, FashionMNIST
from taming.data.module import ImageDataModule
from taming.runtime.errors import UserError


def module(source: Any, **settings: Any) -> ImageDataModule:
    return data_module(
        source, **{"resolution": 32, "resize": "enlarge", "crop": "none", **settings}
    )


def test_digits() -> None:
    data, original = module(Digits(), resolution=24), sklearn_digits()
    train, val = data.train_dataset, data.val_dataset
    assert (len(train), len(val)) == (1438, 359)  # a fifth
    assert (data.channels, data.resolution, data.num_classes) == (1, (24, 24), 10)
    shares = np.bincount([val.label(i) for i in range(len(val))])
    assert 35 <= shares.min() <= shares.max() <= 37
    for item in range(20):
        number = int(train.name(item).split("/")[1])
        expected = (original.images[number] / 16 * 2 - 1).repeat(3, 0).repeat(3, 1)
        assert np.abs(train[item]["images"][0].numpy() - expected).max() < 0.5 / 127
        assert train[item]["labels"] == original.target[number]
    again = module(Digits(), resolution=24, seed=1)
    assert train.fingerprint() == again.train_dataset.fingerprint() != val.fingerprint()


def test_digits_in_color_and_shifted() -> None:
    data = module(Digits(channels=3), resolution=16, random_shift=2).train_dataset
    assert data[0]["images"].shape == (3, 16, 16)
    assert torch.equal(data[0]["images"][0], data[0]["images"][2])
    assert len({data[0, draw]["images"].numpy().tobytes() for draw in range(30)}) > 10


def test_fashion_mnist(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", ["http://unreachable.invalid/"])
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in (shared / "data" / "FashionMNIST" / "raw").glob("*.gz"):
        shutil.copy(file, raw)
    source = FashionMNIST(root=tmp_path)
    data = module(source, pad=2)
    train, val = data.train_dataset, data.val_dataset
    assert (len(train), len(val)) == (60000, 10000)
    assert data.class_names[9] == "Ankle boot"
    assert train[0]["labels"] == 9
    assert (train.name(7), val.name(7)) == ("train/00007", "test/00007")
    image = train[0]["images"]
    assert image.shape == (1, 32, 32)
    assert image[0, :2].max() == -1  # padding
    assert image.max() > 0.9
    (raw / "train-images-idx3-ubyte").write_bytes(b"damaged")
    with pytest.raises(UserError, match="without damaged"):
        module(source, pad=2).setup()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise URLError("no network")

    for name in ("cifar", "mnist"):
        monkeypatch.setattr(f"torchvision.datasets.{name}.download_and_extract_archive", fail)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (CIFAR10, ("cifar-10-python.tar.gz", "https://www.cs.toronto")),
        (FashionMNIST, ("FashionMNIST/raw", "t10k-labels-idx1-ubyte.gz")),
    ],
)
def test_a_missing_set_says_which_files_to_put_where(
    tmp_path: Path, no_network: None, kind: Any, parts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        module(kind(root=tmp_path), resize="stretch").setup()
    for part in (str(tmp_path), "no network", *parts):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Digits(), "Digits: an image of 8x8 pixels .* 36x36: .*multiple of 8x8"),
        (FashionMNIST(root="nowhere"), "FashionMNIST: an image of 28x28 "),
        (CIFAR10(root="nowhere"), "CIFAR10: an image of 32x32 "),
    ],
)
def test_the_resolution_is_checked_before_anything_is_loaded(source: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        module(source, resolution=36)


def test_cifar10_files_are_verified_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    """With small files of the real layout, as the real ones are not at hand."""
    folder = tmp_path / datasets.CIFAR10.base_folder
    folder.mkdir()

    def write(name: str, content: dict[str, object]) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def batch(name: str) -> list[str]:
        pixels = np.zeros((2, 3072), dtype=np.uint8)
        pixels[1, :1024] = 255  # red
        return [name, write(name, {"data": pixels, "labels": [0, 9]})]

    names = [f"class{n}" for n in range(10)]
    train = [batch("data_batch_1"), batch("data_batch_2")]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [batch("test_batch")])
    md5 = write("batches.meta", {"label_names": names})
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": md5})
    data = module(CIFAR10(root=tmp_path))
    assert (len(data.train_dataset), len(data.val_dataset)) == (4, 2)
    assert data.class_names == names
    item = data.train_dataset[1]
    assert item["labels"] == 9
    assert item["images"].mean(dim=(1, 2)).tolist() == [1, -1, -1]
    (folder / "test_batch").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"CIFAR10 in .* cannot be read"):
        module(CIFAR10(root=tmp_path)).setup()
