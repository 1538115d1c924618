"""`train_transformer`: stage 2, a tokenizer and images to a generator."""

import logging
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
from taming.cli.training import finish, start_trackers
from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.data import ImageDataModule, TokenDataModule
from taming.errors import UserError
from taming.serialization import find_model, load_training_checkpoint
from taming.training import check_resume, train
from taming.vqgan import VQGAN
from taming.workflows import encode_dataset

__all__ = ["main"]

log = logging.getLogger("taming")


@command("train_transformer")
def main(config: DictConfig) -> int:
    """Encodes the images, trains a GPT on the codes, and exports a generator."""
    if config.resume is not None:
        config = resume_config(config)
    resolved(config)  # missing values first
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
    images.setup()
    conditioning = build_conditioning(config, images)
    if saved is not None and conditioning.config() != saved.config["conditioning"]:
        raise UserError(
            f"the classes of the images are no longer those that the run in {config.resume} was "
            "begun with: resume it with the same images, or start a new run."
        )
    grid_size = tokenizer.grid_size_for(images.resolution)
    module = build(
        config.training,
        transformer=build(
            config.model,
            codebook_size=tokenizer.codebook_size,
            num_prefix_ids=conditioning.num_prefix_ids,
            # the last token is predicted but never an input
            context_length=conditioning.prefix_length + grid_size[0] * grid_size[1] - 1,
        ),
        tokenizer=tokenizer,
        conditioning=conditioning,
        grid_size=grid_size,
        max_steps=trainer.max_steps,
        accumulate=trainer.accumulate,
        gradient_clip=trainer.gradient_clip,
    )
    run_dir = begin_run(config)
    tokens = encode(config, tokenizer, images, where)
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
    if config.conditioning not in ("auto", "class", "none"):
        raise UserError(f"conditioning is auto, class or none, not {config.conditioning!r}.")
    if not 0 <= config.label_dropout < 1:
        raise UserError(
            f"label_dropout must be at least 0 and less than 1, not {config.label_dropout}."
        )
    for name in ("num_views", "batch_size"):
        if config.tokens[name] < 1:
            raise UserError(f"tokens.{name} must be at least 1, not {config.tokens[name]}.")


def build_conditioning(config: DictConfig, images: ImageDataModule) -> Conditioning:
    """What can be asked of the model, by `config.conditioning`.

    Raises:
        UserError: for classes that the images do not have.
    """
    kind = config.conditioning
    if kind == "none" or (kind == "auto" and images.num_classes is None):
        return Unconditional()
    if images.num_classes is None:
        raise UserError(
            "conditioning=class needs images with classes: one folder a class, or "
            "data.labels=folders."
        )
    return ClassLabel(images.num_classes, config.label_dropout, images.class_names)


def encode(
    config: DictConfig, tokenizer: VQGAN, images: ImageDataModule, where: torch.device
) -> TokenDataModule:
    """The images as tokens, from the cache or encoded now."""
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
