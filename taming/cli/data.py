"""What the commands do with their data settings: build, complete and encode."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import lightning as L
from annotated_types import Ge, Lt
from omegaconf import DictConfig, OmegaConf

from taming.cli.build import build
from taming.cli.saved_config import RESOLVED_FILE, check_origin, load_resolved_config
from taming.cli.setting_types import check_types
from taming.data.module import ImageDataModule
from taming.serialization import SavedModel, find_model
from taming.tokenizer import VQGAN, Tokenizer, height_and_width
from taming.training.processes import set_up_data
from taming.training.transformer import find_condition_tokenizer

__all__ = [
    "ENCODING_TYPES",
    "IMAGE_TYPES",
    "build_data",
    "load_tokenizer",
    "open_data_of_run",
    "open_images",
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
            "note: the tokenizer was trained at %d×%d, but data.resolution is %s. Leave "
            "data.resolution out to use the tokenizer's.",
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
        UserError: if the data do not exist any more, or the configuration is wrong or refused.
    """
    path = run / RESOLVED_FILE
    plain = load_resolved_config(path)
    saved_config = OmegaConf.create({name: plain.get(name) for name in ("data", "seed")})
    check_origin(saved_config, command_config, path)
    check_types(saved_config, IMAGE_TYPES)
    data = build_data(saved_config)
    set_up_data(data)
    return data


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
        trainer: see `set_up_data`.
    """
    L.seed_everything(config.seed, workers=True, verbose=False)
    with_tokenizer_shape(config, tokenizer)
    images = build_data(config, conditions=config.conditioning in ("auto", "image"))
    tokenizer.check_kind(images.label_maps, images.channels)
    condition_tokenizer = find_condition_tokenizer(
        images,
        path=config.condition_tokenizer,
        cell=config.condition_cell,
        downsample_factor=tokenizer.downsample_factor,
        required=config.conditioning == "image",
        saved_model=saved_model,
    )
    set_up_data(images, trainer)
    return images, condition_tokenizer
