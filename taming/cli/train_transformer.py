"""`train_transformer`: stage 2, a tokenizer and images to a generator."""

import logging
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Lt
from omegaconf import DictConfig

from taming.cli.app import build, program, resume_config, write_config
from taming.cli.data import ENCODING_TYPES, condition_settings, encode, open_images
from taming.cli.hints import setting
from taming.cli.setting_types import check_types
from taming.cli.training import TRAINING_TYPES, begin_run, build_trainer, check_run_dir, finish
from taming.data import TokenDataModule
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.serialization import find_model, load_training_checkpoint
from taming.training import build_conditioning, check_resume, train
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> float | None:
    """Encodes the images, trains a GPT on the codes, and exports a generator."""
    if config.resume is not None:
        config = resume_config(config)
    share = {"condition_dropout": Annotated[float, Ge(0), Lt(1)]}
    check_types(config, {**ENCODING_TYPES, **TRAINING_TYPES, **share})
    run_dir = check_run_dir(config)
    trainer = build_trainer(config)
    resume_from, saved = None, None
    if config.resume is not None:
        resume_from = check_resume(run_dir, trainer.max_steps, "generator")
        saved = load_training_checkpoint(resume_from)
        tokenizer = VQGAN.from_saved(saved.parts["tokenizer"])
    else:
        tokenizer = VQGAN.from_pretrained(config.vqgan)
        log.info("tokenizer: %s", find_model(config.vqgan))
    images, condition_tokenizer = open_images(config, tokenizer, saved)
    conditioning = build_conditioning(
        images,
        condition_tokenizer,
        kind=config.conditioning,
        dropout=config.condition_dropout,
        condition_as=config.condition_as,
    )
    if saved is not None and not _same(saved.config["conditioning"], conditioning.config()):
        raise UserError(
            f"the classes or conditions of the images are no longer those that the run in "
            f"{config.resume} was begun with: resume it with the same data, or start a new run."
        )
    grid_size = tokenizer.grid_size_for(images.resolution)
    shape = build(
        config.model,
        codebook_size=tokenizer.codebook_size,
        **conditioning.transformer_config(grid_size),
    )
    generator = ImageGenerator(tokenizer, GPT(shape), conditioning, grid_size, condition_tokenizer)
    module = build(config.training, generator=generator)
    begin_run(config, trainer, run_dir)
    where = trainer.strategy.root_device
    train_tokens, val_tokens = encode(config, tokenizer, condition_tokenizer, images, where)
    tokens = TokenDataModule(train_tokens, val_tokens, images.loader, seed=config.seed)
    result = train(
        module,
        tokens,
        trainer,
        run_dir=run_dir,
        export=config.export,
        resume_from=resume_from,
        on_start=partial(write_config, config, run_dir),
    )
    for_sampling = [setting("checkpoint", str(run_dir))]
    if conditioning.takes_images:
        for_sampling += [*condition_settings(config.data), "num_images=16"]
    return finish(
        config,
        result,
        run_dir,
        name="train_transformer",
        next_step=f"sample from it:\n  {program('sample')} {' '.join(for_sampling)}",
    )


def _same(saved: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether all that was saved holds; what has been added since is not in older runs."""
    return all(new.get(name) == value for name, value in saved.items())
