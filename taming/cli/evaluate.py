"""`evaluate`: measures a generator, a tokenizer or generated images."""

from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from taming.cli.command import CONFIGS, command, job

if TYPE_CHECKING:
    from taming.data import ImageDataset
    from taming.data.module import ImageDataModule

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="evaluate", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Measures a generator, a VQGAN or generated images against the held-out images of `data`."""
    from taming.cli.build import build, resolved
    from taming.cli.data import ENCODING_TYPES, build_data, with_tokenizer_shape
    from taming.cli.next_command import condition_settings, print_next, program, setting
    from taming.cli.saved_config import config_of_run
    from taming.cli.selection import notes_on_images
    from taming.cli.setting_types import check_types
    from taming.evaluation import ImageClassifier, report_text
    from taming.evaluation.evaluate import evaluate_model
    from taming.evaluation.real_images import choose_part
    from taming.evaluation.reference import (
        ReferenceProgram,
        check_statistics_file,
        open_reference,
    )
    from taming.generation import ImageGenerator, load_model
    from taming.losses import LPIPSLoss
    from taming.runtime.devices import find_device, join_processes
    from taming.runtime.errors import UserError
    from taming.runtime.process_group import on_first_rank, rank
    from taming.training.processes import set_up_data

    if (config.checkpoint is None) == (config.samples is None):
        raise UserError("give checkpoint=PATH, or samples=PATH for generated images.")
    types = {"frechet.weights": str | None, "reference_program": ReferenceProgram | None}
    check_types(config, {**ENCODING_TYPES, **types})
    join_processes()
    config.output_dir = on_first_rank(lambda: config.output_dir)  # it may contain the time
    options = build(config.evaluation)
    device = find_device(config.device)
    features = None if config.frechet.weights is None else build(config.frechet)
    reference = None
    if config.reference is not None:
        reference = open_reference(config.reference, features, config.reference_program)
    if config.write_statistics is not None:
        check_statistics_file(config.write_statistics, features)
    lpips = None if config.lpips is None else LPIPSLoss(backbone=config.lpips)
    classifier = config.classifier and ImageClassifier.from_pretrained(config.classifier)
    subject: Any
    notes = []
    if config.samples is None:
        tokenizer, generator = load_model(config.checkpoint)
        tokenizer.require_pictures()
        with_tokenizer_shape(config, tokenizer, generator.resolution if generator else None)
        run_config = config_of_run(config.checkpoint)
        notes = _note_on_judges(config, run_config)
        data = build_data(config)
        set_up_data(data)
        notes += notes_on_images(config, run_config, choose_part(data, options.part))
        subject = (generator or tokenizer).to(device)
    else:
        data, subject = _open_samples(config)
    numbers, files = evaluate_model(
        subject,
        data,
        config.output_dir,
        options,
        device=device,
        classifier=classifier,
        features=features,
        lpips=lpips,
        reference=reference,
        statistics_file=config.write_statistics,
        about={
            "checkpoint": config.checkpoint,
            "samples_from": config.samples,
            "classifier": config.classifier,
            "data": resolved(config)["data"],  # with the model's resolution
        },
        notes=notes,
    )
    if rank() > 0:
        return
    print(f"\n{report_text(numbers)}")
    for file in files:
        print(f"wrote {file}")
        if file.name == "classifier":
            print(f"to evaluate with this classifier again, add {setting('classifier', str(file))}")
    checkpoint = setting("checkpoint", config.checkpoint)
    if isinstance(subject, ImageGenerator):
        settings = [checkpoint]
        if subject.conditioning.takes_images:
            settings += [*condition_settings(config.data), "num_images=16"]
        print_next(f"draw more:\n  {program('sample')} {' '.join(settings)}")
    elif config.samples is None:
        print_next(
            f"look at reconstructions:\n  {program('reconstruct')} {checkpoint} input=MY_IMAGES"
        )


def _open_samples(config: DictConfig) -> "tuple[ImageDataModule, ImageDataset]":
    """Opens the data, and the samples resized and cropped to the data's resolution."""
    from taming.cli.data import build_data
    from taming.data import ImageDataset, ImageTransform, Part, PictureReader, open_samples
    from taming.training.processes import set_up_data

    if config.data.channels is None:
        config.data.channels = 3
    reader = PictureReader(1 if config.data.channels == 1 else 3)
    if config.data.resolution is None:
        first = open_samples(config.samples, reader).load(0)
        config.data.resolution = [first.height, first.width]
    data = build_data(config)
    set_up_data(data)
    samples = open_samples(config.samples, reader, data.class_names)
    transform = ImageTransform(resolution=data.resolution, resize="shorter_side", crop="center")
    return data, ImageDataset(Part(samples), transform, seed=config.seed)


def _note_on_judges(config: DictConfig, run_config: DictConfig) -> list[str]:
    """Returns a note if a network that judges is, or may be, part of the tokenizer's loss."""
    from taming.cli.saved_config import config_of_run
    from taming.evaluation.report import biased_judges_note

    judges = [config.lpips, config.frechet.weights and config.frechet.backbone]
    if "vqgan" in run_config:  # a generator's run refers to its tokenizer's
        run_config = config_of_run(str(run_config.vqgan))
    network = OmegaConf.select(run_config, "perceptual.backbone")
    note = biased_judges_note(list(filter(None, judges)), network, is_known=bool(run_config))
    return [note] if note else []
