"""`train_transformer`: stage 2, a tokenizer and images to a generator."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig, ListConfig

from taming.cli.app import (
    begin_run,
    build,
    check_run_dir,
    command,
    program,
    resolved,
    resume_config,
    set_seed,
)
from taming.cli.setting_types import check_types
from taming.cli.training import finish, start_trackers
from taming.conditioning import (
    CellClasses,
    ClassLabel,
    Conditioning,
    ImageCondition,
    Unconditional,
)
from taming.data import ImageDataModule, PairedDataModule, TokenDataModule
from taming.errors import UserError
from taming.generation import load_condition_tokenizer
from taming.serialization import SavedModel, find_model, load_training_checkpoint
from taming.training import check_resume, train
from taming.vqgan import VQGAN
from taming.workflows import encode_dataset

__all__ = ["main"]

log = logging.getLogger("taming")

SETTINGS = {
    "data.resolution": int | Sequence[int] | None,  # None: the tokenizer's
    "data.channels": int | None,
    "condition_dropout": float,
    "condition_cell": int | Sequence[int] | None,
    "tokens.cache_dir": Path,
    "tokens.num_views": int,
    "tokens.batch_size": int,
}


@command("train_transformer")
def main(config: DictConfig) -> int:
    """Encodes the images, trains a GPT on the codes, and exports a generator."""
    if config.resume is not None:
        config = resume_config(config)
    resolved(config)  # missing values first
    check_types(config, SETTINGS)
    trainer = build(config.trainer)
    where = torch.device(trainer.device_kind())  # a missing GPU is noticed now
    resume_from, saved = None, None
    if config.resume is not None:
        resume_from = check_resume(Path(config.resume), trainer.max_steps, "generator")
        saved = load_training_checkpoint(resume_from)
        tokenizer = VQGAN.from_saved(saved.parts["tokenizer"])
    else:
        tokenizer = VQGAN.from_pretrained(config.vqgan)
        log.info("tokenizer: %s", find_model(config.vqgan))
    check_run_dir(config)
    set_seed(config.seed)
    with_tokenizer_shape(config, tokenizer)
    check_conditioning(config)
    images = build(config.data)
    condition_tokenizer = build_condition_tokenizer(config, images, tokenizer, saved)
    images.setup()
    grid_size = tokenizer.grid_size_for(images.resolution)
    conditioning = build_conditioning(config, images, condition_tokenizer)
    if saved is not None and conditioning.config() != saved.config["conditioning"]:
        raise UserError(
            f"the classes or conditions of the images are no longer those that the run in "
            f"{config.resume} was begun with: resume it with the same data, or start a new run."
        )
    module = build(
        config.training,
        transformer=build(
            config.model,
            codebook_size=tokenizer.codebook_size,
            **conditioning.transformer_config(grid_size),
        ),
        tokenizer=tokenizer,
        conditioning=conditioning,
        grid_size=grid_size,
        condition_tokenizer=condition_tokenizer,
        max_steps=trainer.max_steps,
        accumulate=trainer.accumulate,
        gradient_clip=trainer.gradient_clip,
    )
    run_dir = begin_run(config)
    tokens = encode(config, tokenizer, condition_tokenizer, images, where)
    result = train(
        module,
        tokens,
        trainer,
        run_dir=run_dir,
        trackers=start_trackers(config, run_dir, resume_from),
        resume_from=resume_from,
        show=("loss",),
    )
    return finish(
        result,
        run_dir,
        name="train_transformer",
        max_steps=trainer.max_steps,
        next_step=f"sample from it:\n  {program('sample')} checkpoint={run_dir}",
    )


def with_tokenizer_shape(config: DictConfig, tokenizer: VQGAN) -> None:
    """Fills in the tokenizer's resolution and channels where `config.data` leaves them open.

    Raises:
        UserError: if the data's channels are not the tokenizer's.
    """
    if config.data.resolution is None:
        height, width = tokenizer.resolution
        config.data.resolution = height if height == width else [height, width]
    elif _size(config.data.resolution) != tokenizer.resolution:
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


def _size(resolution: int | ListConfig) -> tuple[int, int]:
    height, width = (resolution, resolution) if isinstance(resolution, int) else resolution
    return height, width


def check_conditioning(config: DictConfig) -> None:
    """Raises a `UserError` for settings of the condition that no images could fit."""
    if config.conditioning not in ("auto", "class", "image", "none"):
        raise UserError(f"conditioning is auto, class, image or none, not {config.conditioning!r}.")
    if not 0 <= config.condition_dropout < 1:
        raise UserError(
            f"condition_dropout must be at least 0 and less than 1, not {config.condition_dropout}."
        )
    if config.condition_as not in ("prefix", "context"):
        raise UserError(f"condition_as is prefix or context, not {config.condition_as!r}.")
    for name in ("num_views", "batch_size"):
        if config.tokens[name] < 1:
            raise UserError(f"tokens.{name} must be at least 1, not {config.tokens[name]}.")


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
        kinds = "label maps", "pictures"
        if chosen.label_maps != images.conditions_are_label_maps:
            raise UserError(
                f"condition_tokenizer={config.condition_tokenizer} is of "
                f"{kinds[not chosen.label_maps]}, and the conditions of the data are "
                f"{kinds[chosen.label_maps]}: give one trained on such conditions."
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


def build_conditioning(
    config: DictConfig, images: ImageDataModule, condition_tokenizer: VQGAN | CellClasses | None
) -> Conditioning:
    """What can be asked of the model, by `config.conditioning`.

    Raises:
        UserError: for classes that the images do not have.
    """
    if condition_tokenizer is not None:
        assert isinstance(images, PairedDataModule)
        return ImageCondition(
            condition_tokenizer.codebook_size,
            condition_tokenizer.grid_size_for(images.condition_resolution),
            config.condition_dropout,
            as_context=config.condition_as == "context",
            palette=images.palette,
        )
    kind = config.conditioning
    if kind == "none" or (kind == "auto" and images.num_classes is None):
        return Unconditional()
    if images.num_classes is None:
        raise UserError(
            "conditioning=class needs images with classes: one folder a class in "
            "data=image_folder, or a set that has them."
        )
    return ClassLabel(images.num_classes, config.condition_dropout, images.class_names)


def encode(
    config: DictConfig,
    tokenizer: VQGAN,
    condition_tokenizer: VQGAN | CellClasses | None,
    images: ImageDataModule,
    where: torch.device,
) -> TokenDataModule:
    """The images, and their conditions, as tokens: from the cache, or encoded now."""
    if isinstance(images, PairedDataModule) and condition_tokenizer is None:
        images = images.images_alone()
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
            ("training images", images.train_dataset, config.tokens.num_views),
            ("validation images", images.val_dataset, 1),
        )
    )
    tokenizer.cpu()
    return TokenDataModule(
        train,
        val,
        batch_size=images.batch_size,
        val_batch_size=images.val_batch_size,
        seed=config.seed,
    )
