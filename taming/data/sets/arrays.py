"""Known small data sets, in memory as arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from taming.data.builtin import load_cifar10, load_digits, load_fashion_mnist
from taming.data.dataset import Source
from taming.data.images import Channels
from taming.data.module import ImageDataModule, NumWorkers, Part, hold_out
from taming.data.transforms import ImageTransform, Resize
from taming.errors import UserError

__all__ = ["cifar10", "digits", "fashion_mnist"]


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
        partial(_open_train_and_test, load_fashion_mnist, root, channels),
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
        partial(_open_train_and_test, load_cifar10, root, channels),
        transform,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def _open_digits(channels: Channels, val_fraction: float) -> tuple[Part, Part]:
    return hold_out(load_digits(channels), val_fraction)


def _open_train_and_test(
    load: Callable[[str | Path, bool, Channels], Source], root: str | Path, channels: Channels
) -> tuple[Part, Part]:
    return Part(load(root, True, channels)), Part(load(root, False, channels))
