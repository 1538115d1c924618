import io
import shutil
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from taming.data import ImageDataModule, ImageTransform, open_label_maps
from taming.data.images import BrokenImageError
from taming.data.label_maps import LabelMapFolder, LabelMapReader, LabelMapTransform, one_hot
from taming.data.sets import label_maps
from taming.errors import UserError


def read(image: Image.Image, kind: str = "PNG", **settings: Any) -> np.ndarray:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    reader = LabelMapReader(**{"num_classes": 12, **settings})
    return np.asarray(reader(buffer, "a.png"))


def grey(*rows: list[int]) -> Image.Image:
    return Image.fromarray(np.array(rows, dtype=np.uint8))


def test_a_palette_image_gives_its_indices_and_not_its_colours() -> None:
    image = grey([3, 0], [11, 7])
    image.putpalette([200, 100, 50] * 12)
    assert image.mode == "P"
    assert read(image).tolist() == [[3, 0], [11, 7]]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_a_grey_image_gives_its_values(kind: str) -> None:
    assert read(grey([3, 0, 11]), kind).tolist() == [[3, 0, 11]]


def test_black_and_white_and_sixteen_bits() -> None:
    assert read(grey([0, 255]).convert("1"), num_classes=2).tolist() == [[0, 1]]
    sixteen = Image.fromarray(np.array([[3, 65535]], dtype=np.uint16))
    assert read(sixteen, unlabelled=65535).tolist() == [[3, 11]]
    with pytest.raises(UserError, match="a pixel of value 65535"):
        read(sixteen)


def test_unlabelled_pixels() -> None:
    image = grey([0, 255, 4])
    assert read(image).tolist() == [[0, 11, 4]]
    assert read(image, unlabelled_class=0).tolist() == [[0, 0, 4]]
    assert read(grey([0, 9, 4]), unlabelled=9).tolist() == [[0, 11, 4]]
    assert read(grey([0, 11, 4]), unlabelled=11).tolist() == [[0, 11, 4]]  # already the last
    assert read(grey([0, 11, 4]), unlabelled=None).tolist() == [[0, 11, 4]]
    with pytest.raises(UserError, match=r"value 255, .*channels=12 .*0 to 11.*unlabelled=255"):
        read(image, unlabelled=None)


