"""`sample`: samples, completes and inpaints images with a generator."""

from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="sample", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Samples images from a generator directory, run or checkpoint."""
    from dataclasses import replace

    from taming.cli.build import build
    from taming.cli.next_command import (
        data_of_run,
        print_next,
        program,
        setting,
        settings_of_conditions,
    )
    from taming.cli.setting_types import check_types
    from taming.generation import ImageGenerator, SamplingDtype
    from taming.runtime.devices import find_device, join_processes
    from taming.runtime.process_group import on_first_rank

    check_types(config, {"dtype": SamplingDtype})
    join_processes()
    config.output_dir = on_first_rank(lambda: config.output_dir)  # it may contain the time
    sample_images, device = build(config.sample), find_device(config.device)
    classifier = _load_classifier(config.rejection.classifier, device)
    generator = ImageGenerator.from_pretrained(config.checkpoint).to(device)
    notes, files = sample_images(generator, classifier=classifier)
    for note in notes:
        print(f"note: {note}")
    for file in files:
        print(f"wrote {file}")

    checkpoint, conditions = setting("checkpoint", config.checkpoint), build(config.conditions)
    takes_images = generator.conditioning.takes_images
    if takes_images and conditions.path is None:
        conditions = replace(conditions, path="MY_CONDITIONS")
    if takes_images or generator.require_tokenizer().label_maps:
        settings = " ".join([checkpoint, *settings_of_conditions(conditions)])
        print_next(f"draw others:\n  {program('sample')} {settings} seed={config.seed + 1}")
    else:
        settings = " ".join([checkpoint, *data_of_run(config.checkpoint, generator.resolution)])
        print_next(f"measure the model on real images:\n  {program('evaluate')} {settings}")


def _load_classifier(config: str | DictConfig | None, device: Any) -> Callable[..., Any] | None:
    """Loads a classifier that `evaluate` wrote, or builds the user's own."""
    import torch

    from taming.cli.build import build
    from taming.evaluation import ImageClassifier

    if config is None:
        return None
    classifier: Callable[..., Any]
    if isinstance(config, str):
        classifier = ImageClassifier.from_pretrained(config)
    else:
        classifier = build(config)
    return classifier.to(device) if isinstance(classifier, torch.nn.Module) else classifier
