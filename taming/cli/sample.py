"""`sample`: images from a generator."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig

from taming.cli.app import build, device, program, resolved
from taming.cli.hints import data_of_run, given_settings, setting
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.workflows.sample_inputs import GivenImages

__all__ = ["main"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main(config: DictConfig) -> None:
    """Samples images from a generator directory, run or checkpoint."""
    plain = resolved(config)
    sample_images = build(config.sample)
    where = device(plain["device"])
    classifier = build_classifier(config.rejection.classifier)
    if isinstance(classifier, torch.nn.Module):
        classifier.to(where)
    if str(plain["dtype"]) not in DTYPES:
        raise UserError(f"dtype is one of {', '.join(DTYPES)}, not {plain['dtype']!r}.")
    generator = ImageGenerator.from_pretrained(plain["checkpoint"]).to(where)
    generator.transformer.to(DTYPES[plain["dtype"]])
    notes, written = sample_images(generator, classifier=classifier)
    for note in notes:
        print(f"note: {note}")
    for path in written:
        print(f"wrote {path}")
    print(next_steps(plain, build(config.conditions), generator))


def build_classifier(config: str | DictConfig | None) -> Callable[..., Any] | None:
    """Makes the classifier of a directory of ours or a `_target_`, also of the current directory.

    Raises:
        UserError: if there is none, or it cannot be called.
    """
    if config is None:
        return None
    if not isinstance(config, DictConfig):
        from taming.evaluation import ImageClassifier  # slow to import

        return ImageClassifier.from_pretrained(config)
    here = str(Path.cwd())
    if here not in sys.path:  # begins with the folder of the script
        sys.path.append(here)
    try:
        classifier = build(config)
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(
            f"rejection.classifier: {config._target_} cannot be made: {cause}. Modules of your own "
            f"are looked for in the current directory, {here}."
        ) from error
    if not callable(classifier):
        raise UserError(
            "rejection.classifier must be a directory that evaluate wrote, or have a _target_ that "
            "gives what can be called with images (b c H W) and returns logits (b k)."
        )
    return classifier


def next_steps(plain: dict[str, Any], given: GivenImages, generator: ImageGenerator) -> str:
    """Returns what can be done now, as a command."""
    checkpoint = setting("checkpoint", plain["checkpoint"])
    tokenizer = generator.require_tokenizer()
    takes_images = generator.conditioning.takes_images
    if takes_images and given.path is None:
        given = replace(given, path="MY_CONDITIONS")
    if takes_images or tokenizer.label_maps:
        settings = " ".join([checkpoint, *given_settings(given)])
        return f"draw others:\n  {program('sample')} {settings} seed={plain['seed'] + 1}"
    settings = " ".join([checkpoint, *data_of_run(plain["checkpoint"], generator.resolution)])
    return f"measure the model on real images:\n  {program('evaluate')} {settings}"
