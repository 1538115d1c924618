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

from taming.data import ImageDataset, PairedDataModule, PairFolder
from taming.data.sets import label_maps, paired
from taming.errors import UserError

FRAME: dict[str, Any] = {
    "resolution": (12, 16),
    "resize": "shorter_side",
    "crop": "random",
    "crop_scale": (0.5, 1.0),
    "horizontal_flip": True,
}


def classes_of(index: int, height: int = 24, width: int = 32) -> np.ndarray:
    """Blocks of 8×8 pixels of five classes."""
    coarse = np.random.default_rng(index).integers(0, 5, (height // 8, width // 8), dtype=np.uint8)
    return coarse.repeat(8, 0).repeat(8, 1)


def write_pairs(root: Path, count: int = 8, scale: int = 1) -> Path:
    """Label maps, and pictures that show class c as the grey 50·c."""
    for index in range(count):
        classes = classes_of(index)
        label, image = root / "label" / "street", root / "image" / "street"
        label.mkdir(parents=True, exist_ok=True)
        image.mkdir(parents=True, exist_ok=True)
        Image.fromarray(classes).save(label / f"{index}.png")
        shown = (50 * classes).repeat(scale, 0).repeat(scale, 1)
        Image.fromarray(shown).convert("RGB").save(image / f"{index}.bmp")
    return root


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "pairs")


def module(path: Path, **settings: Any) -> PairedDataModule:
    defaults = {**FRAME, "num_classes": 5, "unlabelled": None, "batch_size": 3, "num_workers": 0}
    return paired(path, **{**defaults, "val_fraction": 0.25, **settings})


def assert_shows_the_same(images: torch.Tensor, conditions: torch.Tensor) -> None:
    """Away from edges, where the image is filtered, its grey is that of the class."""
    grey = (images.mean(1) + 1) * 127.5  # (b H W)
    expected = 50.0 * conditions.argmax(1)
    assert ((grey - expected).abs() < 8).float().mean() > 0.6  # a wrong view: about a fifth


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches(pairs: Path, kind: str, num_workers: int) -> None:
    path = pairs if kind == "folder" else Path(shutil.make_archive(str(pairs), "zip", pairs))
    data = module(path, num_workers=num_workers)
    assert (len(data.train_dataset), len(data.val_dataset)) == (6, 2)
    assert (data.channels, data.condition_channels, data.num_classes) == (3, 5, None)
    assert (data.resolution, data.condition_resolution) == ((12, 16), (12, 16))
    assert data.conditions_are_label_maps
    assert not data.of_label_maps
    found = "6 pairs to train and 2 to validate, no classes, 12x16, RGB from label maps of 5 class"
    assert found in data.summary()
    for batch in islice(data.train_dataloader(), 4):
        assert batch.keys() == {"images", "conditions"}
        assert batch["images"].shape == (3, 3, 12, 16)
        assert batch["conditions"].shape == (3, 5, 12, 16)
        assert (batch["conditions"].sum(1) == 1).all()
        assert_shows_the_same(batch["images"], batch["conditions"])
    (batch,) = data.val_dataloader()
    assert_shows_the_same(batch["images"], batch["conditions"])


def test_folders_that_are_numbers_in_a_setting(pairs: Path) -> None:
    (pairs / "image").rename(pairs / "2024")
    (pairs / "label").rename(pairs / "1")
    settings: dict[str, Any] = {"image_folder": 2024, "condition_folder": 1}
    assert len(module(pairs, **settings).train_dataset) == 6


@pytest.mark.parametrize("scale", [1, 3])
def test_crop_and_flip_are_the_same_at_other_sizes(tmp_path: Path, scale: int) -> None:
    """Of the file, as in low resolution, and of the tensor."""
    path = write_pairs(tmp_path / "pairs", scale=scale)
    data = module(path, resolution=(24, 32), condition_resolution=(12, 16), check="none")
    assert data.condition_resolution == (12, 16)
    for batch in islice(data.train_dataloader(), 4):
        assert batch["images"].shape == (3, 3, 24, 32)
        assert batch["conditions"].shape == (3, 5, 12, 16)
        assert_shows_the_same(batch["images"][:, :, ::2, ::2], batch["conditions"])
    assert ", 24x32, RGB from label maps of 5 classes, 12x16" in data.summary()


@pytest.mark.parametrize(("channels", "kind"), [(1, "grey"), (3, "RGB")])
def test_pictures_as_conditions(pairs: Path, channels: int, kind: str) -> None:
    data = module(
        pairs,
        condition="image",
        condition_folder="image",
        condition_channels=channels,
        channels=1,
        num_classes=None,
    )
    assert f"grey from {kind}" in data.summary()
    assert not data.conditions_are_label_maps
    assert data.palette is None
    batch = next(iter(data.train_dataloader()))
    assert batch["conditions"].shape == (3, channels, 12, 16)
    assert torch.equal(batch["conditions"], batch["images"].expand(-1, channels, -1, -1))


def test_an_image_from_itself_at_a_low_resolution(pairs: Path) -> None:
    settings: dict[str, Any] = {
        "condition": "image",
        "condition_folder": "image",
        "num_classes": None,
    }
    data = module(pairs, **settings, condition_resolution=(3, 4))
    batch = next(iter(data.train_dataloader()))
    small = torch.nn.functional.interpolate(batch["images"], (3, 4), mode="area")
    assert batch["conditions"].shape == small.shape
    assert (batch["conditions"] - small).abs().mean() < 0.1


def test_without_conditions_the_images_are_the_same(pairs: Path) -> None:
    """Stage 1 trains on them: the same images in the same order and views."""
    data = module(pairs)
    alone = data.images_alone()
    assert alone.images_alone() is alone
    for both, images in zip(
        islice(data.train_dataloader(), 3), islice(alone.train_dataloader(), 3), strict=True
    ):
        assert images.keys() == {"images"}
        assert torch.equal(both["images"], images["images"])
    assert [data.val_dataset.name(i) for i in range(2)] == [
        alone.val_dataset.name(i) for i in range(2)
    ]


def test_the_files_of_pairs_and_of_the_images_alone_are_checked_once(pairs: Path) -> None:
    data = module(pairs)
    data.setup()
    shutil.rmtree(pairs / "label")
    alone = data.images_alone()
    assert (len(alone.train_dataset), len(alone.val_dataset)) == (6, 2)
    assert alone.train_dataset[5]["images"].shape == (3, 12, 16)


def test_the_label_maps_alone(pairs: Path) -> None:
    """`data=label_maps` reads the same archive."""
    settings: dict[str, Any] = {"subfolder": "label", "channels": 5, "unlabelled": None}
    maps = label_maps(pairs, **FRAME, **settings, batch_size=3, num_workers=0, val_fraction=0.25)
    assert maps.of_label_maps
    both = module(pairs)
    by_name = {
        maps.train_dataset.name(i): maps.train_dataset[i]["images"]
        for i in range(len(maps.train_dataset))
    }
    shared = 0
    for i in range(len(both.train_dataset)):
        name = both.train_dataset.name(i).replace("image", "label").replace("bmp", "png")
        if name in by_name:  # the split goes by name, and those differ
            shared += 1
            assert torch.equal(both.train_dataset[i]["conditions"], by_name[name])
    assert shared >= 4


def test_files_without_partner_are_counted_and_named(
    pairs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (pairs / "label" / "street" / "0.png").unlink()
    shutil.copy(pairs / "label" / "street" / "1.png", pairs / "label" / "1.png")
    with caplog.at_level(logging.WARNING):
        data = module(pairs)
        assert len(data.train_dataset) + len(data.val_dataset) == 7
    expected = "2 files have no partner and are left out (image/street/0.bmp, label/1.png); 7 pairs"
    assert expected in caplog.text
    assert_shows_the_same(*(data.train_dataset[0][k][None] for k in ("images", "conditions")))


def test_no_pair_at_all(pairs: Path) -> None:
    (pairs / "label" / "street").rename(pairs / "label" / "road")
    message = r"no image, such as image/street/0\.bmp, .* such as label/road/0\.png.*suffix"
    with pytest.raises(UserError, match=message):
        module(pairs).setup()


def test_two_possible_partners(pairs: Path) -> None:
    Image.new("L", (32, 24)).save(pairs / "label" / "street" / "3.tif")
    with pytest.raises(UserError, match=r"label/street/3\.png and .*/3\.tif have the same name"):
        module(pairs).setup()


@pytest.mark.parametrize("side", ["image", "label"])
@pytest.mark.parametrize("check", ["full", "none"])
def test_a_pair_with_a_broken_file_is_left_out(pairs: Path, side: str, check: str) -> None:
    (file,) = (pairs / side / "street").glob("2.*")
    file.write_bytes(file.read_bytes()[:60])
    data = module(pairs, check=check, max_broken_fraction=0.5)
    name = f"{side}/street/{file.name}"
    datasets = data.train_dataset, data.val_dataset
    if check == "full":
        assert sum(len(dataset) for dataset in datasets) == 7
        assert [found for found, _ in data.train_dataset.broken] == [name]
        assert name in data.summary()
    for dataset in datasets:
        for index in range(len(dataset)):
            item = dataset[index]
            assert_shows_the_same(item["images"][None], item["conditions"][None])
    replaced = [found for dataset in datasets for found in dataset.replaced]
    assert replaced == ([] if check == "full" else ["image/street/2.bmp"])


def test_broken_files_of_both_sides_count_together(pairs: Path) -> None:
    """An eighth of the images and an eighth of the label maps are a quarter of the pairs."""
    for name in ("image/street/1.bmp", "label/street/2.png"):
        (pairs / name).write_bytes(b"broken")
    assert len(module(pairs, max_broken_fraction=0.25).train_dataset) == 4
    with pytest.raises(UserError, match=r"2 of 8 pairs .*image/street/1\.bmp, label/street/2\.png"):
        module(pairs, max_broken_fraction=0.2).setup()


def test_all_pairs_broken(pairs: Path) -> None:
    for index in range(8):
        side = ("image", "label")[index % 2]
        (file,) = (pairs / side / "street").glob(f"{index}.*")
        file.write_bytes(b"broken")
    with pytest.raises(UserError, match="of 8 of 8 pairs a file is broken"):
        module(pairs, max_broken_fraction=1.0).setup()


def test_shapes_that_differ(pairs: Path) -> None:
    Image.new("L", (32, 26)).save(pairs / "label" / "street" / "4.png")
    message = r"image/street/4\.bmp is 24x32 pixels .* its condition 26x32"
    with pytest.raises(UserError, match=message):
        module(pairs).setup()
    data = module(pairs, check="none")
    with pytest.raises(UserError, match=message):
        [data.train_dataset[i] for i in range(len(data.train_dataset))]
        [data.val_dataset[i] for i in range(len(data.val_dataset))]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"condition": "depth"}, "condition is 'depth': choose label_map or image"),
        ({"num_classes": None}, r"num_classes must be given .*data\.condition=image"),
        ({"num_classes": 1}, r"data\.num_classes is 1"),
        (
            {"condition": "image", "num_classes": None, "condition_channels": 2},
            "condition_channels is 2",
        ),
        ({"condition": "image"}, r"data\.num_classes=5 is for data\.condition=label_map only"),
        (
            {"condition": "image", "num_classes": None, "unlabelled": 11},
            r"data\.unlabelled=11 is for data\.condition=label_map only",
        ),
        (
            {"condition": "image", "num_classes": None, "unlabelled_class": 0},
            r"data\.unlabelled_class=0 is for .* or set data\.unlabelled_class=null",
        ),
        (
            {"condition": "image", "num_classes": None, "palette": [[0, 0, 0]]},
            r"data\.palette=\[\[0, 0, 0\]\] is for data\.condition=label_map only",
        ),
        (
            {"condition_channels": 1},
            r"data\.condition_channels=1 is for data\.condition=image only: .*=3 where",
        ),
        ({"condition_resolution": 16}, r"condition_resolution is 16x16 and data\.resolution 12x16"),
        ({"palette": [[0, 0, 0]] * 4}, "4 colours for 5 classes"),
        ({"palette": [[0, 0, 256]] * 5}, r"data\.palette is \[0, 0, 256\]"),
    ],
)
def test_settings_that_make_no_sense(pairs: Path, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        module(pairs, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_classes": 4}, r"label/street/\d\.png has a pixel of value 4, .*data\.num_classes=4"),
        ({"condition_folder": "image"}, r"picture of mode RGB.*with data\.condition_folder"),
        ({"condition_folder": "maps"}, r"no images in data\.condition_folder=maps; .*image/street"),
        ({"image_folder": "photo"}, r"no images in data\.image_folder=photo"),
    ],
)
def test_data_that_does_not_fit(pairs: Path, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        module(pairs, **settings).setup()


def test_validation_pairs_of_their_own(pairs: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "val", 3, scale=2)
    data = module(pairs, val_path=tmp_path / "val", palette=[[0, 0, 10 * i] for i in range(6)])
    assert (len(data.train_dataset), len(data.val_dataset)) == (8, 3)
    assert data.palette is not None
    assert data.palette[4] == [0, 0, 40]
    with pytest.raises(UserError, match=r"nowhere.*data\.val_path"):
        module(pairs, val_path=tmp_path / "nowhere").setup()


def test_the_fingerprint_follows_both_sides(pairs: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        return module(pairs, **settings).train_dataset.fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    found = {first, fingerprint(unlabelled=4), fingerprint(num_classes=6)}
    found.add(fingerprint(condition_resolution=(6, 8)))
    for name in ("image/street/1.bmp", "label/street/1.png"):
        file = pairs / name
        Image.open(file).transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(file)
        found.add(fingerprint())
    assert len(found) == 6


def test_camvid(shared: Path) -> None:
    """Pixel by pixel what the archive holds; and a flip that both sides have."""
    path = shared / "data" / "camvid256x192_val.zip"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    settings: dict[str, Any] = {"num_classes": 12, "crop": "center", "resolution": [192, 256]}
    data = module(path, **settings, val_fraction=0.5, check="header")
    assert len(data.train_dataset) + len(data.val_dataset) == 101
    dataset = data.train_dataset
    assert isinstance(dataset, ImageDataset)
    assert isinstance(dataset.source, PairFolder)
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
    mirrored = [
        (item["images"], item["conditions"]) for item in (dataset[0, draw] for draw in range(8))
    ]
    plain = dataset[0]
    flips = [bool((image != plain["images"]).any()) for image, _ in mirrored]
    assert 0 < sum(flips) < 8
    for flipped, (image, condition) in zip(flips, mirrored, strict=True):
        dims = [2] if flipped else []
        assert torch.equal(image, plain["images"].flip(dims))
        assert torch.equal(condition, plain["conditions"].flip(dims))
