"""`train_transformer`: stage 2, a tokenizer and images to a generator."""

import logging
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from omegaconf import DictConfig

from taming.cli.app import build, program
from taming.cli.data import ENCODING_TYPES, encode, open_images
from taming.cli.hints import condition_settings, setting
from taming.cli.training import begin_run, finish_run
from taming.data.module import TokenDataModule
from taming.generation import ImageGenerator
from taming.runtime.errors import UserError
from taming.serialization import find_model
from taming.tokenizer import VQGAN
from taming.training import build_conditioning
from taming.transformer import GPT

__all__ = ["main"]

log = logging.getLogger("taming")

TYPES = {
    **ENCODING_TYPES,
    "condition_dropout": Annotated[float, Ge(0), Lt(1)],
    "condition_as": Literal["prefix", "context"],
}


def main(config: DictConfig) -> float | None:
    """Encodes the images, trains a GPT on the codes, and exports a generator."""
    if (begun := begin_run(config, ImageGenerator.kind, TYPES)) is None:
        return None
    config, trainer, resume_from, saved = begun
    if saved is not None:
        tokenizer = VQGAN.from_saved(saved.parts["tokenizer"])
    else:
        tokenizer = VQGAN.from_pretrained(config.vqgan)
        log.info("tokenizer: %s", find_model(config.vqgan))
    images, condition_tokenizer = open_images(config, tokenizer, saved, trainer)
    conditioning = build_conditioning(
        images,
        condition_tokenizer,
        kind=config.conditioning,
        dropout=config.condition_dropout,
        condition_as=config.condition_as,
    )
    if saved is not None and saved.config["conditioning"] != conditioning.config():
        raise UserError(
            f"the classes or conditions of the images are no longer those that the run in "
            f"{config.resume} was begun with: resume it with the same data, or start a new run."
        )
    del begun, saved  # the checkpoint's file, which stays on the disk while it is mapped
    grid_size = tokenizer.grid_size_for(images.resolution)
    shape = build(
        config.model,
        codebook_size=tokenizer.codebook_size,
        **conditioning.transformer_config(grid_size),
    )
    generator = ImageGenerator(tokenizer, GPT(shape), conditioning, grid_size, condition_tokenizer)
    module = build(config.training, generator=generator)
    device = trainer.strategy.root_device
    train_tokens, val_tokens = encode(config, tokenizer, condition_tokenizer, images, device)
    tokens = TokenDataModule(train_tokens, val_tokens, images.loader, seed=config.seed)
    settings = [setting("checkpoint", config.run_dir)]
    if conditioning.takes_images:
        settings += [*condition_settings(config.data), "num_images=16"]
    next_step = f"sample from it:\n  {program('sample')} {' '.join(settings)}"
    return finish_run(
        config, module, tokens, trainer, images=images, resume_from=resume_from, next_step=next_step
    )
