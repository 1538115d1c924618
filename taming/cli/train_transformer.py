"""`train_transformer`: trains stage 2, a GPT on the codes of a tokenizer."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="train_transformer", version_base="1.3")
@job
def main(config: DictConfig) -> float | None:
    """Encodes the images, trains a GPT on the codes, and exports a generator."""
    from typing import Annotated, Literal

    from annotated_types import Ge, Lt

    from taming.cli.build import build
    from taming.cli.data import ENCODING_TYPES, load_tokenizer, open_images
    from taming.cli.next_command import condition_settings, program, setting
    from taming.cli.training import finish_run, start_run
    from taming.data.module import TokenDataModule
    from taming.generation import ImageGenerator
    from taming.runtime.errors import UserError
    from taming.tokenizer import VQGAN
    from taming.training import TrainingOrder, build_conditioning, model_order
    from taming.transformer import GPT

    types = {
        **ENCODING_TYPES,
        "condition_dropout": Annotated[float, Ge(0), Lt(1)],
        "condition_as": Literal["prefix", "context"],
        "order": TrainingOrder,
    }
    run = start_run(config, ImageGenerator.kind, types)
    if run is None:
        return None
    config, saved_model = run.config, run.saved_model
    if saved_model is not None:
        tokenizer = VQGAN.from_saved(saved_model.parts["tokenizer"])
    else:
        tokenizer = load_tokenizer(config.vqgan)
    images, condition_tokenizer = open_images(config, tokenizer, saved_model, run.trainer)
    conditioning = build_conditioning(
        images,
        condition_tokenizer,
        kind=config.conditioning,
        dropout=config.condition_dropout,
        condition_as=config.condition_as,
    )
    if saved_model is not None and saved_model.config["conditioning"] != conditioning.config():
        raise UserError(
            f"the classes or conditions of the images differ from those that the run in "
            f"{config.resume} started with. Resume it with the same data, or start a new run."
        )
    run.saved_model = saved_model = None
    grid_size = tokenizer.grid_size_for(images.resolution)
    shape = build(
        config.model,
        codebook_size=tokenizer.codebook_size,
        order=model_order(config.order),
        **conditioning.transformer_config(grid_size),
    )
    generator = ImageGenerator(tokenizer, GPT(shape), conditioning, grid_size, condition_tokenizer)
    module = build(config.training, generator=generator)
    device = run.trainer.strategy.root_device
    encode_splits = build(config.tokens)
    train_tokens, val_tokens = encode_splits(images, tokenizer, condition_tokenizer, device)
    tokens = TokenDataModule(train_tokens, val_tokens, images.loader, seed=config.seed)
    settings = [setting("checkpoint", config.run_dir)]
    if conditioning.takes_images:
        settings += [*condition_settings(config.data), "num_images=16"]
    next_step = f"sample from it:\n  {program('sample')} {' '.join(settings)}"
    return finish_run(run, module, tokens, images=images, next_step=next_step)
