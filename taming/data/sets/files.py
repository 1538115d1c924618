"""Images or label maps in a folder or archive."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from taming.data.image_folder import Check, ImageFolder
from taming.data.images import Channels
from taming.data.label_maps import LabelMapFolder, LabelMapReader, LabelMapTransform
from taming.data.labels import LabelMode
from taming.data.module import ImageDataModule, NumWorkers
from taming.data.sets.parts import open_parts
from taming.data.transforms import Crop, ImageTransform, Resize, as_color

__all__ = ["image_folder", "label_maps"]


def image_folder(
    path: str | Path,
    *,
    resolution: int | Sequence[int],
    batch_size: int,
    val_path: str | Path | None = None,
    val_fraction: float = 0.05,
    labels: LabelMode = "auto",
    channels: Channels = 3,
    background: Sequence[int] = (255, 255, 255),
    resize: Resize = "shorter_side",
    crop: Crop = "center",
    crop_scale: Sequence[float] = (1.0, 1.0),
    horizontal_flip: bool = False,
    check: Check = "auto",
    max_broken_fraction: float = 0.2,
    val_batch_size: int | None = None,
    num_workers: NumWorkers = "auto",
    seed: int = 0,
) -> ImageDataModule:
    """Images in a folder or `.zip` file; see `ImageFolder`, `ImageTransform`, `ImageDataModule`.

    Validation images come from `val_path`, a folder or archive (not in `path`: a `UserError`), or,
    without one, `val_fraction` of the images are held out (see `held_out_split`).
    """
    transform = ImageTransform(
        resolution=resolution,
        resize=resize,
        crop=crop,
        crop_scale=crop_scale,
        horizontal_flip=horizontal_flip,
    )
    color = as_color(background, "background")

    def read(path: str | Path, key: str, train: ImageFolder | None) -> ImageFolder:
        return ImageFolder(
            path,
            channels=channels,
            background=color,
            labels=labels,
            max_broken_fraction=max_broken_fraction,
            known_classes=None if train is None else train.class_names,
            key=key,
        )

    return ImageDataModule(
        partial(open_parts, read, path, val_path, val_fraction, check),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def label_maps(
    path: str | Path,
    *,
    channels: int,
    resolution: int | Sequence[int],
    batch_size: int,
    val_path: str | Path | None = None,
    val_fraction: float = 0.05,
    subfolder: str | None = None,
    unlabelled: int | None = 255,
    unlabelled_class: int | None = None,
    resize: Resize = "shorter_side",
    crop: Crop = "center",
    crop_scale: Sequence[float] = (1.0, 1.0),
    horizontal_flip: bool = False,
    check: Check = "auto",
    max_broken_fraction: float = 0.2,
    val_batch_size: int | None = None,
    num_workers: NumWorkers = "auto",
    seed: int = 0,
) -> ImageDataModule:
    """Label maps in a folder or `.zip` file, one-hot; see `LabelMapReader`, `LabelMapTransform`.

    `channels` is the number of classes, with the one of unlabelled pixels; `subfolder` is of `path`
    and `val_path` alike. The rest is as for `image_folder`, but resizing always picks pixels.
    """
    transform = LabelMapTransform(
        num_classes=channels,
        resolution=resolution,
        resize=resize,
        crop=crop,
        crop_scale=crop_scale,
        horizontal_flip=horizontal_flip,
    )
    reader = LabelMapReader(
        num_classes=channels, unlabelled=unlabelled, unlabelled_class=unlabelled_class
    )

    def read(path: str | Path, key: str, train: LabelMapFolder | None) -> LabelMapFolder:
        return LabelMapFolder(
            path,
            reader=reader,
            max_broken_fraction=max_broken_fraction,
            key=key,
            subfolder=subfolder,
        )

    return ImageDataModule(
        partial(open_parts, read, path, val_path, val_fraction, check),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )
