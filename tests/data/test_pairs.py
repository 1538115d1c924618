import logging
import shutil
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_data import FRAME, data_module, pair_files, write_pairs, zipped

from taming.data import LabelMapReader, PictureReader
from taming.data.module import ImageDataModule
from taming.runtime.errors import UserError


def module(path: Path, **settings: Any) -> ImageDataModule:
    of_transform = (*FRAME, "condition_resolution", "num_workers")
    frame = {**FRAME, **{n: settings.pop(n) for n in of_transform if n in settings}}
    return data_module(pair_files(path, **settings), **frame)


def assert_shows_the_same(images: torch.Tensor, conditions: torch.Tensor) -> None:
    """Away from edges, where the image is filtered, its grey is that of the class."""
    grey = (images.mean(1) + 1) * 127.5  # (b H W)
    expected = 50.0 * conditions.argmax(1)
    assert ((grey - expected).abs() < 8).float().mean() > 0.6  # a wrong view: about a fifth


@pytest.mark.parametrize(("kind", "num_workers"), [("folder", 0), ("zip", 0), ("zip", 1)])
def test_batches(pairs: Path, kind: str, num_workers: int) -> None:
    data = module(pairs if kind == "folder" else zipped(pairs), num_workers=num_workers)
    assert (len(data.train_dataset), len(data.val_dataset)) == (6, 2)
    assert (data.channels, data.num_classes, data.label_maps) == (3, None, False)
    assert data.resolution == data.condition_resolution == (12, 16)
    assert "6 pairs to train and 2 to validate, no classes, 12x16, RGB from" in data.summary()
    for batch in islice(data.train_dataloader(), 4):
        assert batch.keys() == {"images", "conditions"}
        assert batch["images"].shape == (3, 3, 12, 16)
        assert batch["conditions"].shape == (3, 5, 12, 16)
        assert (batch["conditions"].sum(1) == 1).all()
        assert_shows_the_same(batch["images"], batch["conditions"])
    (batch,) = data.val_dataloader()
    assert_shows_the_same(batch["images"], batch["conditions"])


@pytest.mark.parametrize("scale", [1, 3])
def test_image_and_condition_share_crop_and_flip(tmp_path: Path, scale: int) -> None:
    """Of the file, as in low resolution, and of the tensor."""
    path = write_pairs(tmp_path / "pairs", scale=scale)
    data = module(path, resolution=(24, 32), condition_resolution=(12, 16), check="none")
    for batch in islice(data.train_dataloader(), 4):
        assert batch["images"].shape == (3, 3, 24, 32)
        assert batch["conditions"].shape == (3, 5, 12, 16)
        assert_shows_the_same(batch["images"][:, :, ::2, ::2], batch["conditions"])


def test_pictures_as_conditions(pairs: Path) -> None:
    readers = {"condition_reader": PictureReader(3), "reader": PictureReader(1)}
    data = module(pairs, **readers, condition_folder="image")
    assert "grey from RGB" in data.summary()
    batch = next(iter(data.train_dataloader()))
    assert torch.equal(batch["conditions"], batch["images"].expand(-1, 3, -1, -1))
    data = module(pairs, **readers, condition_folder="image", condition_resolution=(3, 4))
    batch = next(iter(data.train_dataloader()))
    small = torch.nn.functional.interpolate(batch["images"], (3, 4), mode="area")
    assert (batch["conditions"] - small).abs().mean() < 0.1


def test_without_conditions_the_images_are_the_same(pairs: Path) -> None:
    """Stage 1 trains on them: the same images in the same order and views."""
    (pairs / "label" / "street" / "3.png").write_bytes(b"broken")
    data = module(pairs)
    without = data_module(pair_files(pairs), conditions=False, **FRAME)
    assert without.condition_reader is None
    for both, images in zip(
        islice(data.train_dataloader(), 3), islice(without.train_dataloader(), 3), strict=True
    ):
        assert images.keys() == {"images"}
        assert torch.equal(both["images"], images["images"])
    assert [data.val_dataset.name(i) for i in range(2)] == [
        without.val_dataset.name(i) for i in range(2)
    ]
    assert data.val_dataset.fingerprint() != without.val_dataset.fingerprint()


