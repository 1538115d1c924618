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
from tiny_data import FRAME, data_module, label_map_files

from taming.data import (
    BrokenImageError,
    ImageDataModule,
    ImageFolder,
    ImageTransform,
    LabelMapReader,
)
from taming.data.label_maps import one_hot
from taming.errors import UserError


def read(image: Image.Image, kind: str = "PNG", **settings: Any) -> np.ndarray:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    reader = LabelMapReader(**{"num_classes": 12, **settings})
    return np.asarray(reader.read(buffer, "a.png"))


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
    with pytest.raises(UserError, match=r"value 255, .*12 classes, 0 to 11: .*unlabelled=255"):
        read(image, unlabelled=None)


def test_unlabelled_pixels_share_no_class_unasked() -> None:
    image = grey([0, 255, 11])
    with pytest.raises(UserError, match=r"a\.png has unlabelled .*=255.*last, 11, and other"):
        read(image)
    assert read(image, num_classes=13).tolist() == [[0, 12, 11]]
    assert read(image, unlabelled_class=11).tolist() == [[0, 11, 11]]


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "PNG"), ("LA", "PNG"), ("L", "JPEG")])
def test_a_picture_is_no_label_map(mode: str, kind: str) -> None:
    message = rf"a\.png is a {kind} picture of mode {mode}.*subfolder"
    with pytest.raises(UserError, match=message) as caught:
        read(Image.new(mode, (2, 2)), kind)
    assert not isinstance(caught.value, BrokenImageError)  # a mistake, not a file to leave out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_classes": 1}, "label maps is 1: give 2 to 256"),
        ({"num_classes": 257}, "label maps is 257"),
        ({"unlabelled_class": 12}, "unlabelled_class is 12.*0 to 11"),
        ({"palette": [[0, 0, 0]] * 11}, "11 colours for 12 classes"),
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


def test_resizing_picks_pixels() -> None:
    def shown(image: Image.Image, **settings: Any) -> torch.Tensor:
        image = Image.frombytes("P", image.size, image.tobytes())
        return torch.from_numpy(np.array(ImageTransform(**settings)(image)))

    image = grey(*[[0] * 10 + [9] * 10] * 20)  # an antialiased edge would give 1 to 8
    for frame in ({"resize": "shorter_side", "crop": "center"}, {"resize": "stretch"}):
        row = shown(image, **{"crop": "none", **frame}, resolution=7)[3].tolist()
        assert row in ([0] * 3 + [9] * 4, [0] * 4 + [9] * 3)
    image = grey([0, 1, 2, 3, 4, 5], [9] * 6, [6, 7, 8, 6, 7, 8], [9] * 6)
    found = shown(image, resolution=(2, 3), resize="stretch", crop="none")
    assert found.tolist() in ([[0, 2, 4], [6, 8, 7]], [[9] * 3] * 2)


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


def module(path: Path, num_classes: int = 5, **settings: Any) -> ImageDataModule:
    frame = {**FRAME, **{n: settings.pop(n) for n in (*FRAME, "num_workers") if n in settings}}
    return data_module(label_map_files(path, num_classes, **settings), **frame)


@pytest.mark.parametrize(("kind", "num_workers"), [("folder", 0), ("zip", 1)])
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
    with pytest.raises(UserError, match=r"label/0\.png has a pixel of value 4, .*4 classes"):
        module(pairs, 4).setup()
    with pytest.raises(UserError, match=r"image/0\.jpg is a JPEG picture .*subfolder"):
        module(pairs, subfolder=None).setup()
    with pytest.raises(UserError, match=r"folder labels; .*images: image, label\."):
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


def test_a_single_label_map(pairs: Path) -> None:
    single = ImageFolder(pairs / "label" / "3.png", LabelMapReader(5))
    assert (len(single), single.name(0)) == (1, "3.png")
    assert np.array_equal(single.load(0), Image.open(pairs / "label" / "3.png"))


def test_the_fingerprint_follows_how_label_maps_are_read(pairs: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        reader = LabelMapReader(**{"num_classes": 5, **settings})
        return ImageFolder(pairs / "label", reader).fingerprint()

    assert fingerprint() == fingerprint()
    changes: list[dict[str, Any]] = [{}, {"num_classes": 6}, {"unlabelled": 0}]
    changes.append({"unlabelled_class": 0})
    assert len({fingerprint(**change) for change in changes}) == 4


def test_camvid(shared: Path) -> None:
    path = shared / "data" / "camvid256x192_val.zip"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    settings: dict[str, Any] = {"unlabelled": 11, "crop": "center", "val_fraction": 0.5}
    data = module(path, 12, **settings, resolution=(192, 256))
    assert len(data.train_dataset) + len(data.val_dataset) == 101
    with zipfile.ZipFile(path) as archive:
        for index in range(3):
            image = data.val_dataset[index]["images"]
            assert image.shape == (12, 192, 256)
            assert (image.sum(0) == 1).all()
            with archive.open(data.val_dataset.name(index)) as file:
                assert np.array_equal(image.argmax(0), np.asarray(Image.open(file)))
