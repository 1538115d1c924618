"""Numbers for a generator or a tokenizer, on images it has not seen."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from taming.data import ImageDataModule, ImageDataset
from taming.errors import UserError
from taming.evaluation import (
    CodebookUsage,
    FeatureExtractor,
    ImageClassifier,
    ReconstructionMetrics,
    TokenLikelihood,
)
from taming.generation import ImageGenerator
from taming.modes import evaluation_mode
from taming.sequence import to_tokens
from taming.vqgan import VQGAN
from taming.workflows.classifier_training import ClassifierTraining, train_classifier
from taming.workflows.evaluation_checks import check_classifier, check_data, check_sampling
from taming.workflows.evaluation_report import Verdicts, report_text
from taming.workflows.evaluation_settings import EvaluationSettings
from taming.workflows.judges import JudgedImages, Judges, in_proportion

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
) -> EvaluationReport:
    """Measures a model on validation images, and, of a generator, what it draws.

    Of the validation images: how well they are reconstructed, and how probable the transformer
    finds their tokens. Of samples: how often a classifier names the class that was asked for,
    beside how often it is right about real images; and the Fréchet distance of their features to
    those of the validation images, beside that of as many training images. Classes are asked for as
    often as they are among the training images.

    Into `output_dir` go `metrics.json`; `report.md`, the same as tables; `grid.png`, samples by
    class, each under what the classifier took it for, one grid for each guidance scale; and
    `classifier/`, if it had to be trained.

    Args:
        model: in evaluation mode, on the device to use.
        data: the images, at the model's resolution.
        settings: see there.
        output_dir: where to write.
        classifier: of the data's classes; None: one is trained on the training images, if the model
            can be asked for classes.
        classifier_training: how; None for the defaults.
        features: network for the Fréchet distances; None: not measured.

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
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    device = tokenizer.last_layer.device
    judging = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    written = []
    asks_for_classes = generator is not None and generator.conditioning.num_classes is not None
    if classifier is None and asks_for_classes:
        classifier = train_classifier(
            data.train_dataset,
            classifier_training or ClassifierTraining(),
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
        real, numbers = _measure_validation(tokenizer, generator, data, judges, settings)
        if features is not None:
            numbers["frechet_features"] = features.description
            numbers["training_images"] = _judge_training_images(data, judges, settings).numbers(
                real
            )
        grids = []
        if generator is not None:
            numbers["sampling"] = settings.plain()
            numbers["samples"] = []
            for scale in settings.guidance_scales:
                samples, verdicts = _judge_samples(generator, data, judges, settings, scale)
                row = {"guidance_scale": scale, **samples.numbers(real)}
                if samples.agreement is not None:
                    row["by_class"] = samples.by_class(data.class_names)
                numbers["samples"].append(row)
                name = f"_guidance_{scale:g}" if len(settings.guidance_scales) > 1 else ""
                grids.append((output_dir / f"grid{name}.png", verdicts))
    numbers["notes"] = _notes(generator, numbers, features)
    report = EvaluationReport(numbers, report_text(numbers), written)
    _write(report, output_dir, grids)
    return report


def _measure_validation(
    tokenizer: VQGAN,
    generator: ImageGenerator | None,
    data: ImageDataModule,
    judges: Judges,
    settings: EvaluationSettings,
) -> tuple[JudgedImages, dict[str, Any]]:
    """One pass over the validation images: the real ones as judged, and the numbers."""
    dataset = data.val_dataset
    real, reconstructed = JudgedImages(judges), JudgedImages(judges)
    quality = ReconstructionMetrics().to(judges.device)
    codebook = CodebookUsage(tokenizer.codebook_size).to(judges.device)
    likelihoods = {
        name: (asks, TokenLikelihood().to(judges.device))
        for name, asks in _likelihoods(generator).items()
    }
    numbers_taken: list[int] = list(range(len(dataset)))
    if settings.max_images is not None and settings.max_images < len(dataset):
        numbers_taken = in_proportion(_labels(dataset), settings.max_images, settings.seed)
    device = tokenizer.last_layer.device
    for batch in _batches(data, dataset, numbers_taken, settings, "validation images"):
        images, labels = batch["images"].to(device), batch.get("labels")
        with torch.no_grad():
            indices = tokenizer.encode(images)  # (b h w)
            reconstructions = tokenizer.decode(indices).float().clamp(-1, 1)
            tokens = to_tokens(indices)
            for asks, likelihood in likelihoods.values():
                assert generator is not None
                condition = _condition(generator, batch) if asks else None
                logits = generator.logits(tokens, condition)
                likelihood.update(logits.to(judges.device), tokens.to(judges.device))
        real.update(images, labels)
        reconstructed.update(reconstructions, labels)
        quality.update(reconstructions.to(judges.device), images.to(judges.device))
        counts = indices.flatten().bincount(minlength=tokenizer.codebook_size)
        codebook.update(counts.to(judges.device))
    numbers: dict[str, Any] = {
        "validation_images": real.numbers(),
        "resolution": list(data.resolution),
        "reconstructions": {**reconstructed.numbers(real), **_plain(quality), **_plain(codebook)},
    }
    if real.agreement is not None:
        numbers["validation_images"]["by_class"] = real.by_class(data.class_names)
    for name, (_, likelihood) in likelihoods.items():
        numbers[name] = {"num_tokens": int(likelihood.num_tokens), **_plain(likelihood)}
    return real, numbers


def _judge_training_images(
    data: ImageDataModule, judges: Judges, settings: EvaluationSettings
) -> JudgedImages:
    """As many training images as samples, if there are as many, without augmentation."""
    dataset = data.train_dataset
    count = min(settings.num_samples, len(dataset))
    taken = in_proportion(_labels(dataset), count, settings.seed)
    judged = JudgedImages(judges)
    for batch in _batches(data, dataset, taken, settings, "training images"):
        judged.update(batch["images"])
    return judged


def _judge_samples(
    generator: ImageGenerator,
    data: ImageDataModule,
    judges: Judges,
    settings: EvaluationSettings,
    guidance_scale: float,
) -> tuple[JudgedImages, Verdicts]:
    """Samples, batch by batch."""
    judged = JudgedImages(judges)
    verdicts = Verdicts(data.class_names)
    guidance = f", guidance {guidance_scale:g}" if len(settings.guidance_scales) > 1 else ""
    with tqdm(
        total=settings.num_samples,
        unit="image",
        desc=f"sampling{guidance}",
        file=sys.stderr,
        mininterval=1,
    ) as bar:
        for condition in _conditions(generator, data, settings):
            start = bar.n
            count = min(settings.batch_size, settings.num_samples - start)
            samples = generator.sample(
                count,
                condition,
                batch_size=count,
                first_image=start,
                **settings.sampling(guidance_scale),
            )
            labels = None if generator.conditioning.num_classes is None else condition
            named = judged.update(samples, labels)
            verdicts.update(samples, labels, named)
            bar.update(count)
    return judged, verdicts


def _conditions(
    generator: ImageGenerator, data: ImageDataModule, settings: EvaluationSettings
) -> Iterator[torch.Tensor | None]:
    """What each batch of samples is asked for."""
    size, count = settings.batch_size, settings.num_samples
    if generator.conditioning.takes_images:
        dataset = data.val_dataset
        taken = in_proportion(_labels(dataset), count, settings.seed)
        for batch in DataLoader(dataset, sampler=taken, batch_size=size):
            yield batch["conditions"]
    elif generator.conditioning.num_classes is not None:
        known = _labels(data.train_dataset)
        taken = in_proportion(known, count, settings.seed)
        yield from torch.tensor([known[number] for number in taken]).split(size)
    else:
        yield from [None] * -(-count // size)


def _condition(generator: ImageGenerator, batch: dict[str, Any]) -> torch.Tensor | None:
    """What belongs to real images."""
    if generator.conditioning.takes_images:
        return batch["conditions"]
    return None if generator.conditioning.num_classes is None else batch["labels"]


def _likelihoods(generator: ImageGenerator | None) -> dict[str, bool]:
    """Which likelihoods there are, and whether the condition is given."""
    if generator is None:
        return {}
    conditioning = generator.conditioning
    if conditioning.num_classes is None and not conditioning.takes_images:
        return {"likelihood": False}
    without = {"likelihood_without_condition": False} if conditioning.can_do_without else {}
    return {"likelihood": True, **without}


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
    if min(row["num_images"] for row in sets) <= features.num_features:
        notes.append(
            f"Some sets hold no more images than the network has features, {features.num_features}"
            ": their distances say little by themselves."
        )
    return notes


def _batches(
    data: ImageDataModule,
    dataset: ImageDataset,
    numbers: list[int],
    settings: EvaluationSettings,
    name: str,
) -> Iterator[dict[str, Any]]:
    """Some images, not augmented, under a progress bar."""
    loader = DataLoader(
        dataset,
        sampler=numbers,
        batch_size=settings.batch_size,
        num_workers=data.num_workers_for(dataset),
        generator=torch.Generator(),
    )
    with tqdm(total=len(numbers), unit="image", desc=name, file=sys.stderr, mininterval=1) as bar:
        for batch in loader:
            yield batch
            bar.update(len(batch["images"]))


def _labels(dataset: ImageDataset) -> list[int | None]:
    return [dataset.label(number) for number in range(len(dataset))]


def _plain(metric: Any) -> dict[str, float]:
    return {name: value.item() for name, value in metric.compute().items()}


def _write(report: EvaluationReport, output_dir: Path, grids: list[tuple[Path, Verdicts]]) -> None:
    metrics, text = output_dir / "metrics.json", output_dir / "report.md"
    try:
        metrics.write_text(json.dumps(report.numbers, indent=2, ensure_ascii=False) + "\n")
        text.write_text(report.text)
        for path, verdicts in grids:
            verdicts.grid().save(path)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    report.written += [metrics, text, *(path for path, _ in grids)]