def test_files_without_partner_are_counted_and_named(
    pairs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (pairs / "label" / "street" / "0.png").unlink()
    shutil.copy(pairs / "label" / "street" / "1.png", pairs / "label" / "1.png")
    with caplog.at_level(logging.WARNING):
        data = module(pairs)
        assert len(data.train_dataset) + len(data.val_dataset) == 7
    assert "2 files have no partner" in caplog.text
    assert "(image/street/0.bmp, label/1.png); 7 pairs" in caplog.text
    assert_shows_the_same(*(data.train_dataset[0][k][None] for k in ("images", "conditions")))


@pytest.mark.parametrize("side", ["image", "label"])
@pytest.mark.parametrize("check", ["full", "none"])
def test_a_pair_with_a_broken_file_is_dropped(pairs: Path, side: str, check: str) -> None:
    (file,) = (pairs / side / "street").glob("2.*")
    file.write_bytes(file.read_bytes()[:60])
    data = module(pairs, check=check, max_broken_fraction=0.5)
    datasets = data.train_dataset, data.val_dataset
    assert sum(len(dataset) for dataset in datasets) == (7 if check == "full" else 8)
    for dataset in datasets:
        for item in (dataset[index] for index in range(len(dataset))):
            assert_shows_the_same(item["images"][None], item["conditions"][None])
    names = [name for dataset in datasets for name in dataset.replaced_names]
    assert names == ([] if check == "full" else ["image/street/2.bmp"])


@pytest.mark.parametrize(
    ("num_broken", "limit", "message"),
    [
        (1, 0.2, r"2 of 8 pairs .*\(image/street/0\.bmp: .*; label/street/7\.png: "),
        (4, 1.0, "8 of 8"),
    ],
)
def test_too_many_broken_pairs(pairs: Path, num_broken: int, limit: float, message: str) -> None:
    for index in range(num_broken):  # of each side, in different pairs
        (pairs / "image" / "street" / f"{index}.bmp").write_bytes(b"broken")
        (pairs / "label" / "street" / f"{7 - index}.png").write_bytes(b"broken")
    with pytest.raises(UserError, match=message):
        module(pairs, max_broken_fraction=limit).setup()


def test_shapes_that_differ(pairs: Path) -> None:
    Image.new("L", (32, 26)).save(pairs / "label" / "street" / "4.png")
    message = r"image/street/4\.bmp: an image of 24x32 pixels .* a condition of 26x32"
    with pytest.raises(UserError, match=message):
        module(pairs).setup()
    data = module(pairs, check="none")
    with pytest.raises(UserError, match=message):
        for dataset in (data.train_dataset, data.val_dataset):
            [dataset[i] for i in range(len(dataset))]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"condition_reader": LabelMapReader(4)}, r"label/street/\d\.png has a pixel of value 4, "),
        ({"condition_folder": "image"}, r"picture of mode RGB.*condition_folder of pairs"),
        ({"condition_folder": "maps"}, r"no images in the folder maps\. .*image/street"),
    ],
)
def test_data_that_does_not_fit(pairs: Path, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        module(pairs, **settings).setup()


def test_names_that_do_not_fit(pairs: Path) -> None:
    Image.new("L", (32, 24)).save(pairs / "label" / "street" / "3.tif")
    with pytest.raises(UserError, match=r"label/street/3\.png and .*/3\.tif have the same name"):
        module(pairs).setup()
    (pairs / "label" / "street").rename(pairs / "label" / "road")
    (pairs / "label" / "road" / "3.tif").unlink()
    message = r"no image \(such as image/street/0\.bmp\) .* \(such as label/road/0\.png\).*suffix"
    with pytest.raises(UserError, match=message):
        module(pairs).setup()


def test_the_fingerprint_follows_both_sides(pairs: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        return module(pairs, **settings).train_dataset.fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    palette = LabelMapReader(5, unlabelled=None, palette=[(0, 0, 0)] * 5)
    assert fingerprint(condition_reader=palette) == first
    fingerprints = {first, fingerprint(condition_reader=LabelMapReader(5, unlabelled=4))}
    fingerprints.add(fingerprint(condition_reader=LabelMapReader(6, unlabelled=None)))
    fingerprints.add(fingerprint(condition_resolution=(6, 8)))
    for name in ("image/street/1.bmp", "label/street/1.png"):
        file = pairs / name
        Image.open(file).transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(file)
        fingerprints.add(fingerprint())
    assert len(fingerprints) == 6


def test_camvid(shared: Path) -> None:
    """Pixel by pixel what the archive holds."""
    path = shared / "data" / "camvid256x192_val.zip"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    source = pair_files(path, LabelMapReader(12, unlabelled=11), val_fraction=0.5, check="header")
    data = data_module(source, resolution=(192, 256))
    assert len(data.train_dataset) + len(data.val_dataset) == 101
    dataset = data.train_dataset
    with zipfile.ZipFile(path) as archive:
        for index in range(3):
            name = dataset.name(index)
            item = dataset[index]
            with archive.open(name) as file:
                picture = np.asarray(Image.open(file)).transpose(2, 0, 1)
            with archive.open(name.replace("image/", "label/").replace("jpg", "png")) as file:
                classes = np.asarray(Image.open(file))
            assert np.abs((item["images"].numpy() + 1) * 127.5 - picture).max() < 1e-3
            assert np.array_equal(item["conditions"].argmax(0), classes)


def test_pairs_of_a_group_stay_together(pairs: Path) -> None:
    names = sorted(file.name for file in (pairs / "image" / "street").iterdir())
    rows = [f"image/street/{name},{i // 2}" for i, name in enumerate(names)]
    (pairs / "metadata.csv").write_text("\n".join(["file_name,video", *rows]))
    train, val = pair_files(pairs, group="video").open()
    groups = [{part.images.groups[i] for i in part.indices or ()} for part in (train, val)]
    assert [len(group) for group in groups] == [3, 1] and not groups[0] & groups[1]