def test_unlabelled_pixels_share_no_class_unasked() -> None:
    image = grey([0, 255, 11])
    with pytest.raises(UserError, match=r"a\.png has unlabelled .*=255.*last, 11, and other"):
        read(image)
    assert read(image, num_classes=13).tolist() == [[0, 12, 11]]
    assert read(image, unlabelled_class=11).tolist() == [[0, 11, 11]]


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "PNG"), ("LA", "PNG"), ("L", "JPEG")])
def test_a_picture_is_no_label_map(mode: str, kind: str) -> None:
    message = rf"a\.png is a {kind} picture of mode {mode}.*data\.subfolder"
    with pytest.raises(UserError, match=message) as caught:
        read(Image.new(mode, (2, 2)), kind)
    assert not isinstance(caught.value, BrokenImageError)  # a mistake, not a file to leave out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_classes": 1}, "channels is 1: .* 2 to 256"),
        ({"num_classes": 257}, "channels is 257"),
        ({"unlabelled": -1}, "unlabelled is -1"),
        ({"unlabelled_class": 12}, "unlabelled_class is 12.*0 to 11"),
    ],
)
def test_settings_that_make_no_sense_for_classes(settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LabelMapReader(**{"num_classes": 12, **settings})


def test_one_hot() -> None:
    classes = torch.tensor([[[0, 2], [1, 1]]], dtype=torch.uint8)
    encoded = one_hot(classes, 4)
    assert (encoded.shape, encoded.dtype) == ((1, 4, 2, 2), torch.float32)
    assert encoded.is_contiguous()
    assert encoded.unique().tolist() == [0.0, 1.0]
    assert (encoded.sum(1) == 1).all()
    assert torch.equal(encoded.argmax(1), classes.long())


FRAME: dict[str, Any] = {
    "resolution": (12, 16),
    "resize": "shorter_side",
    "crop": "random",
    "crop_scale": (0.5, 1.0),
    "horizontal_flip": True,
}


def test_resizing_picks_pixels() -> None:
    image = grey(*[[0] * 10 + [9] * 10] * 20)  # an antialiased edge would give 1 to 8
    for frame in ({"resize": "shorter_side", "crop": "center"}, {"resize": "stretch"}):
        transform = LabelMapTransform(**{"crop": "none", **frame}, resolution=7, num_classes=10)
        row = transform(image).argmax(0)[3].tolist()
        assert row in ([0] * 3 + [9] * 4, [0] * 4 + [9] * 3)
    half = LabelMapTransform(resolution=(2, 3), resize="stretch", crop="none", num_classes=10)
    found = half(grey([0, 1, 2, 3, 4, 5], [9] * 6, [6, 7, 8, 6, 7, 8], [9] * 6)).argmax(0)
    assert found.shape == (2, 3)  # height, width
    assert found.tolist() in ([[0, 2, 4], [6, 8, 7]], [[9] * 3] * 2)


def test_a_label_map_takes_the_window_of_its_picture() -> None:
    # a picture without detail finer than a pixel of the result, so that filtering changes little
    coarse = np.random.default_rng(0).integers(0, 2, (5, 6), dtype=np.uint8)
    classes = coarse.repeat(16, 0).repeat(16, 1)
    picture = ImageTransform(**FRAME)
    label_map = LabelMapTransform(**FRAME, num_classes=2)
    for draw in range(20):
        shown = picture(Image.fromarray(classes * 255), np.random.default_rng(draw))[0]
        found = label_map(Image.fromarray(classes), np.random.default_rng(draw)).argmax(0)
        sure = shown.abs() > 0.9  # away from edges
        assert sure.float().mean() > 0.4
        assert torch.equal((shown > 0)[sure], found.bool()[sure])


def test_label_maps_are_not_padded() -> None:
    for settings in ({"pad": 1}, {"random_shift": 1}):
        with pytest.raises(UserError, match="neither padded nor shifted"):
            LabelMapTransform(**FRAME, **settings, num_classes=3)


def write_label_maps(folder: Path, count: int, size: tuple[int, int] = (12, 16)) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        classes = np.random.default_rng(index).integers(0, 5, size, dtype=np.uint8)
        Image.fromarray(classes).save(folder / f"{index}.png")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pictures in `image/` and label maps of five classes in `label/`."""
    write_label_maps(tmp_path / "pairs" / "label", 8)
    (tmp_path / "pairs" / "image").mkdir()
    for index in range(8):
        Image.new("RGB", (16, 12)).save(tmp_path / "pairs" / "image" / f"{index}.jpg")
    return tmp_path / "pairs"


def module(path: Path, **settings: Any) -> ImageDataModule:
    defaults = {**FRAME, "subfolder": "label", "channels": 5, "batch_size": 3, "num_workers": 0}
    return label_maps(path, **{**defaults, "val_fraction": 0.25, **settings})


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_of_a_subfolder(pairs: Path, kind: str, num_workers: int) -> None:
    path = pairs if kind == "folder" else Path(shutil.make_archive(str(pairs), "zip", pairs))
    data = module(path, num_workers=num_workers)
    assert (len(data.train_dataset), len(data.val_dataset)) == (6, 2)
    assert (data.channels, data.num_classes) == (5, None)
    assert "12x16, label maps of 5 classes" in data.summary()
    for batch in islice(data.train_dataloader(), 2):
        assert batch.keys() == {"images"}
        assert batch["images"].shape == (3, 5, 12, 16)
        assert (batch["images"].sum(1) == 1).all()
    (batch,) = data.val_dataloader()
    for image, index in zip(batch["images"], range(2), strict=True):
        file = pairs / data.val_dataset.name(index)  # of the right size: not a pixel is changed
        assert np.array_equal(image.argmax(0), np.asarray(Image.open(file)))


def test_the_first_wrong_file_is_named_before_training(pairs: Path) -> None:
    with pytest.raises(UserError, match=r"label/0\.png has a pixel of value 4, .*channels=4 "):
        module(pairs, channels=4).setup()
    with pytest.raises(UserError, match=r"image/0\.jpg is a JPEG picture .*data\.subfolder"):
        module(pairs, subfolder=None).setup()
    with pytest.raises(UserError, match=r"subfolder=labels; .*images: image, label\."):
        module(pairs, subfolder="labels").setup()


def test_broken_label_maps_are_left_out(pairs: Path, tmp_path: Path) -> None:
    file = pairs / "label" / "0.png"
    file.write_bytes(file.read_bytes()[:60])
    data = module(pairs)
    assert len(data.train_dataset) + len(data.val_dataset) == 7
    assert [name for name, _ in data.train_dataset.broken] == ["label/0.png"]


def test_validation_label_maps_of_their_own(pairs: Path, tmp_path: Path) -> None:
    write_label_maps(tmp_path / "val" / "label", 3, (24, 32))
    data = module(pairs, val_path=tmp_path / "val")
    assert (len(data.train_dataset), len(data.val_dataset)) == (8, 3)
    assert data.val_dataset[0]["images"].shape == (5, 12, 16)


def test_label_maps_of_a_folder_and_a_single_one_for_a_model(pairs: Path) -> None:
    reader = LabelMapReader(
        num_classes=3, key=None, group="conditions", folder_key="conditions.subfolder"
    )
    where: dict[str, Any] = {"key": "conditions.path", "subfolder_key": "conditions.subfolder"}
    folder = open_label_maps(pairs, reader=reader, subfolder="label", **where)
    single = open_label_maps(pairs / folder.name(0), reader=reader, **where)
    assert (len(single), single.name(0)) == (1, folder.name(0).removeprefix("label/"))
    for source in (folder, single):  # of five classes: nothing says that a model has others
        with pytest.raises(UserError, match=r"the model has .* 0 to 2: if .*conditions\.unl"):
            source.load(0)
    with pytest.raises(UserError, match=r"a single file.*conditions\.subfolder=label"):
        open_label_maps(pairs / folder.name(0), reader=reader, subfolder="label", **where)


def test_the_fingerprint_follows_how_label_maps_are_read(pairs: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        reader = LabelMapReader(**{"num_classes": 5, **settings})
        return LabelMapFolder(pairs / "label", reader=reader, max_broken_fraction=0.0).fingerprint()

    assert fingerprint() == fingerprint()
    changes: list[dict[str, Any]] = [{}, {"num_classes": 6}, {"unlabelled": 0}]
    changes.append({"unlabelled_class": 0})
    assert len({fingerprint(**change) for change in changes}) == 4


def test_camvid(shared: Path) -> None:
    path = shared / "data" / "camvid256x192_val.zip"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    settings: dict[str, Any] = {"channels": 12, "unlabelled": 11, "crop": "center"}
    data = module(path, **settings, resolution=[192, 256], val_fraction=0.5)
    assert len(data.train_dataset) + len(data.val_dataset) == 101
    with zipfile.ZipFile(path) as archive:
        for index in range(3):
            image = data.val_dataset[index]["images"]
            assert image.shape == (12, 192, 256)
            assert (image.sum(0) == 1).all()
            with archive.open(data.val_dataset.name(index)) as file:
                assert np.array_equal(image.argmax(0), np.asarray(Image.open(file)))
    half = module(path, **settings, resolution=[96, 128], check="none").val_dataset[0]["images"]
    assert half.shape == (12, 96, 128)
    assert (half.sum(0) == 1).all()
