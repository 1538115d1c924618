"""Small data for the tests in this folder."""

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from taming.data import (
    HuggingFaceImages,
    ImageFiles,
    ImageTransform,
    LabelMapReader,
    LoaderOptions,
    PairFiles,
    PictureReader,
)
from taming.data.module import ImageDataModule

# crops and flips, not square
FRAME: dict[str, Any] = {
    "resolution": (12, 16),
    "resize": "shorter_side",
    "crop": "random",
    "crop_scale": (0.5, 1.0),
    "horizontal_flip": True,
}


def data_module(source: Any, **settings: Any) -> ImageDataModule:
    """A data module with these settings of its transform, its loader and itself."""
    loader = {"batch_size": 3, "num_workers": 0}
    loader |= {name: settings.pop(name) for name in loader if name in settings}
    own = {name: settings.pop(name) for name in ("seed", "conditions") if name in settings}
    transform = {"resolution": 16, "resize": "shorter_side", "crop": "center", **settings}
    return ImageDataModule(source, ImageTransform(**transform), LoaderOptions(**loader), **own)


def batches(data: ImageDataModule, count: int) -> list[dict[str, torch.Tensor]]:
    """The first batches of training, and all of validation."""
    return [*islice(data.train_dataloader(), count), *data.val_dataloader()]


def equal(first: list[dict[str, torch.Tensor]], second: list[dict[str, torch.Tensor]]) -> bool:
    """Whether batches hold the same."""
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        for a, b in zip(first, second, strict=True)
    )


def files(path: Path, **settings: Any) -> ImageFiles:
    """Pictures; a quarter are held out."""
    return ImageFiles(path=path, **{"reader": PictureReader(), "val_fraction": 0.25, **settings})


def label_map_files(path: Path, num_classes: int = 5, **settings: Any) -> ImageFiles:
    """Label maps; a quarter are held out."""
    reader = LabelMapReader(num_classes, settings.pop("unlabelled", 255))
    return files(path, **{"reader": reader, "subfolder": "label", "labels": "none", **settings})


def pair_files(path: Path, condition_reader: Any = None, **settings: Any) -> PairFiles:
    """Pairs with label maps of five classes; a quarter are held out."""
    return PairFiles(
        path=path,
        reader=settings.pop("reader", PictureReader()),
        condition_reader=condition_reader or LabelMapReader(5, unlabelled=None),
        **{"val_fraction": 0.25, **settings},
    )


def table_images(path: Path | str, **settings: Any) -> HuggingFaceImages:
    """Pictures of a dataset that Hugging Face's `datasets` reads."""
    return HuggingFaceImages(path=str(path), **{"reader": PictureReader(), **settings})


def zipped(folder: Path) -> Path:
    """The folder as a zip archive next to it."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


def write_pairs(root: Path, count: int = 8, scale: int = 1) -> Path:
    """Label maps of five classes, 24×32 pixels; pictures that show class c as the grey 50·c."""
    label, image = root / "label" / "street", root / "image" / "street"
    label.mkdir(parents=True)
    image.mkdir(parents=True)
    for index in range(count):
        coarse = np.random.default_rng(index).integers(0, 5, (3, 4), dtype=np.uint8)
        classes = coarse.repeat(8, 0).repeat(8, 1)
        Image.fromarray(classes).save(label / f"{index}.png")
        picture = (50 * classes).repeat(scale, 0).repeat(scale, 1)
        Image.fromarray(picture).convert("RGB").save(image / f"{index}.bmp")
    return root
