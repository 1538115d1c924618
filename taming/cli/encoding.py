"""What the commands that make tokens of images share: `train_transformer` and `encode_dataset`."""

import logging
from pathlib import Path

import torch
from omegaconf import DictConfig, ListConfig

from taming.cli.app import build, set_seed
from taming.conditioning import CellClasses
from taming.data import ImageDataModule, PairedDataModule, TokenDataset
from taming.errors import UserError
from taming.generation import load_condition_tokenizer
from taming.serialization import SavedModel
from taming.vqgan import VQGAN
from taming.workflows import encode_dataset

__all__ = [
    "ENCODING_TYPES",
    "encode",
    "open_images",
    "size_of",
    "with_tokenizer_shape",
]

log = logging.getLogger("taming")

OUR_DATA = "taming.data.sets."
LABEL_MAPS = OUR_DATA + "label_maps"  # the data of which the images are label maps
KINDS = "pictures", "label maps"

ENCODING_TYPES = {
    "data.resolution": int | tuple[int, int] | None,  # None: the tokenizer's
    "data.channels": int | None,
    "condition_cell": int | None,
    "tokens.cache_dir": Path,
    "tokens.num_views": int,
    "tokens.batch_size": int,
}


def with_tokenizer_shape(
    config: DictConfig, tokenizer: VQGAN, resolution: tuple[int, int] | None = None
) -> None:
    """Fills in the tokenizer's resolution and channels where `config.data` leaves them open.

    A generator's `resolution` may be another, and takes the place of its tokenizer's.

    Raises:
        UserError: if the data's channels are not the tokenizer's.
    """
    if config.data.resolution is None:
        height, width = resolution or tokenizer.resolution
        config.data.resolution = height if height == width else [height, width]
    elif resolution is None and size_of(config.data.resolution) != tokenizer.resolution:
        log.warning(
            "note: the tokenizer was trained at %d×%d, and data.resolution is %s: leave it out for "
            "the tokenizer's.",
            *tokenizer.resolution,
            config.data.resolution,
        )
    if config.data.channels is None:
        config.data.channels = tokenizer.image_channels
    if config.data.channels != tokenizer.image_channels:
        raise UserError(
            f"data.channels={config.data.channels}, but the tokenizer was trained on images of "
            f"{tokenizer.image_channels} channels."
        )


def size_of(resolution: int | ListConfig) -> tuple[int, int]:
    """(height, width) of a `data.resolution`."""
    height, width = (resolution, resolution) if isinstance(resolution, int) else resolution
    return height, width


def open_images(
    config: DictConfig, tokenizer: VQGAN, saved: SavedModel | None = None
) -> tuple[ImageDataModule, VQGAN | CellClasses | None]:
    """The images, ready to be encoded, and what makes tokens of their conditions, if any.

    Args:
        config: of the command; the tokenizer's shape is filled in.
        tokenizer: of the images.
        saved: the run that goes on.

    Raises:
        UserError: for settings that do not fit each other, the tokenizer or the data.
    """
    check_encoding(config)
    check_kind(config, tokenizer)
    set_seed(config.seed)
    with_tokenizer_shape(config, tokenizer)
    images = build(config.data)
    condition_tokenizer = build_condition_tokenizer(config, images, tokenizer, saved)
    images.setup()
    return images, condition_tokenizer


def check_encoding(config: DictConfig) -> None:
    """Raises a `UserError` for settings of the tokens and conditions that no images could fit."""
    if config.conditioning not in ("auto", "class", "image", "none"):
        raise UserError(f"conditioning is auto, class, image or none, not {config.conditioning!r}.")
    for name in ("num_views", "batch_size"):
        if config.tokens[name] < 1:
            raise UserError(f"tokens.{name} must be at least 1, not {config.tokens[name]}.")


