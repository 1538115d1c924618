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

from taming.data import CIFAR10, Digits, FashionMNIST, ImageDataModule
from taming.errors import UserError

ENLARGED: dict[str, Any] = {"resolution": 32, "resize": "enlarge", "crop": "none"}


def digits(channels: Any = 1, **settings: Any) -> ImageDataModule:
    return data_module(Digits(channels=channels), **{**ENLARGED, **settings})


def fashion_mnist(root: Path, **settings: Any) -> ImageDataModule:
    return data_module(FashionMNIST(root=root), **{**ENLARGED, "pad": 2, **settings})


def cifar10(root: Path, **settings: Any) -> ImageDataModule:
    return data_module(CIFAR10(root=root), **{**ENLARGED, **settings})


def test_digits_facts() -> None:
    module = digits(resolution=32)
    train, val = module.train_dataset, module.val_dataset
    assert len(train) + len(val) == 1797
    assert len(val) == 359  # a fifth
    assert module.num_classes == 10
    assert (module.channels, module.resolution) == (1, (32, 32))
    shares = np.bincount([val.label(i) for i in range(len(val))])
    assert shares.min() >= 35
    assert shares.max() <= 37
    images = torch.stack([train[i]["images"] for i in range(50)])
    assert images.shape == (50, 1, 32, 32)
    assert (images.min(), images.max()) == (-1, 1)
    assert (images[:, :, :, 0] == -1).float().mean() > 0.9  # dark around


def test_digits_are_enlarged_exactly() -> None:
    original = sklearn_digits()
    data = digits(resolution=24).train_dataset
    assert data.name(0).startswith("all/0")
    for item in range(20):
        number = int(data.name(item).split("/")[1])
        expected = (original.images[number] / 16 * 2 - 1).repeat(3, 0).repeat(3, 1)
        assert np.abs(data[item]["images"][0].numpy() - expected).max() < 0.5 / 127
        assert data[item]["labels"] == original.target[number]


def test_digits_want_a_multiple_of_eight() -> None:
    with pytest.raises(UserError, match=r"Digits is 8x8 .* resolution is 28x28: .*multiple of 8x8"):
        digits(resolution=28)


def test_digits_in_color_and_shifted() -> None:
    module = digits(resolution=16, channels=3, random_shift=2)
    data = module.train_dataset
    assert data[0]["images"].shape == (3, 16, 16)
    assert torch.equal(data[0]["images"][0], data[0]["images"][2])
    assert len({data[0, draw]["images"].numpy().tobytes() for draw in range(30)}) > 10


def test_digits_fingerprint_and_split_do_not_depend_on_the_seed() -> None:
    first, second = (digits(seed=seed) for seed in (0, 1))
    assert first.train_dataset.fingerprint() == second.train_dataset.fingerprint()
    assert first.train_dataset.fingerprint() != first.val_dataset.fingerprint()


def test_fashion_mnist(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", ["http://unreachable.invalid/"])
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in (shared / "data" / "FashionMNIST" / "raw").glob("*.gz"):
        shutil.copy(file, raw)
    module = fashion_mnist(tmp_path)
    train, val = module.train_dataset, module.val_dataset
    assert (len(train), len(val)) == (60000, 10000)
    assert module.class_names[9] == "Ankle boot"
    assert train[0]["labels"] == 9
    assert train.name(7) == "train/00007"
    assert val.name(7) == "test/00007"
    image = train[0]["images"]
    assert image.shape == (1, 32, 32)
    assert image[0, :2].max() == -1  # padding
    assert image.max() > 0.9
    unpadded = fashion_mnist(tmp_path, pad=0, resolution=28).train_dataset
    assert torch.equal(unpadded[0]["images"], image[:, 2:30, 2:30])
    (raw / "train-images-idx3-ubyte").write_bytes(b"damaged")
    with pytest.raises(UserError, match="without damaged or unpacked files"):
        fashion_mnist(tmp_path).setup()


def no_network(*args: object, **kwargs: object) -> None:
    raise URLError("no network")


def test_absent_sets_say_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    with pytest.raises(UserError) as error:
        cifar10(tmp_path).setup()
    for part in (str(tmp_path), "cifar-10-python.tar.gz", "https://www.cs.toronto", "no network"):
        assert part in str(error.value)
    with pytest.raises(UserError) as error:
        fashion_mnist(tmp_path).setup()
    for part in (str(tmp_path / "FashionMNIST" / "raw"), "t10k-labels-idx1-ubyte.gz", "no network"):
        assert part in str(error.value)


def test_built_in_sizes_are_checked_before_any_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="FashionMNIST is 28x28"):
        fashion_mnist(tmp_path / "nowhere", pad=0, resolution=32)
    with pytest.raises(UserError, match="CIFAR10 is 32x32"):
        cifar10(tmp_path / "nowhere", resolution=48)


def test_cifar10_files_are_verified_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small files of the real layout, as the real ones are not at hand."""
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
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
    monkeypatch.setattr(
        datasets.CIFAR10, "train_list", [batch("data_batch_1"), batch("data_batch_2")]
    )
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [batch("test_batch")])
    md5 = write("batches.meta", {"label_names": names})
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": md5})
    module = cifar10(tmp_path)
    assert (len(module.train_dataset), len(module.val_dataset)) == (4, 2)
    assert module.class_names == names
    item = module.train_dataset[1]
    assert item["labels"] == 9
    assert item["images"].mean(dim=(1, 2)).tolist() == [1, -1, -1]
    (folder / "test_batch").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"CIFAR10 in .* cannot be read"):
        cifar10(tmp_path).setup()
