"""The data sets a config can name (`configs/data`): one function each."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from taming.data.builtin import load_cifar10, load_digits, load_fashion_mnist
from taming.data.image_folder import Check, ImageFolder
from taming.data.images import Channels
from taming.data.label_maps import LabelMapFolder, LabelMapReader, LabelMapTransform
from taming.data.labels import LabelMode
from taming.data.module import ImageDataModule, Part, hold_out
from taming.data.split import check_fraction
from taming.data.transforms import Crop, ImageTransform, Resize, as_color
from taming.errors import UserError

__all__ = ["cifar10", "digits", "fashion_mnist", "image_folder", "label_maps"]

NumWorkers = int | Literal["auto"]


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

    Validation images come from `val_path`, a folder or archive, or, without one, `val_fraction` of
    the images are held out (see `held_out_split`).
    """
    transform = ImageTransform(
        resolution=resolution,
        resize=resize,
        crop=crop,
        crop_scale=crop_scale,
        horizontal_flip=horizontal_flip,
    )
    read = partial(
        ImageFolder,
        channels=channels,
        background=as_color(background, "background"),
        labels=labels,
        max_broken_fraction=max_broken_fraction,
    )
    return ImageDataModule(
        partial(_open_folders, read, path, val_path, val_fraction, check),
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
    read = partial(
        LabelMapFolder, reader=reader, max_broken_fraction=max_broken_fraction, subfolder=subfolder
    )
    return ImageDataModule(
        partial(_open_label_maps, read, path, val_path, val_fraction, check),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def digits(
    *,
    resolution: int = 32,
    batch_size: int,
    val_fraction: float = 0.2,
    channels: Channels = 1,
    random_shift: int = 0,
    val_batch_size: int | None = None,
    num_workers: NumWorkers = "auto",
    seed: int = 0,
) -> ImageDataModule:
    """scikit-learn's digits, 8x8, enlarged by a whole factor (see `load_digits`).

    Raises:
        UserError: if `resolution` is not a multiple of 8.
    """
    if not isinstance(resolution, int) or resolution < 8 or resolution % 8:
        raise UserError(
            f"data.resolution is {resolution}: digits are 8x8 pixels and enlarged by a whole "
            "factor, so give a multiple of 8."
        )
    transform = ImageTransform(
        resolution=resolution, resize="enlarge", crop="none", random_shift=random_shift
    )
    return ImageDataModule(
        partial(_open_digits, channels, val_fraction),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def fashion_mnist(
    root: str | Path,
    *,
    resolution: int | Sequence[int] = 32,
    batch_size: int,
    channels: Channels = 1,
    pad: int = 2,
    resize: Resize = "enlarge",
    horizontal_flip: bool = False,
    random_shift: int = 0,
    val_batch_size: int | None = None,
    num_workers: NumWorkers = "auto",
    seed: int = 0,
) -> ImageDataModule:
    """Fashion-MNIST (see `load_fashion_mnist`); its test part is the validation data."""
    transform = ImageTransform(
        resolution=resolution,
        resize=resize,
        crop="center" if resize == "shorter_side" else "none",
        horizontal_flip=horizontal_flip,
        random_shift=random_shift,
        pad=pad,
    )
    transform.check_size((28, 28), "a Fashion-MNIST image")
    return ImageDataModule(
        partial(_open_fashion_mnist, root, channels),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def cifar10(
    root: str | Path,
    *,
    resolution: int | Sequence[int] = 32,
    batch_size: int,
    channels: Channels = 3,
    resize: Resize = "enlarge",
    horizontal_flip: bool = True,
    random_shift: int = 0,
    val_batch_size: int | None = None,
    num_workers: NumWorkers = "auto",
    seed: int = 0,
) -> ImageDataModule:
    """CIFAR-10 (see `load_cifar10`); its test part is the validation data."""
    transform = ImageTransform(
        resolution=resolution,
        resize=resize,
        crop="center" if resize == "shorter_side" else "none",
        horizontal_flip=horizontal_flip,
        random_shift=random_shift,
    )
    transform.check_size((32, 32), "a CIFAR-10 image")
    return ImageDataModule(
        partial(_open_cifar10, root, channels),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def _open_label_maps(
    read: partial[LabelMapFolder],
    path: str | Path,
    val_path: str | Path | None,
    val_fraction: float,
    check: Check,
) -> tuple[Part, Part]:
    train = read(path)
    if val_path is None:
        return _held_out(train, val_fraction, check)
    val = read(val_path, key="data.val_path")
    val.drop_broken(check)
    train.drop_broken(check)
    return Part(train), Part(val)


def _open_folders(
    read: partial[ImageFolder],
    path: str | Path,
    val_path: str | Path | None,
    val_fraction: float,
    check: Check,
) -> tuple[Part, Part]:
    train = read(path)
    if val_path is None:
        return _held_out(train, val_fraction, check)
    val = read(val_path, known_classes=train.class_names, key="data.val_path")
    val.drop_broken(check)
    train.drop_broken(check)
    return Part(train), Part(val)


def _held_out(source: ImageFolder, val_fraction: float, check: Check) -> tuple[Part, Part]:
    check_fraction(val_fraction)  # before the images are read, which takes time
    source.drop_broken(check)
    return hold_out(source, val_fraction)


def _open_digits(channels: Channels, val_fraction: float) -> tuple[Part, Part]:
    return hold_out(load_digits(channels), val_fraction)


def _open_fashion_mnist(root: str | Path, channels: Channels) -> tuple[Part, Part]:
    train, val = (load_fashion_mnist(root, is_train, channels) for is_train in (True, False))
    return Part(train), Part(val)


def _open_cifar10(root: str | Path, channels: Channels) -> tuple[Part, Part]:
    train, val = (load_cifar10(root, is_train, channels) for is_train in (True, False))
    return Part(train), Part(val)
