import logging
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from tiny_data import zipped
from torch.utils.data import DataLoader

from taming.data import (
    ImageDataset,
    ImageFolder,
    ImageTransform,
    LabelMapReader,
    Part,
    PictureReader,
)
from taming.runtime.errors import UserError

AUGMENTED = ImageTransform(
    resolution=16, resize="shorter_side", crop="random", crop_scale=(0.5, 1.0), horizontal_flip=True
)


def dataset(
    root: Path,
    check: Any = "none",
    transform: ImageTransform = AUGMENTED,
    seed: int = 0,
    indices: list[int] | None = None,
) -> ImageDataset:
    source = ImageFolder(root, PictureReader(), labels="auto", max_broken_fraction=0.25)
    source.drop_broken(check)
    return ImageDataset(Part(source, indices=indices), transform, seed=seed)


def test_items(make_folder: Any) -> None:
    data = dataset(make_folder({"cat": 2, "dog": 1}))
    item = data[2]
    assert item["images"].shape == (3, 16, 16)
    assert item["images"].dtype == torch.float32
    assert -1 <= item["images"].min() < -0.5 < 0.5 < item["images"].max() <= 1
    assert item["labels"] == data.label(2) == 1
    assert data.name(2) == "dog/0.png"
    with pytest.raises(IndexError):
        data[3]
    unlabelled = dataset(make_folder({"": 2}, "flat"))
    assert set(unlabelled[0]) == {"images"}
    assert unlabelled.label(0) is None


def test_augmentation_depends_on_seed_and_draw_alone(make_folder: Any) -> None:
    root = make_folder({"": 3})
    data = dataset(root)
    first = data[0, 5]["images"]
    data[1, 6], data[2, 7]  # whatever else was loaded
    assert torch.equal(data[0, 5]["images"], first)
    assert torch.equal(dataset(root)[0, 5]["images"], first)
    assert not torch.equal(data[0, 6]["images"], first)
    assert not torch.equal(dataset(root, seed=1)[0, 5]["images"], first)
    assert torch.equal(data[0]["images"], dataset(root, seed=1)[0]["images"])  # not augmented


def test_fingerprint(make_folder: Any) -> None:
    root = make_folder({"": 4})
    base = dataset(root).fingerprint()
    assert dataset(root, "full").fingerprint() == base
    assert dataset(root, seed=3).fingerprint() == base
    assert dataset(root, indices=[0, 1]).fingerprint() != base
    other = ImageTransform(resolution=16, resize="shorter_side", crop="center")
    assert dataset(root, transform=other).fingerprint() != base
    (root / "0.png").write_bytes((root / "0.png").read_bytes() + b"\0")
    assert dataset(root).fingerprint() != base


