import io
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_data import FRAME, data_module, label_map_files, zipped

from taming.data import BrokenImageError, ImageTransform, LabelMapReader
from taming.data.readers import one_hot
from taming.runtime.errors import UserError


def read(image: Image.Image, kind: str = "PNG", **settings: Any) -> list[list[int]]:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    reader = LabelMapReader(**{"num_classes": 12, **settings})
    return np.asarray(reader.read(buffer, "a.png")).tolist()


def grey(*rows: list[int]) -> Image.Image:
    return Image.fromarray(np.array(rows, dtype=np.uint8))


def test_a_palette_image_gives_its_indices() -> None:
    image = grey([3, 0], [11, 7])
    image.putpalette([200, 100, 50] * 12)
    assert image.mode == "P"
    assert read(image) == [[3, 0], [11, 7]]


def test_grey_black_and_white_and_sixteen_bits() -> None:
    for kind in ("PNG", "BMP", "TIFF"):
        assert read(grey([3, 0, 11]), kind) == [[3, 0, 11]]
    assert read(grey([0, 255]).convert("1"), num_classes=2) == [[0, 1]]
    sixteen = Image.fromarray(np.array([[3, 65535]], dtype=np.uint16))
    assert read(sixteen, unlabelled=65535) == [[3, 11]]
    with pytest.raises(UserError, match="value 65535"):
        read(sixteen)


@pytest.mark.parametrize(
    ("row", "settings", "expected"),
    [
        ([0, 255, 4], {}, [0, 11, 4]),
        ([0, 255, 4], {"unlabelled_class": 0}, [0, 0, 4]),
        ([0, 9, 4], {"unlabelled": 9}, [0, 11, 4]),
        ([0, 11, 4], {"unlabelled": 11}, [0, 11, 4]),  # already the last
        ([0, 11, 4], {"unlabelled": None}, [0, 11, 4]),
        ([0, 255, 11], {"num_classes": 13}, [0, 12, 11]),
        ([0, 255, 11], {"unlabelled_class": 11}, [0, 11, 11]),
    ],
)
def test_unlabelled_pixels(row: list[int], settings: Any, expected: list[int]) -> None:
    assert read(grey(row), **settings) == [expected]


def test_classes_that_do_not_exist() -> None:
    with pytest.raises(UserError, match=r"value 255, .*12 classes, 0 to 11\. .*unlabelled=255"):
        read(grey([0, 255, 4]), unlabelled=None)
    with pytest.raises(UserError, match=r"has unlabelled .*255.*last class, 11, but other pixels"):
        read(grey([0, 255, 11]))  # they share no class unless told to
    with pytest.raises(UserError, match="11 colours for 12 classes"):
        LabelMapReader(12, palette=[(0, 0, 0)] * 11)
    with pytest.raises(
        UserError, match=r"unlabelled_class=12 does not exist\. The 12 classes are 0 to 11"
    ):
        LabelMapReader(12, unlabelled_class=12)


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "PNG"), ("LA", "PNG"), ("L", "JPEG")])
def test_a_picture_is_not_a_label_map(mode: str, kind: str) -> None:
    with pytest.raises(UserError, match=rf"a\.png is a {kind} picture of mode {mode}") as caught:
        read(Image.new(mode, (2, 2)), kind)
    assert not isinstance(caught.value, BrokenImageError)  # a mistake, not a file to leave out


def test_one_hot() -> None:
    classes = torch.tensor([[[0, 2], [1, 1]]], dtype=torch.uint8)
    encoded = one_hot(classes, 4)
    assert (encoded.shape, encoded.dtype) == ((1, 4, 2, 2), torch.float32)
    assert encoded.unique().tolist() == [0.0, 1.0]
    assert (encoded.sum(1) == 1).all()
    assert torch.equal(encoded.argmax(1), classes.long())


def test_resizing_picks_pixels() -> None:
    def read_map(image: Image.Image, **settings: Any) -> torch.Tensor:
        image = Image.frombytes("P", image.size, image.tobytes())
        return torch.from_numpy(np.array(ImageTransform(**settings)(image)))

    image = grey(*[[0] * 10 + [9] * 10] * 20)  # an antialiased edge would give 1 to 8
    for frame in ({"resize": "shorter_side", "crop": "center"}, {"resize": "stretch"}):
        row = read_map(image, **{"crop": "none", **frame}, resolution=7)[3].tolist()
        assert row in ([0] * 3 + [9] * 4, [0] * 4 + [9] * 3)


@pytest.mark.parametrize(("kind", "num_workers"), [("folder", 0), ("zip", 1)])
def test_batches_of_a_subfolder(pairs: Path, kind: str, num_workers: int) -> None:
    source = label_map_files(pairs if kind == "folder" else zipped(pairs))
    data = data_module(source, **{**FRAME, "resolution": (24, 32), "num_workers": num_workers})
    assert (len(data.train_dataset), len(data.val_dataset)) == (6, 2)
    assert (data.channels, data.num_classes, data.palette) == (5, None, None)
    colors = [(0, 0, value) for value in range(5)]
    reader = LabelMapReader(5, palette=colors)
    assert data_module(label_map_files(pairs, reader=reader)).palette == colors
    assert "24x32, label maps of 5 classes" in data.summary()
    for batch in islice(data.train_dataloader(), 2):
        assert batch.keys() == {"images"}
        assert batch["images"].shape == (3, 5, 24, 32)
        assert (batch["images"].sum(1) == 1).all()
    (batch,) = data.val_dataloader()
    for image, index in zip(batch["images"], range(2), strict=True):
        file = pairs / data.val_dataset.name(index)  # of the right size: not a pixel is changed
        assert np.array_equal(image.argmax(0), np.asarray(Image.open(file)))


@pytest.mark.parametrize(
    ("num_classes", "subfolder", "message"),
    [
        (4, "label", r"label/street/\d\.png has a pixel of value 4, .*4 classes"),
        (5, None, r"image/street/0\.bmp is a BMP picture .*subfolder"),
        (5, "labels", r"folder labels\. .*images are: image/street, label/street\."),
    ],
)
def test_the_first_wrong_file_is_named_before_training(
    pairs: Path, num_classes: int, subfolder: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        label_map_files(pairs, num_classes, subfolder=subfolder).open()
