"""`evaluate`: numbers for a generator or a tokenizer."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from taming.cli.app import (
    RESOLVED_FILE,
    build,
    find_device,
    join_processes,
    load_saved_config,
    program,
    resolved,
)
from taming.cli.data import ENCODING_TYPES, build_data, set_up, with_tokenizer_shape
from taming.cli.hints import condition_settings, setting
from taming.cli.setting_types import check_types
from taming.errors import UserError
from taming.evaluation import ImageClassifier, report_text
from taming.generation import ImageGenerator
from taming.serialization import load_saved_model
from taming.vqgan import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> None:
    """Measures a generator, or a VQGAN, on the validation images of its data."""
    plain = resolved(config)
    join_processes(config)
    check_types(config.data, ENCODING_TYPES)
    evaluate_model, training = build(config.evaluation), build(config.classifier_training)
    device = find_device(plain["device"])
    features = None if config.frechet.weights is None else build(config.frechet)
    classifier = plain["classifier"] and ImageClassifier.from_pretrained(plain["classifier"])
    saved = load_saved_model(plain["checkpoint"])
    kind = ImageGenerator if saved.kind == ImageGenerator.kind else VQGAN
    model = kind.from_saved(saved)
    if isinstance(model, ImageGenerator):
        tokenizer, resolution = model.require_tokenizer(), model.resolution
    else:
        tokenizer, resolution = model, None
    if tokenizer.label_maps:
        raise UserError("the model's images are label maps, and evaluate measures pictures only.")
    with_tokenizer_shape(config, tokenizer, resolution)
    warn_of_trained_images(config)
    data = build_data(config)
    set_up(data)
    numbers, written = evaluate_model(
        model.to(device),
        data,
        classifier=classifier,
        classifier_training=training,
        features=features,
        about={
            "checkpoint": plain["checkpoint"],
            "classifier": plain["classifier"],
            "data": resolved(config)["data"],  # with the model's resolution
        },
    )
    print(f"\n{report_text(numbers)}")
    for path in written:
        print(f"wrote {path}")
    for_sampling = [setting("checkpoint", plain["checkpoint"])]
    if isinstance(model, ImageGenerator) and model.conditioning.takes_images:
        for_sampling += [*condition_settings(config.data), "num_images=16"]
    print(next_steps(for_sampling, written))


def warn_of_trained_images(config: DictConfig) -> None:
    """Warns if the run in `config.checkpoint` held out other images of the same data."""
    path = Path(config.checkpoint).expanduser() / RESOLVED_FILE
    if not path.is_file():
        return
    trained = load_saved_config(path)

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


def next_steps(for_sampling: list[str], written: list[Path]) -> str:
    """Returns the commands that can follow; the first setting `for_sampling` is the checkpoint."""
    again = "evaluate with the same classifier again: add "
    lines = [again + setting("classifier", str(p)) for p in written if p.name == "classifier"]
    if any(path.suffix == ".png" for path in written):
        lines.append(f"draw more:\n  {program('sample')} {' '.join(for_sampling)}")
    else:
        command = f"{program('reconstruct')} {for_sampling[0]} input=MY_IMAGES"
        lines.append(f"look at reconstructions:\n  {command}")
    return "\n".join(lines)
