"""Numbers for a generator or a tokenizer, on images it has not seen."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from taming.contexts import evaluation_mode
from taming.data import ImageDataModule
from taming.errors import UserError
from taming.evaluation import FeatureExtractor, ImageClassifier
from taming.generation import ImageGenerator
from taming.vqgan import VQGAN
from taming.workflows.classifier_training import (
    ClassifierTraining,
    new_classifier,
    train_classifier,
)
from taming.workflows.evaluation_checks import check_classifier, check_data, check_sampling
from taming.workflows.evaluation_passes import (
    judge_samples,
    judge_training_images,
    measure_validation,
)
from taming.workflows.evaluation_report import Verdicts, report_text
from taming.workflows.evaluation_settings import EvaluationSettings
from taming.workflows.judges import Judges

__all__ = ["EvaluationReport", "evaluate_model"]


@dataclass
class EvaluationReport:
    """What came of it.

    Attributes:
        numbers: what is in metrics.json.
        text: what is in report.md.
        written: files and folders.
    """

    numbers: dict[str, Any]
    text: str
    written: list[Path] = field(default_factory=list)


def evaluate_model(
    model: ImageGenerator | VQGAN,
    data: ImageDataModule,
    settings: EvaluationSettings,
    output_dir: Path,
    *,
    classifier: ImageClassifier | None = None,
    classifier_training: ClassifierTraining | None = None,
    features: FeatureExtractor | None = None,
    about: Mapping[str, Any] | None = None,
) -> EvaluationReport:
    """Measures a model on validation images, and, of a generator, what it draws.

    Of the validation images: how well they are reconstructed, and how probable the transformer
    finds their tokens. Of samples: how often a classifier names the class that was asked for,
    beside how often it is right about real images; and the Fréchet distance of their features to
    those of the validation images, beside that of as many training images. Classes are asked for as
    often as they are among the training images.

    Into `output_dir` go `metrics.json`; `report.md`, the same as tables; `grid.png`, samples by
    class, each under its class and, where that is another, what the classifier took it for, one
    grid for each guidance scale; and `classifier/`, if it had to be trained.

    Args:
        model: in evaluation mode, on the device to use.
        data: the images, at the model's resolution.
        settings: see there.
        output_dir: where to write.
        classifier: of the data's classes; None: one is trained on the training images, if the model
            can be asked for classes.
        classifier_training: how; None for the defaults.
        features: network for the Fréchet distances; None: not measured.
        about: recorded in metrics.json before the numbers: where model and data are from.

    Raises:
        UserError: if model, data and classifier do not fit each other, or for settings the model
            cannot do.
    """
    generator = model if isinstance(model, ImageGenerator) else None
    tokenizer = check_data(model, data)
    if classifier is not None:
        check_classifier(classifier, data)
    if generator is not None:
        check_sampling(generator, data, settings)
    classifier_training = classifier_training or ClassifierTraining()
    asks_for_classes = generator is not None and generator.conditioning.num_classes is not None
    must_train = classifier is None and asks_for_classes
    if must_train:
        new_classifier(data.train_dataset, classifier_training)  # whether it can be
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    device = tokenizer.last_layer.device
    judging = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    written = []
    if must_train:
        classifier = train_classifier(
            data.train_dataset,
            classifier_training,
            device=judging,
            num_workers=data.num_workers_for(data.train_dataset),
        )
        written.append(classifier.save_pretrained(output_dir / "classifier"))
    judges = Judges(
        None if classifier is None else classifier.to(judging),
        None if features is None else features.to(judging),
        judging,
    )
    with evaluation_mode(model):
        real, numbers = measure_validation(tokenizer, generator, data, judges, settings)
        if features is not None:
            numbers["frechet_features"] = features.description
            numbers["training_images"] = judge_training_images(data, judges, settings).numbers(real)
        grids = []
        if generator is not None:
            numbers["sampling"] = settings.plain()
            numbers["samples"] = []
            for scale in settings.guidance_scales:
                samples, verdicts = judge_samples(generator, data, judges, settings, scale)
                row = {"guidance_scale": scale, **samples.numbers(real)}
                if samples.agreement is not None:
                    row["by_class"] = samples.by_class(data.class_names)
                numbers["samples"].append(row)
                name = f"_guidance_{scale:g}" if len(settings.guidance_scales) > 1 else ""
                grids.append((output_dir / f"grid{name}.png", verdicts))
    numbers = {**(about or {}), **numbers}
    numbers["notes"] = _notes(generator, numbers, features)
    if generator is not None:
        numbers["notes"] += settings.notes(generator.num_tokens)
    if not must_train and replace(classifier_training, seed=0) != ClassifierTraining():
        numbers["notes"].append("No effect of classifier_training: no classifier was trained.")
    report = EvaluationReport(numbers, report_text(numbers), written)
    _write(report, output_dir, grids)
    return report


def _notes(
    generator: ImageGenerator | None, numbers: dict[str, Any], features: FeatureExtractor | None
) -> list[str]:
    """What was not measured and why, and what is to be taken with care."""
    notes = []
    if generator is not None and generator.conditioning.num_classes is None:
        notes.append("The generator is asked for no classes, so no classifier can agree with it.")
    if features is None:
        notes.append(
            "No Fréchet distance was measured: it needs a network's weights, frechet.weights=FILE."
        )
        return notes
    sets = [numbers["training_images"], *numbers.get("samples", [])]
    if numbers["training_images"]["num_images"] < max(row["num_images"] for row in sets):
        notes.append("There are fewer training images than samples: their distance is too large.")
    sets += [numbers["validation_images"], numbers["reconstructions"]]
    if min(row["num_images"] for row in sets) <= features.num_features:
        notes.append(
            f"Some sets hold no more images than the network has features, {features.num_features}"
            ": their distances say little by themselves."
        )
    return notes


def _write(report: EvaluationReport, output_dir: Path, grids: list[tuple[Path, Verdicts]]) -> None:
    metrics, text = output_dir / "metrics.json", output_dir / "report.md"
    try:
        metrics.write_text(json.dumps(report.numbers, indent=2, ensure_ascii=False) + "\n", "utf-8")
        text.write_text(report.text, "utf-8")
        for pattern in ("grid.png", "grid_guidance_*.png"):  # of an earlier evaluation
            for path in output_dir.glob(pattern):
                path.unlink()
        for path, verdicts in grids:
            verdicts.grid().save(path)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    report.written += [metrics, text, *(path for path, _ in grids)]
