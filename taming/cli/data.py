"""What the commands do with their data settings: build, complete and encode."""

import logging
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import lightning as L
import torch
from annotated_types import Ge, Lt
from omegaconf import DictConfig, OmegaConf

from taming.cli.build import build
from taming.cli.saved_config import RESOLVED_FILE, check_origin, load_resolved_config
from taming.data import TokenDataset
from taming.data.module import ImageDataModule
from taming.generation import load_condition_tokenizer
from taming.runtime.errors import UserError
from taming.runtime.process_group import on_first_rank, rank
from taming.serialization import SavedModel, find_model
from taming.tokenizer import VQGAN, CellClasses, Tokenizer, height_and_width
from taming.training.processes import start_processes

__all__ = [
    "ENCODING_TYPES",
    "IMAGE_TYPES",
    "build_data",
    "describe_cache",
    "encode",
    "load_tokenizer",
    "open_data_of_run",
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
    """Builds the data module that `config.data` describes, or the user's own with a `_target_`.

    `conditions` says whether paired images come with their conditions.
    """
    data = config.data
    if data.get("_target_") is not None:
        return build(data)
    parts = build(data.source), build(data.transform), build(data.loader)
    return ImageDataModule(*parts, seed=config.seed, conditions=conditions)


def with_tokenizer_shape(
    config: DictConfig, tokenizer: VQGAN, resolution: tuple[int, int] | None = None
) -> None:
    """Fills in the resolution and the channels that `config.data` leaves open.

    They are the tokenizer's, except that a generator may have another `resolution`.
    """
    if config.data.resolution is None:
        height, width = resolution or tokenizer.resolution
        config.data.resolution = height if height == width else [height, width]
    elif resolution is None and height_and_width(config.data.resolution) != tokenizer.resolution:
        log.warning(
            "note: the tokenizer was trained at %d×%d, and data.resolution is %s. Leave it out to "
            "use the tokenizer's.",
            *tokenizer.resolution,
            config.data.resolution,
        )
    if config.data.channels is None:
        config.data.channels = tokenizer.image_channels


def load_tokenizer(path: str) -> VQGAN:
    """Loads the tokenizer of stage 2, and logs which of a run's models it is."""
    tokenizer = VQGAN.from_pretrained(path)
    log.info("tokenizer: %s", find_model(path))
    return tokenizer


def open_data_of_run(command_config: DictConfig, run: Path) -> ImageDataModule:
    """Opens the data of a run again, as the run's configuration describes it.

    Raises:
        UserError: if the data do not exist any more, or `check_origin` refuses the configuration.
    """
    path = run / RESOLVED_FILE
    plain = load_resolved_config(path)
    saved_config = OmegaConf.create({name: plain.get(name) for name in ("data", "seed")})
    check_origin(saved_config, command_config, path)
    data = build_data(saved_config)
    set_up(data)
    return data


def set_up(data: L.LightningDataModule, trainer: L.Trainer | None = None) -> None:
    """Sets the data up. The first process finds and checks the images for all.

    A training passes its `trainer`, whose other processes start after the images are checked.
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
    saved_model: SavedModel | None = None,
    trainer: L.Trainer | None = None,
) -> tuple[ImageDataModule, Tokenizer | None]:
    """Opens the images to encode, and returns them with the tokenizer of their conditions, if any.

    Args:
        config: the command's configuration. The tokenizer's shape is filled in.
        tokenizer: encodes the images.
        saved_model: the model of the run that is resumed.
        trainer: see `set_up`.
    """
    L.seed_everything(config.seed, workers=True, verbose=False)
    with_tokenizer_shape(config, tokenizer)
    images = build_data(config, conditions=config.conditioning in ("auto", "image"))
    tokenizer.check_kind(images.label_maps, images.channels)
    condition_tokenizer = _condition_tokenizer(config, images, tokenizer, saved_model)
    set_up(images, trainer)
    return images, condition_tokenizer


def _condition_tokenizer(
    config: DictConfig, images: ImageDataModule, tokenizer: VQGAN, saved_model: SavedModel | None
) -> Tokenizer | None:
    """Returns the tokenizer of condition images; None without them."""
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
    condition_tokenizer: Tokenizer | None
    if saved_model is not None:
        condition_tokenizer = load_condition_tokenizer(saved_model)
    elif path is not None:
        condition_tokenizer = VQGAN.from_pretrained(path)
    elif reader.label_maps:
        cell = cell or tokenizer.downsample_factor
        condition_tokenizer = CellClasses(reader.channels, cell, resolution)
    else:
        raise UserError(
            "condition images that are pictures need a condition_tokenizer: a stage-1 run on them. "
            "Only label maps work without one."
        )
    if condition_tokenizer is not None:
        condition_tokenizer.check_kind(reader.label_maps, reader.channels)
        condition_tokenizer.grid_size_for(resolution)
    return condition_tokenizer


def encode(
    config: DictConfig,
    tokenizer: VQGAN,
    condition_tokenizer: Tokenizer | None,
    images: ImageDataModule,
    device: torch.device,
) -> tuple[TokenDataset, TokenDataset]:
    """Returns the tokens of training and validation images and their conditions.

    It encodes the images unless a valid cache exists.
    """
    encode_dataset, num_train_views = build(config.tokens), config.tokens.num_views
    if num_train_views > 1 and not images.transform.augments:
        log.warning(
            "note: the data are not augmented (crop, horizontal_flip, random_shift), so all "
            "tokens.num_views=%d views of an image are equal. Only one is encoded.",
            num_train_views,
        )
        num_train_views = 1
    train, val = (
        encode_dataset(
            tokenizer,
            dataset,
            num_views=num_views,
            num_workers=images.num_workers_for(dataset),
            device=device,
            condition_tokenizer=condition_tokenizer,
        )
        for dataset, num_views in ((images.train_dataset, num_train_views), (images.val_dataset, 1))
    )
    tokenizer.cpu()
    return train, val


def describe_cache(cache: TokenDataset) -> str:
    """Returns what a cache holds and how large it is, in words."""
    description = cache.description
    text = f"{len(cache):,} images"
    if description.num_views > 1:
        text += f" in {description.num_views} views"
    text += ", {}×{} codes each".format(*description.indices.grid_size)
    if description.condition_indices is not None:
        text += ", {}×{} condition codes each".format(*description.condition_indices.grid_size)
    size = sum(array.nbytes for array in cache.arrays.values())
    return f"{text}, {size / 2**20:.1f} MiB"
