"""`train_vqgan`: stage 1, images to a VQGAN."""

import logging
import shlex
from functools import partial
from pathlib import Path
from typing import get_args

from omegaconf import DictConfig

from taming.cli.app import build, is_first_process, program, resume_config, set_seed, write_config
from taming.cli.data import build_data, data_settings
from taming.cli.hints import override, setting
from taming.cli.setting_types import check_types
from taming.cli.training import TRAINING_TYPES, begin_run, build_trainer, check_run_dir, finish
from taming.errors import UserError
from taming.serialization import load_training_checkpoint
from taming.training import (
    Adversary,
    check_resume,
    finetuned_adversary,
    finetuned_vqgan,
    train,
    unused_settings,
)
from taming.training.finetuning import FinetuningMode
from taming.training.health import unusual_data, unusual_schedule
from taming.vqgan import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> float | None:
    """Trains a VQGAN and exports it into the run directory."""
    if config.resume is not None:
        config = resume_config(config)
    check_types(config, {"data.label_map.num_classes": int | None, **TRAINING_TYPES})
    run_dir = check_run_dir(config)
    trainer = build_trainer(config, parts_rest=config.adversary._target_ is not None)
    resume_from = None
    if config.resume is not None:
        resume_from = check_resume(run_dir, trainer.max_steps, "vqgan")
    set_seed(config.seed)
    vqgan, adversary = build_networks(config, resume_from)
    module = build(
        config.training,
        vqgan=vqgan,
        perceptual=build(config.perceptual),
        adversary=adversary,
        metrics=[build(metric) for metric in (config.get("metrics") or {}).values()],
        trained="decoder" if config.finetune.mode == "decoder" else "all",
    )
    data = build_data(config, conditions=False)
    if vqgan.label_maps != data.of_label_maps:
        raise UserError(
            "training.reconstruction=cross_entropy and data=label_maps go together, and only one "
            "of them is given (experiment=label_map sets both)."
        )
    data.setup()
    if is_first_process():
        remarks = unusual_data(data, vqgan) + unusual_schedule(adversary, trainer.max_steps)
        for remark in remarks:
            log.warning("note: %s", remark)
    begin_run(config, trainer, run_dir)
    result = train(
        module,
        data,
        trainer,
        run_dir=run_dir,
        export=config.export,
        resume_from=resume_from,
        on_start=partial(write_config, config, run_dir),
    )
    for_transformer = [setting("vqgan", str(run_dir)), *data_settings(config.data)]
    for_transformer += map(shlex.quote, config.get("transformer_settings") or [])
    return finish(
        config,
        result,
        run_dir,
        name="train_vqgan",
        next_step="train the transformer on it, with the same data:\n"
        f"  {program('train_transformer')} {' '.join(for_transformer)}",
    )


def build_networks(config: DictConfig, resume_from: Path | None) -> tuple[VQGAN, Adversary | None]:
    """Builds the VQGAN and its adversary: new, as in a checkpoint, or as a model to fine-tune.

    Raises:
        UserError: for a fine-tuning without a model to begin with, or one that does not fit.
    """
    of_label_maps = config.training.reconstruction == "cross_entropy"
    vqgan = build(config.model, label_maps=of_label_maps)
    adversary = build(config.adversary)
    checkpoint, mode = config.finetune.checkpoint, config.finetune.mode
    if mode not in get_args(FinetuningMode):
        known = ", ".join(get_args(FinetuningMode))
        raise UserError(f"finetune.mode is one of {known}, not {mode!r}.")
    if mode != "whole" and checkpoint is None:
        raise UserError(
            f"finetune.mode={mode} needs a model to begin with: give finetune.checkpoint=PATH."
        )
    if resume_from is not None:  # its shape need not be the configuration's: it may be fine-tuned
        vqgan = VQGAN.from_saved(load_training_checkpoint(resume_from)).train()
    elif checkpoint is not None:
        begin_with = VQGAN.load_saved(checkpoint)
        configured, vqgan = vqgan, finetuned_vqgan(begin_with, mode, vqgan)
        unused = unused_settings(configured, vqgan)
        if unused and is_first_process():
            log.warning(
                "note: the shape is that of %s; these of `model` are not used: %s "
                "(finetune.mode=new_codebook takes the quantizer)",
                checkpoint,
                ", ".join(override(name, value) for name, value in unused.items()),
            )
        finetuned_adversary(begin_with, adversary)
    return vqgan, adversary
