"""`train_vqgan`: trains stage 1, the VQGAN, on images."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="train_vqgan", version_base="1.3")
@job
def main(config: DictConfig) -> float | None:
    """Trains a VQGAN and exports it into the run directory."""
    import shlex

    import lightning as L

    from taming.cli.build import build, build_all
    from taming.cli.data import IMAGE_TYPES, build_data
    from taming.cli.next_command import data_settings, program, setting
    from taming.cli.training import finish_run, log_notes, start_run
    from taming.runtime.errors import UserError
    from taming.tokenizer import VQGAN
    from taming.training.finetuning import FinetuningMode, finetune
    from taming.training.health import unusual_data, unusual_schedule
    from taming.training.processes import set_up_data

    run = start_run(config, VQGAN.kind, {**IMAGE_TYPES, "finetune.mode": FinetuningMode})
    if run is None:
        return None
    config = run.config
    L.seed_everything(config.seed, workers=True, verbose=False)
    uses_label_maps = config.training.reconstruction == "cross_entropy"
    if run.saved_model is not None:  # a fine-tuned model may have another shape than `config.model`
        vqgan, adversary = VQGAN.from_saved(run.saved_model).train(), build(config.adversary)
        run.saved_model = None
    else:
        vqgan, adversary = build(config.model, label_maps=uses_label_maps), build(config.adversary)
        vqgan = finetune(config.finetune.checkpoint, config.finetune.mode, vqgan, adversary)
    module = build(
        config.training,
        vqgan=vqgan,
        perceptual=build(config.perceptual),
        adversary=adversary,
        metrics=build_all(config.get("metrics")),
        trained="decoder" if config.finetune.mode == "decoder" else "all",
    )
    data = build_data(config, conditions=False)
    if not uses_label_maps == vqgan.label_maps == data.label_maps:
        raise UserError(
            "training.reconstruction=cross_entropy and data=label_maps belong together, but only "
            "one of them is set. experiment=label_map sets both."
        )
    set_up_data(data, run.trainer)
    log_notes(unusual_data(data, vqgan) + unusual_schedule(adversary, run.trainer.max_steps))
    settings = [setting("vqgan", config.run_dir), *data_settings(config.data)]
    settings += map(shlex.quote, config.get("transformer_settings") or [])
    next_step = (
        "train the transformer on it, with the same data:\n"
        f"  {program('train_transformer')} {' '.join(settings)}"
    )
    return finish_run(run, module, data, images=data, next_step=next_step)
