"""`train_vqgan`: stage 1, images to a VQGAN."""

import logging
import shlex

import lightning as L
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig

from taming.cli.app import build, build_all, program
from taming.cli.data import IMAGE_TYPES, build_data, set_up
from taming.cli.hints import data_settings, setting
from taming.cli.training import begin_run, finish_run
from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.training import Adversary, finetuned_adversary, finetuned_vqgan
from taming.training.finetuning import FinetuningMode
from taming.training.health import unusual_data, unusual_schedule

__all__ = ["main"]

warn = rank_zero_only(logging.getLogger("taming").warning)

TYPES = {**IMAGE_TYPES, "finetune.mode": FinetuningMode}


def main(config: DictConfig) -> float | None:
    """Trains a VQGAN and exports it into the run directory."""
    if (begun := begin_run(config, VQGAN.kind, TYPES)) is None:
        return None
    config, trainer, resume_from, saved = begun
    L.seed_everything(config.seed, workers=True, verbose=False)
    vqgan, adversary = build_networks(config, saved)
    del begun, saved  # the checkpoint's file, which stays on the disk while it is mapped
    module = build(
        config.training,
        vqgan=vqgan,
        perceptual=build(config.perceptual),
        adversary=adversary,
        metrics=build_all(config.get("metrics")),
        trained="decoder" if config.finetune.mode == "decoder" else "all",
    )
    data = build_data(config, conditions=False)
    label_maps = config.training.reconstruction == "cross_entropy"
    if not label_maps == vqgan.label_maps == data.label_maps:
        raise UserError(
            "training.reconstruction=cross_entropy and data=label_maps go together, and only one "
            "of them is given (experiment=label_map sets both)."
        )
    set_up(data, trainer)
    for remark in unusual_data(data, vqgan) + unusual_schedule(adversary, trainer.max_steps):
        warn("note: %s", remark)
    settings = [setting("vqgan", config.run_dir), *data_settings(config.data)]
    settings += map(shlex.quote, config.get("transformer_settings") or [])
    next_step = (
        "train the transformer on it, with the same data:\n"
        f"  {program('train_transformer')} {' '.join(settings)}"
    )
    return finish_run(
        config, module, data, trainer, images=data, resume_from=resume_from, next_step=next_step
    )


def build_networks(config: DictConfig, saved: SavedModel | None) -> tuple[VQGAN, Adversary | None]:
    """Builds the VQGAN and its adversary: new, as they were saved, or as a model to fine-tune."""
    if saved is not None:  # its shape need not be the configuration's: it may be fine-tuned
        return VQGAN.from_saved(saved).train(), build(config.adversary)
    configured = build(config.model, label_maps=config.training.reconstruction == "cross_entropy")
    adversary = build(config.adversary)
    checkpoint, mode = config.finetune.checkpoint, config.finetune.mode
    if checkpoint is None and mode == "whole":
        return configured, adversary
    if checkpoint is None:
        raise UserError(
            f"finetune.mode={mode} needs a model to begin with: give finetune.checkpoint=PATH."
        )
    begin_with = VQGAN.load_saved(checkpoint)
    vqgan = finetuned_vqgan(begin_with, mode, configured)
    if vqgan.config != configured.config:
        warn(
            "note: the shape is that of %s: other settings of `model` have no effect "
            "(finetune.mode=new_codebook takes model.quantizer)",
            checkpoint,
        )
    finetuned_adversary(begin_with, adversary)
    return vqgan, adversary
