"""Evaluates a generator, a tokenizer, or images that exist already."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation.classification_accuracy import train_on_real
from taming.evaluation.classifier import ImageClassifier
from taming.evaluation.distances import FEW_IMAGES
from taming.evaluation.features import FeatureNetwork
from taming.evaluation.judges import Judges
from taming.evaluation.metrics import ReconstructionMetrics, metrics_device
from taming.evaluation.options import EvaluationOptions
from taming.evaluation.protocol import evaluation_protocol
from taming.evaluation.real_images import RealImages, check_classifier, check_data
from taming.evaluation.reference import (
    NUM_PUBLISHED_SAMPLES,
    ReferenceFile,
    write_statistics,
)
from taming.evaluation.report import image_sets, report_text
from taming.evaluation.samples import (
    Samples,
    condition_key,
    generator_samples,
    measure_samples,
    options_by_scale,
    prepare_sampling,
    training_numbers,
)
from taming.evaluation.validation import measure_validation
from taming.generation import ImageGenerator, SamplingOptions
from taming.losses import LPIPSLoss
from taming.runtime.errors import UserError, writing
from taming.runtime.process_group import on_first_rank, rank
from taming.tokenizer import VQGAN

__all__ = ["evaluate_model"]

log = logging.getLogger("taming")


def evaluate_model(
    subject: ImageGenerator | VQGAN | ImageDataset,
    data: ImageDataModule,
    output_dir: str | Path,
    options: EvaluationOptions,
    *,
    device: torch.device | None = None,
    classifier: ImageClassifier | None = None,
    features: FeatureNetwork | None = None,
    lpips: LPIPSLoss | None = None,
    reference: ReferenceFile | None = None,
    statistics_file: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Path]]:
    """Evaluates a generator, a tokenizer, or images that exist already.

    - Held-out images: the quality of their reconstructions, the likelihood of their tokens.
    - Samples: `compare_features` and `memorisation`.
    - Held-out images that are near-duplicates of training images, see `NearDuplicates`.
    - As many training images: `compare_features`, as a baseline.
    - Samples with classes: how often a classifier that is trained on real images predicts the
      requested class (GAN-test), and how often one that is trained on the samples predicts the
      class of real images (GAN-train, see `classification_accuracy`).

    Writes `metrics.json`, the numbers and their protocol; `report.md`, the same as tables;
    `reconstructions.png`, the best and the worst; `grid.png`, samples by class, one grid per
    guidance scale; `near_duplicates.csv` and `near_duplicates.png`, if there are any; and
    `classifier/`, if it was trained.

    Args:
        subject: what is evaluated. A model must be on its device.
        data: the data module, set up.
        output_dir: directory of the results.
        options: numbers of images, sampling, and training of classifiers.
        device: where the judges run if the subject is no model.
        classifier: None to train one if the samples have classes.
        features: network of distances; None for no distances.
        lpips: None for no LPIPS.
        reference: a reference file for these features, to compare with too; None without one.
        statistics_file: where `write_statistics` writes the held-out images; None for nowhere.
        about: origin of the subject and the data, written before the numbers.
        notes: written after the numbers.

    Returns:
        The contents of metrics.json, and the files and folders written. Both are empty except on
        the first process.

    Raises:
        UserError: if model, data and classifier do not fit each other, or if the model does not
            support an option.
    """
    output_dir, about = Path(output_dir).expanduser(), dict(about or {})
    if isinstance(subject, ImageDataset):
        lpips = None  # it compares reconstructions with their images
    else:
        device = check_data(subject, data).device
    for name, metric in ("SSIM", ReconstructionMetrics), ("LPIPS", lpips):
        if metric is not None and min(data.resolution) < metric.min_side:
            raise UserError(f"{name} needs images of {metric.min_side} pixels or more.")
    if classifier is not None:
        check_classifier(classifier, data)
    if reference is not None:
        assert features is not None
        warnings = reference.warnings(features, data.resolution)
        notes = [*notes, *warnings]
        for warning in warnings if rank() == 0 else []:
            log.warning("note: %s", warning)
    by_scale: list[SamplingOptions] = []
    if isinstance(subject, ImageGenerator):
        by_scale = options_by_scale(subject, data, options)

    device = metrics_device(device)
    has_classes = condition_key(subject) == "labels"
    paths = []
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        if classifier is None and has_classes:
            paths.append(output_dir / "classifier")
            training = options.classifier_training
            classifier = on_first_rank(lambda: train_on_real(data, training, device, paths[0]))
    networks = classifier and classifier.to(device), features and features.to(device)
    lpips, seed = lpips and lpips.to(device), options.sampling.seed
    spatial = features is not None and features.is_inception
    spatial &= statistics_file is not None or (reference is not None and reference.needs_spatial)
    judges = Judges(*networks, device, data.class_names, seed, lpips, spatial)
    real = RealImages(data, judges, options, reference)

    numbers: dict[str, Any] = {"resolution": list(data.resolution)}
    pictures: dict[str, Image.Image] = {}
    if isinstance(subject, ImageDataset):
        num_samples, digest, sample_sizes = len(subject), "", subject.images.sizes or []
        sets = [
            Samples({}, "samples", subject, range(num_samples), lambda _, batch: batch["images"])
        ]
    else:
        num_samples = options.num_samples
        measured, pictures = measure_validation(subject, real)
        numbers, digest, sample_sizes = numbers | measured, subject.to_saved().fingerprint(), []
        sets = []
    if isinstance(subject, ImageGenerator):
        by_scale = prepare_sampling(subject, by_scale, options)
        sets = [generator_samples(subject, real, one, num_samples) for one in by_scale]
        numbers["sampling"] = {
            "num_samples": num_samples,
            "guidance_scales": list(options.guidance_scales),
            "max_images": options.max_images,
            "dtype": str(subject.transformer.head.weight.dtype).removeprefix("torch."),
            **asdict(options.sampling),
            "compile": [one.compile for one in by_scale],
        }
    rows = []
    for samples in sets:
        row, pixel_digest, grid = measure_samples(samples, real, has_classes)
        rows.append(row)
        if grid is not None:
            digest = digest or pixel_digest
            scale = "" if len(sets) == 1 else f"_guidance_{row['guidance_scale']:g}"
            pictures[f"grid{scale}.png"] = grid
    if rank() > 0:
        return {}, []

    held_out = real.held_out
    numbers[f"{real.part}_images"] = held_out.numbers() | real.reference_numbers(held_out)
    if (near_duplicates := real.near_duplicates) is not None:
        numbers[f"{real.part}_images"] |= near_duplicates.numbers()
        if (note := near_duplicates.note(real.part)) is not None:
            notes = [*notes, note]
    if rows:
        numbers["samples"] = rows
    if features is not None:
        count = num_samples if rows else real.held_out.num_images
        numbers["training_images"] = training_numbers(real, count)
        numbers["frechet_features"] = features.description
    protocol = evaluation_protocol(
        real,
        str(about.get("checkpoint") or about.get("samples_from")),
        digest,
        num_samples=num_samples if rows else None,
        sample_sizes=sample_sizes,
    )
    numbers = {"contract": protocol, **about, **numbers}  # the file keeps the protocol's first name
    numbers["notes"] = [*notes, *_notes(subject, numbers, features, by_scale)]
    numbers = json.loads(json.dumps(numbers), parse_constant=lambda _: None)  # NaN becomes null
    if statistics_file is not None and features is not None:
        images = real.held_out_dataset, real.held_out_numbers
        paths.append(write_statistics(statistics_file, held_out, features, *images))
    paths += _write(output_dir, numbers, pictures)
    if near_duplicates is not None:
        with writing(output_dir):
            paths += near_duplicates.write(output_dir)
    return numbers, paths


def _notes(
    subject: ImageGenerator | VQGAN | ImageDataset,
    numbers: dict[str, Any],
    features: FeatureNetwork | None,
    by_scale: Sequence[SamplingOptions],
) -> list[str]:
    """Returns what was not measured and why, and which numbers to read with care."""
    notes = []
    if isinstance(subject, ImageGenerator):
        strongest = max((one.guidance for one in by_scale), key=lambda guidance: guidance.scale)
        notes += [note[0].upper() + note[1:] for note in strongest.notes(subject.num_tokens)]
        if subject.conditioning.num_classes is None:
            notes.append("The generator has no classes, so there is no classifier.")
    sets = image_sets(numbers)
    for name, row in sets.items():
        if "num_not_finite" in row:
            notes.append(
                f"{row['num_not_finite']:,} of {row['num_images']:,} {name} hold NaN or infinite "
                "numbers, so they were not measured."
            )
    fewest = min(row["num_images"] for row in sets.values())
    if fewest < FEW_IMAGES:
        notes.append(
            f"Caution: {fewest:,} images give rough numbers only. Distances and precision say "
            "little below some hundreds. Use more images before you compare models."
        )
    if fewest < NUM_PUBLISHED_SAMPLES and "reference_file" in numbers["contract"]:
        notes.append(
            f"Published distances to a reference file use {NUM_PUBLISHED_SAMPLES:,} samples. With "
            "fewer, distances are larger."
        )
    if features is None:
        return [*notes, "No Fréchet distance was measured because frechet.weights is not set."]
    return notes + features.notes(fewest)


def _write(
    output_dir: Path, numbers: dict[str, Any], pictures: Mapping[str, Image.Image]
) -> list[Path]:
    with writing(output_dir):
        metrics = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        (output_dir / "metrics.json").write_text(metrics, "utf-8")
        (output_dir / "report.md").write_text(report_text(numbers), "utf-8")
        for path in output_dir.glob("grid*.png"):  # an earlier evaluation may have more of them
            path.unlink()
        for name, picture in pictures.items():
            picture.save(output_dir / name)
    return [output_dir / name for name in ("metrics.json", "report.md", *pictures)]
