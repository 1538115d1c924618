"""`train_vqgan`: stage 1, images to a VQGAN."""

import logging
import shlex
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from taming.cli.app import (
    begin_run,
    build,
    check_run_dir,
    is_first_process,
    program,
    resolved,
    resume_config,
    set_seed,
    write_config,
)
from taming.cli.data import build_data, data_settings
from taming.cli.hints import override, setting
from taming.cli.setting_types import check_types
from taming.cli.training import finish, start_trackers
from taming.errors import UserError
from taming.serialization import load_training_checkpoint
from taming.training import (
    FINETUNING_MODES,
    check_resume,
    finetuned_adversary,
    finetuned_vqgan,
    train,
    unused_settings,
    unusual_data,
)
from taming.vqgan import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> float | None:
    """Trains a VQGAN and exports it into the run directory."""
    if config.resume is not None:
        config = resume_config(config)
    resolved(config)  # missing values first
    check_types(config, {"data.label_map.num_classes": int | None})
    trainer = build(config.trainer)
    trainer.lightning_trainer()  # a missing GPU is noticed now
    check_finetuning(config)
    resume_from, start = None, None
    if config.resume is not None:
        resume_from = check_resume(Path(config.resume), trainer.max_steps, "vqgan")
    elif config.finetune.checkpoint is not None:
        start = VQGAN.load_saved(config.finetune.checkpoint)
    check_run_dir(config)
    set_seed(config.seed)
    of_label_maps = config.training.reconstruction == "cross_entropy"
    vqgan = build(config.model, label_maps=of_label_maps)
    adversary = build(config.adversary, max_steps=trainer.max_steps)
    if resume_from is not None:  # its shape need not be the configuration's: it may be fine-tuned
        vqgan = VQGAN.from_saved(load_training_checkpoint(resume_from)).train()
    elif start is not None:
        asked = vqgan
        vqgan = finetuned_vqgan(
            start,
            config.finetune.mode,
            resolution=asked.resolution,
            image_channels=asked.image_channels,
            label_maps=asked.label_maps,
            quantizer=asked.config["quantizer"],
        )
        unused = unused_settings(asked, vqgan)
        if unused and is_first_process():
            log.warning(
                "note: the shape is that of %s; of `model` these are not used: %s%s",
                config.finetune.checkpoint,
                ", ".join(override(name, value) for name, value in unused.items()),
                " (finetune.mode=new_codebook takes the quantizer)"
                if any(name.startswith("quantizer.") for name in unused)
                else "",
            )
        finetuned_adversary(start, adversary)
    perceptual = build(config.perceptual)
    metrics = [build(metric) for metric in (config.get("metrics") or {}).values()]
    module = build(
        config.training,
        vqgan=vqgan,
        perceptual=perceptual,
        adversary=adversary,
        metrics=metrics,
        trained="decoder" if config.finetune.mode == "decoder" else "all",
        max_steps=trainer.max_steps,
        accumulate=trainer.accumulate,
        gradient_clip=trainer.gradient_clip,
    )
    trainer.check_monitor(module)
    data = build_data(config, conditions=False)
    if of_label_maps != data.of_label_maps:
        raise UserError(
            "training.reconstruction=cross_entropy and data=label_maps go together, and only one "
            "of them is given (experiment=label_map sets both)."
        )
    data.setup()
    if is_first_process():
        remarks = unusual_data(data, vqgan)
        if adversary is not None:
            remarks += adversary.remarks(trainer.max_steps)
        for remark in remarks:
            log.warning("note: %s", remark)
    run_dir = begin_run(config)
    trackers = start_trackers(config, run_dir, resume_from)
    result = train(
        module,
        data,
        trainer,
        run_dir=run_dir,
        trackers=trackers,
        resume_from=resume_from,
        show=("pixel_loss", "perceptual_loss", "discriminator_loss"),
        on_start=partial(write_config, config, run_dir),
    )
    for_transformer = [setting("vqgan", str(run_dir)), *data_settings(config.data)]
    for_transformer += map(shlex.quote, config.get("transformer_settings") or [])
    return finish(
        result,
        config.trainer.monitor,
        run_dir,
        name="train_vqgan",
        max_steps=trainer.max_steps,
        next_step="train the transformer on it, with the same data:\n"
        f"  {program('train_transformer')} {' '.join(for_transformer)}",
    )


def check_finetuning(config: DictConfig) -> None:
    """Raises a `UserError` for a mode that does not exist or that has no model to begin with."""
    mode = config.finetune.mode
    if mode not in FINETUNING_MODES:
        raise UserError(f"finetune.mode is one of {', '.join(FINETUNING_MODES)}, not {mode!r}.")
    if mode != "whole" and config.finetune.checkpoint is None:
        raise UserError(
            f"finetune.mode={mode} needs a model to begin with: give finetune.checkpoint=PATH."
        )
