from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from taming.data import ImageFolder, InspectionImages, PictureReader
from taming.runtime.errors import UserError


def write(path: Path, height: int, width: int, value: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (value, value, value)).save(path)
    return path


def inspected(path: Path, **settings: Any) -> InspectionImages:
    source = ImageFolder(path, PictureReader())
    settings = {"resolution": None, "min_side": 8, "max_images": None, **settings}
    return InspectionImages(source, downsample_factor=4, **settings)


def batches(images: InspectionImages, batch_size: int) -> list[tuple[list[str], tuple[int, ...]]]:
    return [
        ([images.folder.name(number) for number in numbers], tuple(batch.shape))
        for numbers, batch in images.load(images.batches(batch_size), num_workers=0)
    ]


def test_images_of_one_size_share_batches(tmp_path: Path) -> None:
    for name, size in (("1", (8, 12)), ("2", (16, 8)), ("3", (10, 15)), ("4", (8, 12))):
        write(tmp_path / f"{name}.png", *size)
    images = inspected(tmp_path)
    assert batches(images, 2) == [
        (["1.png", "3.png"], (2, 3, 8, 12)),  # the third loses 2 rows and 3 columns
        (["4.png"], (1, 3, 8, 12)),
        (["2.png"], (1, 3, 16, 8)),
    ]
    assert (images.num_cropped, images.num_magnified) == (1, 0)


def test_sides_that_do_not_divide_are_center_cropped(tmp_path: Path) -> None:
    pixels = np.arange(10 * 11, dtype=np.uint8).reshape(10, 11)
    Image.fromarray(pixels).convert("RGB").save(tmp_path / "a.png")
    ((_, batch),) = inspected(tmp_path).load([[0]], num_workers=0)
    expected = torch.from_numpy(pixels[1:9, 1:9].copy()) / 127.5 - 1
    torch.testing.assert_close(batch[0, 0], expected)


def test_a_resolution_resizes_as_in_training(tmp_path: Path) -> None:
    write(tmp_path / "large.png", 40, 20)
    write(tmp_path / "small.png", 6, 30)
    images = inspected(tmp_path, resolution=[12, 8])
    assert [shape for _, shape in batches(images, 4)] == [(2, 3, 12, 8)]
    assert (images.num_cropped, images.num_magnified) == (0, 1)


def test_broken_files_are_dropped_and_named(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.png", 8, 8)
    (tmp_path / "0.png").write_bytes(b"no picture")  # its header is wrong
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.jpg")
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])  # its header is right
    images = inspected(tmp_path)
    assert [name for name, _ in images.broken] == ["0.png", "cut.jpg"]
    assert batches(images, 4) == [(["1.png", "2.png", "3.png"], (3, 3, 8, 8))]
    ((names, _),) = batches(inspected(tmp_path, max_images=2), 4)  # readable ones
    assert names == ["1.png", "2.png"]


def test_images_that_are_too_small(tmp_path: Path) -> None:
    for height, min_side, num_rows in ((3, 8, 0), (11, 11, 8)):
        write(tmp_path / "a.png", height, 40)
        message = rf"a\.png, {height}×40 .* leaves {num_rows}×40 .* {min_side} pixels"
        with pytest.raises(UserError, match=message):
            inspected(tmp_path, min_side=min_side)
    enlarged = inspected(tmp_path, min_side=11, resolution=12)
    assert batches(enlarged, 1) == [(["a.png"], (1, 3, 12, 12))]