def test_a_file_that_breaks_later_is_replaced_by_one_of_its_class(
    make_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folder({"cat": 4, "dog": 4})
    data = dataset(root)
    (root / "cat" / "3.png").write_bytes(b"gone")
    with caplog.at_level(logging.WARNING, "taming"):
        item = data[3]
        assert torch.equal(data[3]["images"], item["images"])
    assert item["labels"] == 0
    assert torch.equal(item["images"], data[0]["images"])  # the next cat, round the corner
    assert data.replaced_names == ["cat/3.png"]
    (message,) = caplog.messages  # once
    assert "cat/3.png is broken (not an image of a known format)" in message
    assert pickle.loads(pickle.dumps(data)).replaced_names == ["cat/3.png"]


def test_replacements_in_a_stream_come_from_the_same_block(make_folder: Any) -> None:
    images = ImageFolder(make_folder({"cat": 3, "dog": 3}), PictureReader(), labels="auto")
    images.block = 4
    items = ImageDataset(Part(images), AUGMENTED, seed=0)
    assert list(items._with_stand_ins(3)) == [3, 0, 1, 2, 4, 5]
    assert list(items._with_stand_ins(5)) == [5, 4, 0, 1, 2, 3]


def test_workers_share_what_they_find_broken(make_folder: Any) -> None:
    root = make_folder({"": 8})
    data = dataset(root)
    (root / "5.png").write_bytes(b"gone")
    loader = DataLoader(data, batch_size=4, num_workers=2)
    assert sum(len(batch["images"]) for batch in loader) == 8
    assert data.replaced_names == ["5.png"]


def test_an_opened_zip_can_be_sent_to_a_spawned_worker(make_folder: Any) -> None:
    data = dataset(zipped(make_folder({"cat": 2, "dog": 2})), "full")
    received = pickle.loads(pickle.dumps(data))
    assert torch.equal(received[3, 9]["images"], data[3, 9]["images"])


def test_too_many_files_that_break_later_are_an_error(make_folder: Any) -> None:
    root = make_folder({"": 4})
    data = dataset(root)
    for i in range(2):
        (root / f"{i}.png").write_bytes(b"gone")
    with pytest.raises(
        UserError, match=r"1\.png is broken.*1 others.*max_broken_fraction is 0\.25"
    ):
        data[0]


def test_unusable_sizes_are_an_error_at_once(make_folder: Any) -> None:
    root = make_folder({"": 3}, size=(24, 12))
    cut = ImageTransform(resolution=16, resize="none", crop="random")
    with pytest.raises(UserError, match=r"^0\.png: an image of 24x12 .*too small"):
        dataset(root, "full", cut)
    assert dataset(root, "full").num_magnified == 3
    assert dataset(make_folder({"": 3}, "large"), "header").num_magnified == 0


def test_training_decodes_large_photos_smaller(tmp_path: Path) -> None:
    wave = np.sin(np.linspace(0, 20, 400))[None] * np.cos(np.linspace(0, 12, 320))[:, None]
    picture = Image.fromarray(np.uint8(127 + 120 * wave)).convert("RGB")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    picture.save(tmp_path / "a.jpg", exif=exif, quality=95)
    picture.save(tmp_path / "b.png")
    source = ImageFolder(tmp_path, PictureReader())
    whole, draft = source.load(0), source.load(0, 160)
    assert (whole.size, draft.size) == ((320, 400), (160, 200))
    assert source.load(0, 161).size == (320, 400)
    assert source.load(1, 40).size == (400, 320)

    loaded = []

    def load(*arguments: Any) -> Image.Image:
        loaded.append(ImageFolder.load(source, *arguments))
        return loaded[-1]

    source.load = load  # type: ignore[method-assign]
    # the windows of the first are a quarter of the image at least: 2 · 20 pixels of 160
    for resize, resolution in (("shorter_side", 20), ("shorter_side", 21), ("none", 20)):
        changes = {"resize": resize, "resolution": resolution, "crop_scale": (0.25, 1.0)}
        one, other = (
            ImageDataset(Part(source), replace(AUGMENTED, draft=draft, **changes), seed=0)
            for draft in (True, False)
        )
        for key in (0, (0, 1), (0, 2)):
            assert (one[key]["images"] - other[key]["images"]).abs().mean() < 0.03
    small, large = (160, 200), (320, 400)
    assert [image.size for image in loaded] == [large, large, small, large, small, large] + 12 * [
        large
    ]


def test_images_with_conditions_are_decoded_whole(tmp_path: Path) -> None:
    for folder, suffix in (("image", "jpg"), ("label", "png")):  # odd sides: halves would differ
        (tmp_path / folder).mkdir()
        Image.new("L", (321, 201)).save(tmp_path / folder / f"a.{suffix}")
    parts = [
        ImageFolder(tmp_path, reader, subfolder=folder)
        for folder, reader in (("image", PictureReader()), ("label", LabelMapReader(2)))
    ]
    data = ImageDataset(Part(*parts), replace(AUGMENTED, draft=True), seed=0)
    assert data[0, 1]["conditions"].shape == (2, 16, 16)
