"""The data settings of the commands: built, filled in, encoded."""

import logging
from functools import cache
from typing import Annotated, Any, Literal

import lightning as L
import torch
from annotated_types import Ge, Lt
from omegaconf import DictConfig

from taming.cli.app import build
from taming.cli.processes import start_processes
from taming.data import TokenDataset
from taming.data.module import ImageDataModule
from taming.generation import load_condition_tokenizer
from taming.runtime.errors import UserError
from taming.runtime.process_group import on_first_rank, rank
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN, CellClasses, Tokenizer, height_and_width

__all__ = [
    "ENCODING_TYPES",
    "IMAGE_TYPES",
    "build_data",
    "encode",
    "open_images",
    "set_up",
    "with_tokenizer_shape",
]

log = logging.getLogger("taming")

IMAGE_TYPES = {
    "seed": Annotated[int, Ge(0), Lt(2**32)],
    "data.condition": Literal["label_map", "image"],
    "data.num_classes": int | None,  # None: of pictures
}
ENCODING_TYPES = {
    **IMAGE_TYPES,
    # None: the tokenizer's
    "data.resolution": int | tuple[int, int] | None,
    "data.channels": int | None,
    "conditioning": Literal["auto", "class", "image", "none"],
    "condition_cell": Annotated[int, Ge(1)] | None,
}


def build_data(config: DictConfig, conditions: bool = True) -> ImageDataModule:
    """Makes the data module that `config.data` describes; one with a `_target_` is its own.

    `conditions` says whether pairs are taken with their conditions.
    """
    data = config.data
    if data.get("_target_") is not None:
        return build(data)
    parts = build(data.source), build(data.transform), build(data.loader)
    return ImageDataModule(*parts, seed=config.seed, conditions=conditions)


def with_tokenizer_shape(
    config: DictConfig, tokenizer: VQGAN, resolution: tuple[int, int] | None = None
) -> None:
    """Fills in the tokenizer's resolution and channels where `config.data` leaves them open.

    A generator's `resolution` may be another, and takes the place of its tokenizer's.
    """
    if config.data.resolution is None:
        height, width = resolution or tokenizer.resolution
        config.data.resolution = height if height == width else [height, width]
    elif resolution is None and height_and_width(config.data.resolution) != tokenizer.resolution:
        log.warning(
            "note: the tokenizer was trained at %d×%d, and data.resolution is %s: leave it out for "
            "the tokenizer's.",
            *tokenizer.resolution,
            config.data.resolution,
        )
    if config.data.channels is None:
        config.data.channels = tokenizer.image_channels


def set_up(data: L.LightningDataModule, trainer: L.Trainer | None = None) -> None:
    """Sets the data up; the first process looks for images and checks them, for all.

    The other processes of a training, given by its trainer, start only when that has gone well.
    """

    @cache
    def find_images() -> Any:
        data.setup("fit")
        return getattr(data, "parts", None)

    if trainer is not None:
        if trainer.strategy.launcher is not None:
            find_images()
        start_processes(trainer)
    parts = on_first_rank(find_images)
    if rank() > 0:
        if isinstance(data, ImageDataModule):
            data.parts = parts
        data.setup("fit")


def open_images(
    config: DictConfig,
    tokenizer: VQGAN,
    saved: SavedModel | None = None,
    trainer: L.Trainer | None = None,
) -> tuple[ImageDataModule, Tokenizer | None]:
    """Opens the images to be encoded, and chooses what makes tokens of their conditions, if any.

    The tokenizer's shape is filled in; `saved` is the run that goes on; see `set_up`.
    """
    L.seed_everything(config.seed, workers=True, verbose=False)
    with_tokenizer_shape(config, tokenizer)
    images = build_data(config, conditions=config.conditioning in ("auto", "image"))
    tokenizer.check_kind(images.label_maps, images.channels)
    condition_tokenizer = _condition_tokenizer(config, images, tokenizer, saved)
    set_up(images, trainer)
    return images, condition_tokenizer


def _condition_tokenizer(
    config: DictConfig, images: ImageDataModule, tokenizer: VQGAN, saved: SavedModel | None
) -> Tokenizer | None:
    """Chooses what makes tokens of condition images; None where there are none."""
    reader, resolution = images.condition_reader, images.condition_resolution
    path, cell = config.condition_tokenizer, config.condition_cell
    if reader is None:
        if config.conditioning == "image" or path is not None or cell is not None:
            raise UserError(
                "conditioning=image, condition_tokenizer and condition_cell need images with "
                "condition images: data=paired."
            )
        return None
    if path is not None and cell is not None:
        raise UserError("give a condition_tokenizer or a condition_cell, not both.")
    chosen: Tokenizer | None
    if saved is not None:
        chosen = load_condition_tokenizer(saved)
    elif path is not None:
        chosen = VQGAN.from_pretrained(path)
    elif reader.label_maps:
        chosen = CellClasses(reader.channels, cell or tokenizer.downsample_factor, resolution)
    else:
        raise UserError(
            "condition images that are pictures need a condition_tokenizer: a stage-1 run on them. "
            "Only label maps can do without."
        )
    if chosen is not None:
        chosen.check_kind(reader.label_maps, reader.channels)
        chosen.grid_size_for(resolution)
    return chosen


def encode(
    config: DictConfig,
    tokenizer: VQGAN,
    condition_tokenizer: Tokenizer | None,
    images: ImageDataModule,
    device: torch.device,
) -> tuple[TokenDataset, TokenDataset]:
    """Encodes training and validation images, and their conditions, or finds their tokens."""
    encode_dataset, train_views = build(config.tokens), config.tokens.num_views
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
            num_views=num_views,
            num_workers=images.num_workers_for(dataset),
            device=device,
            condition_tokenizer=condition_tokenizer,
        )
        for dataset, num_views in ((images.train_dataset, train_views), (images.val_dataset, 1))
    )
    tokenizer.cpu()
    return train, val
