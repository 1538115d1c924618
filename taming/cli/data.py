"""The data settings of the commands: built, filled in, encoded."""

import logging
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from omegaconf import DictConfig

from taming.cli.app import build, set_seed
from taming.cli.hints import resolution_of
from taming.conditioning import CellClasses
from taming.data import ImagesOfPairs, PairFiles, TokenDataset
from taming.data.module import ImageDataModule
from taming.errors import UserError
from taming.generation import load_condition_tokenizer
from taming.serialization import SavedModel
from taming.vqgan import VQGAN
from taming.workflows.encode_dataset import encode_dataset

__all__ = ["ENCODING_TYPES", "build_data", "encode", "open_images", "with_tokenizer_shape"]

log = logging.getLogger("taming")

KINDS = "pictures", "label maps"

RESOLUTION = int | tuple[int, int] | None  # None: the tokenizer's
ENCODING_TYPES = {
    "data.resolution": RESOLUTION,
    "data.transform.resolution": RESOLUTION,
    "data.transform.condition_resolution": RESOLUTION,
    "data.channels": int | None,
    "data.source.channels": int | None,
    "data.source.reader.channels": int | None,
    "data.source.reader.num_classes": int | None,
    "data.label_map.num_classes": int | None,
    "condition_cell": Annotated[int, Ge(1)] | None,
    "tokens.cache_dir": Path,
    "tokens.num_views": int,
    "tokens.batch_size": int,
}


def build_data(config: DictConfig, conditions: bool = True) -> ImageDataModule:
    """Makes the data module that `config.data` describes; one with a `_target_` is its own.

    `conditions` says whether pairs are taken with their conditions.
    """
    if config.data.get("_target_") is not None:
        return build(config.data)
    source = build(config.data.source)
    if (kind := config.data.get("condition")) is not None:
        if kind not in ("label_map", "image"):
            raise UserError(f"data.condition is {kind}: choose label_map or image.")
        source = source(condition_reader=build(config.data[kind]))
    if isinstance(source, PairFiles) and not conditions:
        source = ImagesOfPairs(source)
    transform, loader = build(config.data.transform), build(config.data.loader)
    return ImageDataModule(source, transform, loader, seed=config.seed)


def with_tokenizer_shape(
    config: DictConfig, tokenizer: VQGAN, resolution: tuple[int, int] | None = None
) -> None:
    """Fills in the tokenizer's resolution and channels where `config.data` leaves them open.

    A generator's `resolution` may be another, and takes the place of its tokenizer's.
    """
    if config.data.resolution is None:
        height, width = resolution or tokenizer.resolution
        config.data.resolution = height if height == width else [height, width]
    elif resolution is None and resolution_of(config.data) != tokenizer.resolution:
        log.warning(
            "note: the tokenizer was trained at %d×%d, and data.resolution is %s: leave it out for "
            "the tokenizer's.",
            *tokenizer.resolution,
            config.data.resolution,
        )
    if config.data.channels is None:
        config.data.channels = tokenizer.image_channels


def open_images(
    config: DictConfig, tokenizer: VQGAN, saved: SavedModel | None = None
) -> tuple[ImageDataModule, VQGAN | CellClasses | None]:
    """The images, ready to be encoded, and what makes tokens of their conditions, if any.

    The tokenizer's shape is filled in; `saved` is the run that goes on.
    """
    if config.conditioning not in ("auto", "class", "image", "none"):
        raise UserError(f"conditioning is auto, class, image or none, not {config.conditioning!r}.")
    for name in ("num_views", "batch_size"):
        if config.tokens[name] < 1:
            raise UserError(f"tokens.{name} must be at least 1, not {config.tokens[name]}.")
    set_seed(config.seed)
    with_tokenizer_shape(config, tokenizer)
    images = build_data(config, conditions=config.conditioning in ("auto", "image"))
    if images.of_label_maps != tokenizer.label_maps:
        kinds = KINDS[tokenizer.label_maps], KINDS[images.of_label_maps]
        raise UserError(
            f"the tokenizer was trained on {kinds[0]}, and the data are {kinds[1]}: give a "
            f"tokenizer of {kinds[1]}, or other data (data=label_maps, with data.source.subfolder, "
            "are label maps; all others are pictures)."
        )
    if images.channels != tokenizer.image_channels:
        raise UserError(
            f"data.channels={images.channels}, but the tokenizer was trained on images of "
            f"{tokenizer.image_channels} channels."
        )
    condition_tokenizer = _condition_tokenizer(config, images, tokenizer, saved)
    images.setup()
    return images, condition_tokenizer


def _condition_tokenizer(
    config: DictConfig, images: ImageDataModule, tokenizer: VQGAN, saved: SavedModel | None
) -> VQGAN | CellClasses | None:
    """What makes tokens of condition images; None where there are none."""
    reader, resolution = images.condition_reader, images.condition_resolution
    if reader is None:
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
    chosen: VQGAN | CellClasses | None
    if saved is not None:
        chosen = load_condition_tokenizer(saved)
    elif config.condition_tokenizer is not None:
        chosen = VQGAN.from_pretrained(config.condition_tokenizer)
    elif reader.label_maps:
        cell = config.condition_cell
        cell = tokenizer.downsample_factor if cell is None else cell
        chosen = CellClasses(reader.channels, cell, resolution)
    else:
        raise UserError(
            "condition images that are pictures need a condition_tokenizer: a stage-1 run on them. "
            "Only label maps can do without."
        )
    if chosen is not None:
        taken, there = (
            f"{KINDS[label_maps]} of {channels} {'classes' if label_maps else 'channels'}"
            for label_maps, channels in (
                (chosen.label_maps, chosen.image_channels),
                (reader.label_maps, reader.channels),
            )
        )
        if taken != there:
            raise UserError(
                f"the condition tokenizer is of {taken}, and the conditions of the data are "
                f"{there}: give one trained on such conditions."
            )
        chosen.grid_size_for(resolution)
    return chosen


def encode(
    config: DictConfig,
    tokenizer: VQGAN,
    condition_tokenizer: VQGAN | CellClasses | None,
    images: ImageDataModule,
    device: torch.device,
) -> tuple[TokenDataset, TokenDataset]:
    """Training and validation images, and their conditions, as tokens: cached, or encoded now."""
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
            device=device,
            condition_tokenizer=condition_tokenizer,
        )
        for dataset, num_views in ((images.train_dataset, train_views), (images.val_dataset, 1))
    )
    tokenizer.cpu()
    return train, val
