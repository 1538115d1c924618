"""Pairs of images and conditions in a folder or archive."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from taming.data.image_folder import Check, ImageFolder
from taming.data.images import Channels
from taming.data.label_maps import LabelMapFolder, LabelMapReader, LabelMapTransform
from taming.data.module import NumWorkers
from taming.data.paired_module import PairedDataModule
from taming.data.pairs import PairFolder, PairTransform
from taming.data.sets.parts import open_parts
from taming.data.transforms import Crop, ImageTransform, Resize, as_color
from taming.errors import UserError

__all__ = ["paired"]


def paired(
    path: str | Path,
    *,
    resolution: int | Sequence[int],
    batch_size: int,
    image_folder: str = "image",
    condition_folder: str = "label",
    condition: Literal["label_map", "image"] = "label_map",
    num_classes: int | None = None,
    unlabelled: int | None = 255,
    unlabelled_class: int | None = None,
    condition_channels: Channels = 3,
    condition_resolution: int | Sequence[int] | None = None,
    palette: Sequence[Sequence[int]] | None = None,
    val_path: str | Path | None = None,
    val_fraction: float = 0.05,
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
) -> PairedDataModule:
    """Images and what they are to be made from; see `PairFolder`, `PairTransform`.

    `path` and `val_path` hold `image_folder` and `condition_folder`. The conditions are label maps,
    one-hot, of which `num_classes` counts the class of unlabelled pixels too (see
    `LabelMapReader`); or, with `condition="image"`, pictures of `condition_channels`: depth, edges,
    anything. `condition_resolution` is that of the images if None. `palette` has red, green and
    blue for each class, to show label maps. The rest is as for `image_folder`; an image and its
    condition are cropped and mirrored alike.

    Raises:
        UserError: for settings that make no sense together.
    """
    frame: dict[str, Any] = {
        "resize": resize,
        "crop": crop,
        "crop_scale": crop_scale,
        "horizontal_flip": horizontal_flip,
    }
    condition_frame = {**frame, "resolution": condition_resolution or resolution}
    color = as_color(background, "background")
    shown: ImageTransform
    read_condition: Callable[..., ImageFolder]
    if condition == "label_map":
        if condition_channels != 3:  # the default
            raise _unused("condition_channels", condition_channels, "3", "condition=image")
        reader = _reader(num_classes, unlabelled, unlabelled_class)
        number = reader.num_classes
        shown = LabelMapTransform(**condition_frame, num_classes=number)
        read_condition = partial(LabelMapFolder, reader=reader)
    elif condition == "image":
        for name, value in (
            ("num_classes", num_classes),
            ("unlabelled_class", unlabelled_class),
            ("palette", palette),
        ):
            if value is not None:
                raise _unused(name, value, "null", "condition=label_map")
        if unlabelled not in (None, 255):  # no such pixels, and the default
            raise _unused("unlabelled", unlabelled, "null", "condition=label_map")
        number = condition_channels
        if number not in (1, 3):
            raise UserError(f"data.condition_channels is {number}: 1 for grey or 3 for RGB.")
        shown = ImageTransform(**condition_frame)
        read_condition = partial(ImageFolder, channels=number, background=color, labels="none")
    else:
        raise UserError(f"data.condition is {condition!r}: choose label_map or image.")
    folders = str(image_folder).strip("/"), str(condition_folder).strip("/")

    def read(path: str | Path, key: str, train: PairFolder | None) -> PairFolder:
        images = ImageFolder(
            path,
            channels=channels,
            background=color,
            labels="none",
            max_broken_fraction=max_broken_fraction,
            key=key,
            subfolder=folders[0],
            subfolder_key="data.image_folder",
        )
        conditions = read_condition(
            path,
            max_broken_fraction=max_broken_fraction,
            key=key,
            subfolder=folders[1],
            subfolder_key="data.condition_folder",
        )
        return PairFolder(images, conditions, folders)

    return PairedDataModule(
        partial(open_parts, read, path, val_path, val_fraction, check),
        PairTransform(**frame, resolution=resolution, condition=shown, condition_channels=number),
        image_transform=ImageTransform(**frame, resolution=resolution),
        palette=_palette(palette, number) if condition == "label_map" else None,
        unlabelled=unlabelled if condition == "label_map" else None,
        unlabelled_class=unlabelled_class,
        channels=channels,
        batch_size=batch_size,
        val_batch_size=val_batch_size,
        num_workers=num_workers,
        seed=seed,
    )


def _unused(name: str, value: object, default: str, used_with: str) -> UserError:
    return UserError(
        f"data.{name}={value} is for data.{used_with} only: leave it out, or set "
        f"data.{name}={default} where an experiment gives it."
    )


def _reader(
    num_classes: int | None, unlabelled: int | None, unlabelled_class: int | None
) -> LabelMapReader:
    if num_classes is None:
        raise UserError(
            "data.num_classes must be given for label maps: the number of classes, with the class "
            "of unlabelled pixels. If the conditions are pictures, set data.condition=image."
        )
    return LabelMapReader(
        num_classes=num_classes,
        unlabelled=unlabelled,
        unlabelled_class=unlabelled_class,
        key="data.num_classes",
        folder_key="data.condition_folder",
    )


def _palette(palette: Sequence[Sequence[int]] | None, num_classes: int) -> list[list[int]] | None:
    if palette is None:
        return None
    if len(palette) < num_classes:
        raise UserError(
            f"data.palette has {len(palette)} colours for {num_classes} classes: give one a class."
        )
    return [list(as_color(color, "data.palette")) for color in palette]
