"""`train_transformer`: stage 2, a tokenizer and images to a generator."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from taming.cli.app import (
    begin_run,
    build,
    check_run_dir,
    program,
    resolved,
    resume_config,
    write_config,
)
from taming.cli.data import ENCODING_TYPES, condition_settings, encode, open_images
from taming.cli.hints import setting
from taming.cli.setting_types import check_types
from taming.cli.training import finish, start_trackers
from taming.conditioning import (
    CellClasses,
    ClassLabel,
    Conditioning,
    ImageCondition,
    Unconditional,
)
from taming.data import ImageDataModule, LabelMapReader, TokenDataModule
from taming.errors import UserError
from taming.serialization import find_model, load_training_checkpoint
from taming.training import check_resume, train
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> float | None:
    """Encodes the images, trains a GPT on the codes, and exports a generator."""
    if config.resume is not None:
        config = resume_config(config)
    resolved(config)  # missing values first
    check_types(config, {**ENCODING_TYPES, "condition_dropout": float})
    trainer = build(config.trainer)
    trainer.lightning_trainer()  # a missing GPU is noticed now
    resume_from, saved = None, None
    if config.resume is not None:
        resume_from = check_resume(Path(config.resume), trainer.max_steps, "generator")
        saved = load_training_checkpoint(resume_from)
        tokenizer = VQGAN.from_saved(saved.parts["tokenizer"])
    else:
        tokenizer = VQGAN.from_pretrained(config.vqgan)
        log.info("tokenizer: %s", find_model(config.vqgan))
    check_run_dir(config)
    check_conditioning(config)
    images, condition_tokenizer = open_images(config, tokenizer, saved)
    grid_size = tokenizer.grid_size_for(images.resolution)
    conditioning = build_conditioning(config, images, condition_tokenizer)
    if saved is not None and not _same(saved.config["conditioning"], conditioning.config()):
        raise UserError(
            f"the classes or conditions of the images are no longer those that the run in "
            f"{config.resume} was begun with: resume it with the same data, or start a new run."
        )
    module = build(
        config.training,
        transformer=GPT(
            build(
                config.model,
                codebook_size=tokenizer.codebook_size,
                **conditioning.transformer_config(grid_size),
            )
        ),
        tokenizer=tokenizer,
        conditioning=conditioning,
        grid_size=grid_size,
        condition_tokenizer=condition_tokenizer,
        max_steps=trainer.max_steps,
        accumulate=trainer.accumulate,
        gradient_clip=trainer.gradient_clip,
    )
    trainer.check_monitor(module)
    run_dir = begin_run(config)
    where = torch.device(trainer.device_kind())
    train_tokens, val_tokens = encode(config, tokenizer, condition_tokenizer, images, where)
    tokens = TokenDataModule(train_tokens, val_tokens, images.loader, seed=config.seed)
    result = train(
        module,
        tokens,
        trainer,
        run_dir=run_dir,
        trackers=start_trackers(config, run_dir, resume_from),
        resume_from=resume_from,
        show=("loss",),
        on_start=partial(write_config, config, run_dir),
    )
    for_sampling = [setting("checkpoint", str(run_dir))]
    if conditioning.takes_images:
        for_sampling += [*condition_settings(config.data), "num_images=16"]
    return finish(
        result,
        config.trainer.monitor,
        run_dir,
        name="train_transformer",
        max_steps=trainer.max_steps,
        next_step=f"sample from it:\n  {program('sample')} {' '.join(for_sampling)}",
    )


def _same(saved: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether all that was saved holds; what has been added since is not in older runs."""
    return all(new.get(name) == value for name, value in saved.items())


def check_conditioning(config: DictConfig) -> None:
    """Raises a `UserError` for settings of the condition that no model could have."""
    if not 0 <= config.condition_dropout < 1:
        raise UserError(
            f"condition_dropout must be at least 0 and less than 1, not {config.condition_dropout}."
        )
    if config.condition_as not in ("prefix", "context"):
        raise UserError(f"condition_as is prefix or context, not {config.condition_as!r}.")
    _check_kind(config, config.conditioning)


def _check_kind(config: DictConfig, kind: str) -> None:
    """The same for a kind of condition; of `auto` the data have yet to show which it is."""
    if config.condition_as == "context" and kind in ("class", "none"):
        raise UserError(
            "condition_as=context is for condition images, and here are none: they need "
            "data=paired and conditioning=image, or leave it out."
        )
    if config.condition_dropout > 0 and kind == "none":
        raise UserError(
            f"condition_dropout={config.condition_dropout} leaves out the condition some of the "
            "time, and here is none: set condition_dropout=0, or give images with classes or "
            "condition images."
        )
    if config.model.get("bidirectional_prefix") and (
        kind in ("class", "none") or config.condition_as == "context"
    ):
        raise UserError(
            "model.bidirectional_prefix=true is for condition images in front, whose tokens see "
            "each other, and here at most one token is in front: set "
            "model.bidirectional_prefix=false, or give data=paired with condition_as=prefix."
        )


def build_conditioning(
    config: DictConfig, images: ImageDataModule, condition_tokenizer: VQGAN | CellClasses | None
) -> Conditioning:
    """What can be asked of the model, by `config.conditioning`.

    Raises:
        UserError: for classes that the images do not have, or settings of a condition that there is
            none of.
    """
    if condition_tokenizer is not None:
        reader = images.condition_reader
        settings: dict[str, Any] = {"unlabelled": None}
        if isinstance(reader, LabelMapReader):
            names = ("palette", "unlabelled", "unlabelled_class")
            settings = {name: getattr(reader, name) for name in names}
        return ImageCondition(
            condition_tokenizer.codebook_size,
            condition_tokenizer.grid_size_for(images.condition_resolution),
            config.condition_dropout,
            as_context=config.condition_as == "context",
            **settings,
        )
    kind = config.conditioning
    if kind == "auto":
        kind = "none" if images.num_classes is None else "class"
    _check_kind(config, kind)
    if kind == "none":
        return Unconditional()
    if images.num_classes is None:
        raise UserError(
            "conditioning=class needs images with classes: one folder a class in "
            "data=image_folder, or a set that has them. Those of data=paired have none, but "
            "condition images."
        )
    return ClassLabel(images.num_classes, config.condition_dropout, images.class_names)
