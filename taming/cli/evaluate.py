"""`evaluate`: numbers for a generator, a tokenizer or generated images."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from taming.cli.app import (
    build,
    config_of_run,
    find_device,
    join_processes,
    program,
    resolved,
)
from taming.cli.data import ENCODING_TYPES, build_data, set_up, with_tokenizer_shape
from taming.cli.hints import condition_settings, setting
from taming.cli.setting_types import check_types
from taming.data import ImageDataset, ImageTransform, Part, PictureReader, open_samples
from taming.data.module import ImageDataModule
from taming.evaluation import ImageClassifier, report_text
from taming.generation import ImageGenerator, load_model
from taming.losses import LPIPSLoss
from taming.runtime.errors import UserError, join_names
from taming.runtime.process_group import rank
from taming.tokenizer import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> None:
    """Measures a generator, a VQGAN or generated images, beside the validation images of data."""
    plain = resolved(config)
    if (plain["checkpoint"] is None) == (plain["samples"] is None):
        raise UserError("give a checkpoint=PATH, or samples=PATH of generated images.")
    join_processes(config)
    check_types(config.data, ENCODING_TYPES)
    evaluate_model, training = build(config.evaluation), build(config.classifier_training)
    device = find_device(plain["device"])
    features = None if config.frechet.weights is None else build(config.frechet)
    lpips = None if plain["lpips"] is None else LPIPSLoss(backbone=plain["lpips"])
    classifier = plain["classifier"] and ImageClassifier.from_pretrained(plain["classifier"])
    subject: ImageGenerator | VQGAN | ImageDataset
    notes = []
    if plain["samples"] is None:
        subject = load_subject(config)
        trained = config_of_run(config.checkpoint)
        warn_of_trained_images(config, trained)
        notes = judge_of_training(config, trained)
        data = build_data(config)
        set_up(data)
        subject.to(device)
    else:
        data, subject = open_both(config)
    numbers, written = evaluate_model(
        subject,
        data,
        device=device,
        classifier=classifier,
        classifier_training=training,
        features=features,
        lpips=lpips,
        about={
            "checkpoint": plain["checkpoint"],
            "samples_from": plain["samples"],
            "classifier": plain["classifier"],
            "data": resolved(config)["data"],  # with the model's resolution
        },
        notes=notes,
    )
    if rank() > 0:
        return
    print(f"\n{report_text(numbers)}")
    for path in written:
        print(f"wrote {path}")
    for_sampling = [setting("checkpoint", plain["checkpoint"])]
    if isinstance(subject, ImageGenerator) and subject.conditioning.takes_images:
        for_sampling += [*condition_settings(config.data), "num_images=16"]
    print(next_steps(None if plain["samples"] else for_sampling, written))


def load_subject(config: DictConfig) -> ImageGenerator | VQGAN:
    """Loads the checkpoint, and fills its shape in where `config.data` leaves it open."""
    tokenizer, generator = load_model(config.checkpoint)
    tokenizer.require_pictures()
    with_tokenizer_shape(config, tokenizer, generator.resolution if generator else None)
    return generator or tokenizer


def open_both(config: DictConfig) -> tuple[ImageDataModule, ImageDataset]:
    """Opens the data and the samples, which are resized and cropped to the data's resolution."""
    if config.data.channels is None:
        config.data.channels = 3
    reader = PictureReader(1 if config.data.channels == 1 else 3)
    if config.data.resolution is None:
        first = open_samples(config.samples, reader).load(0)
        config.data.resolution = [first.height, first.width]
    data = build_data(config)
    set_up(data)
    samples = open_samples(config.samples, reader, data.class_names)
    transform = ImageTransform(resolution=data.resolution, resize="shorter_side", crop="center")
    return data, ImageDataset(Part(samples), transform, seed=config.seed)


def judge_of_training(config: DictConfig, trained: DictConfig) -> list[str]:
    """Says so if a network that judges is, or may be, that of the tokenizer's training loss."""
    judges = [config.lpips, config.frechet.weights and config.frechet.backbone]
    names = [name for name in judges if name]
    if "vqgan" in trained:  # a generator's run: that of its tokenizer
        trained = config_of_run(str(trained.vqgan))
    if trained:  # LPIPS' name of a network is the beginning of torchvision's
        network = OmegaConf.select(trained, "perceptual.backbone") or "none"
        names = [name for name in names if name.startswith(network) or network.startswith(name)]
    if not names:
        return []
    trained_so = f"trained to please the network that judges here, {join_names(names)}"
    found = (
        f"The tokenizer was {trained_so}: its numbers are"
        if trained
        else f"It is not known whether the tokenizer was {trained_so}: its numbers may be"
    )
    return [
        f"{found} too good beside those of a tokenizer that was not. Judge by another network, too."
    ]


def warn_of_trained_images(config: DictConfig, trained: DictConfig) -> None:
    """Warns if the run, if there is one, held out other images of the same data."""
    if not trained:
        return

    def value(source: DictConfig, name: str) -> Any:
        found = OmegaConf.select(source, f"data.{name}")
        return Path(found).expanduser().resolve() if found and name.endswith("path") else found

    for name in ("val_path", "val_fraction"):
        held_out, path = value(trained, name), value(trained, "path")
        if held_out != value(config, name) and path == value(config, "path"):
            log.warning(
                "note: the run held out other images (data.%s=%s): the numbers may be too good, of "
                "images that it was trained on.",
                name,
                held_out,
            )


def next_steps(for_sampling: list[str] | None, written: list[Path]) -> str:
    """Returns the commands that can follow; the first setting `for_sampling` is the checkpoint."""
    again = "evaluate with the same classifier again: add "
    lines = [again + setting("classifier", str(p)) for p in written if p.name == "classifier"]
    if for_sampling is None:
        return "\n".join(lines)
    if any(path.name.startswith("grid") for path in written):
        lines.append(f"draw more:\n  {program('sample')} {' '.join(for_sampling)}")
    else:
        command = f"{program('reconstruct')} {for_sampling[0]} input=MY_IMAGES"
        lines.append(f"look at reconstructions:\n  {command}")
    return "\n".join(lines)