def check_kind(config: DictConfig, tokenizer: VQGAN) -> None:
    """Raises a `UserError` where one of tokenizer and data is of label maps, the other of pictures.

    Their numbers of channels may be the same. Data of a user's own are not known to be of either.
    """
    target: str = config.data._target_
    of_label_maps = target == LABEL_MAPS
    if target.startswith(OUR_DATA) and of_label_maps != tokenizer.label_maps:
        raise UserError(
            f"the tokenizer was trained on {KINDS[tokenizer.label_maps]}, and the data are "
            f"{KINDS[of_label_maps]}: give a tokenizer of {KINDS[of_label_maps]}, or other data "
            "(data=label_maps, with data.subfolder, are label maps; all others are pictures)."
        )


def build_condition_tokenizer(
    config: DictConfig, images: ImageDataModule, tokenizer: VQGAN, saved: SavedModel | None
) -> VQGAN | CellClasses | None:
    """What makes tokens of condition images; None where they are not asked for.

    Args:
        config: of the command.
        images: the data, not yet set up.
        tokenizer: of the images.
        saved: the run that goes on.

    Raises:
        UserError: if it does not fit the conditions, or there is none that could.
    """
    asked_for = config.conditioning in ("auto", "image")
    if not isinstance(images, PairedDataModule) or not asked_for:
        if config.conditioning == "image":
            raise UserError("conditioning=image needs images with condition images: data=paired.")
        for name in ("condition_tokenizer", "condition_cell"):
            if config[name] is not None:
                raise UserError(
                    f"{name}={config[name]} is for condition images, and here are none: they need "
                    "data=paired and conditioning=image."
                )
        return None
    if config.condition_tokenizer is not None and config.condition_cell is not None:
        raise UserError("give a condition_tokenizer or a condition_cell, not both.")
    if saved is not None:
        return load_condition_tokenizer(saved)
    channels, resolution = images.condition_channels, images.condition_resolution
    if config.condition_tokenizer is not None:
        chosen = VQGAN.from_pretrained(config.condition_tokenizer)
        if chosen.label_maps != images.conditions_are_label_maps:
            raise UserError(
                f"condition_tokenizer={config.condition_tokenizer} is of "
                f"{KINDS[chosen.label_maps]}, and the conditions of the data are "
                f"{KINDS[images.conditions_are_label_maps]}: give one trained on such conditions."
            )
        if chosen.image_channels != channels:
            raise UserError(
                f"condition_tokenizer={config.condition_tokenizer} takes {chosen.image_channels} "
                f"channels or classes, and the conditions of the data have {channels}."
            )
        chosen.grid_size_for(resolution)
        return chosen
    if not images.conditions_are_label_maps:
        raise UserError(
            "condition images that are pictures need a condition_tokenizer: a stage-1 run on them. "
            "Only label maps can do without."
        )
    cell = config.condition_cell
    return CellClasses(channels, tokenizer.downsample_factor if cell is None else cell, resolution)


def encode(
    config: DictConfig,
    tokenizer: VQGAN,
    condition_tokenizer: VQGAN | CellClasses | None,
    images: ImageDataModule,
    where: torch.device,
) -> tuple[TokenDataset, TokenDataset]:
    """Training and validation images, and their conditions, as tokens: cached, or encoded now."""
    if isinstance(images, PairedDataModule) and condition_tokenizer is None:
        images = images.images_alone()
    train_views = config.tokens.num_views
    if train_views > 1 and not images.transform.augments:
        log.warning(
            "note: nothing of the data is augmented (crop, horizontal_flip, random_shift): one "
            "view of each image is encoded, not tokens.num_views=%d alike.",
            train_views,
        )
        train_views = 1
    train, val = (
        encode_dataset(
            tokenizer,
            dataset,
            Path(config.tokens.cache_dir).expanduser(),
            num_views=num_views,
            batch_size=config.tokens.batch_size,
            num_workers=images.num_workers_for(dataset),
            device=where,
            name=name,
            condition_tokenizer=condition_tokenizer,
        )
        for name, dataset, num_views in (
            ("training images", images.train_dataset, train_views),
            ("validation images", images.val_dataset, 1),
        )
    )
    tokenizer.cpu()
    return train, val
