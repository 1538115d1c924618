"""`train_vqgan`: stage 1, images to a VQGAN."""

from pathlib import Path

from omegaconf import DictConfig

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
from taming.training import check_resume, train

__all__ = ["main"]


@command("train_vqgan")
def main(config: DictConfig) -> int:
    """Trains a VQGAN and exports it into the run directory."""
    if config.resume is not None:
        config = resume_config(config)
    resolved(config)  # missing values first
    trainer = build(config.trainer)
    trainer.device_kind()  # a missing GPU is noticed now
    resume_from = None
    if config.resume is not None:
        resume_from = check_resume(Path(config.resume), trainer.max_steps, "vqgan")
    check_run_dir(config)
    set_seed(config.seed)
    vqgan = build(config.model)
    perceptual = build(config.perceptual)
    adversary = build(config.adversary, max_steps=trainer.max_steps)
    module = build(
        config.training,
        vqgan=vqgan,
        perceptual=perceptual,
        adversary=adversary,
        max_steps=trainer.max_steps,
        accumulate=trainer.accumulate,
        gradient_clip=trainer.gradient_clip,
    )
    data = build(config.data)
    data.setup()
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
    )
    return finish(
        result,
        run_dir,
        name="train_vqgan",
        max_steps=trainer.max_steps,
        next_step="train the transformer on it, with the same data settings:\n"
        f"  {program('train_transformer')} vqgan={run_dir} …",
    )
