"""`sample`: images from a generator."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig

from taming.cli.app import build, find_device, join_processes, program, resolved
from taming.cli.hints import data_of_run, given_settings, setting
from taming.cli.setting_types import check_types
from taming.generation import ImageGenerator, SamplingDtype
from taming.generation.inputs import InputImages

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Samples images from a generator directory, run or checkpoint."""
    plain = resolved(config)
    check_types(config, {"dtype": SamplingDtype})
    join_processes(config)
    sample_images, device = build(config.sample), find_device(plain["device"])
    classifier = build_classifier(config.rejection.classifier)
    if isinstance(classifier, torch.nn.Module):
        classifier.to(device)
    generator = ImageGenerator.from_pretrained(plain["checkpoint"]).to(device)
    notes, written = sample_images(generator, classifier=classifier)
    for note in notes:
        print(f"note: {note}")
    for path in written:
        print(f"wrote {path}")
    print(next_steps(plain, build(config.conditions), generator))


def build_classifier(config: str | DictConfig | None) -> Callable[..., Any] | None:
    """Loads a classifier that `evaluate` wrote, or builds the user's own."""
    if config is None:
        return None
    if isinstance(config, str):
        from taming.evaluation import ImageClassifier  # slow to import

        return ImageClassifier.from_pretrained(config)
    classifier: Callable[..., Any] = build(config)
    return classifier


def next_steps(plain: dict[str, Any], given: InputImages, generator: ImageGenerator) -> str:
    """Returns the command that can follow."""
    checkpoint = setting("checkpoint", plain["checkpoint"])
    takes_images = generator.conditioning.takes_images
    if takes_images and given.path is None:
        given = replace(given, path="MY_CONDITIONS")
    if takes_images or generator.require_tokenizer().label_maps:
        settings = " ".join([checkpoint, *given_settings(given)])
        return f"draw others:\n  {program('sample')} {settings} seed={plain['seed'] + 1}"
    settings = " ".join([checkpoint, *data_of_run(plain["checkpoint"], generator.resolution)])
    return f"measure the model on real images:\n  {program('evaluate')} {settings}"
