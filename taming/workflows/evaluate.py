"""Numbers for a generator or a tokenizer, on images it has not seen."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from taming.contexts import evaluation_mode
from taming.data import EndlessBatches, ImageDataset
from taming.data.batches import make_loader
from taming.data.module import ImageDataModule
from taming.errors import UserError, writing
from taming.evaluation import (
    ClassifierTraining,
    FeatureExtractor,
    ImageClassifier,
    JudgedImages,
    Judges,
    ReconstructionMetrics,
    in_proportion,
    measure_validation,
    report_text,
    train_classifier,
)
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions
from taming.pictures import class_grid, pixel_grid, to_uint8
from taming.ranks import dealt, gather, largest_share, on_first_rank, rank
from taming.vqgan import VQGAN
from taming.workflows.evaluation_data import check_classifier, check_data

__all__ = ["evaluate_model"]

SHOWN_A_CLASS, SHOWN_CLASSES, SHOWN_WITHOUT_CLASSES = 10, 12, 100


class Shown(NamedTuple):
    """A sample in the grid."""

    number: int
    label: int  # the requested class; -1: none
    picture: np.ndarray
    prediction: int | None  # of the classifier


def evaluate_model(
    model: ImageGenerator | VQGAN,
    data: ImageDataModule,
    output_dir: str | Path,
    *,
    num_samples: Annotated[int, Ge(2)] = 1000,
    guidance_scales: Sequence[Annotated[float, Ge(0)]] = (1.0,),
    max_images: Annotated[int, Ge(2)] | None = None,
    options: SamplingOptions | None = None,
    dtype: SamplingDtype = "float32",
    classifier: ImageClassifier | None = None,
    classifier_training: ClassifierTraining | None = None,
    features: FeatureExtractor | None = None,
    about: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Measures a model on validation images, and, if it is a generator, its samples.

    Of the validation images: how well they are reconstructed, and how probable the transformer
    finds their tokens. Of samples: how often a classifier predicts the requested class, beside how
    often it is right about real images; and the Fréchet distance of their features to those of the
    validation images, beside that of as many training images. Classes are requested as often as
    they occur among the training images.

    Into `output_dir` go `metrics.json`; `report.md`, the same as tables; `grid.png`, samples by
    class, one grid for each guidance scale; and `classifier/`, if it had to be trained.

    `num_samples` are drawn for each guidance scale, and as many training images compared;
    `max_images` bounds the validation images. The seed of `options` also chooses images, and their
    batch size is that of all passes. For sampling, after all else, the generator is converted to
    `dtype`, see `prepare_sampling`. Without `classifier` one is trained if the model has classes;
    without `features` there is no Fréchet distance. `about`, where model and data are from, is
    recorded before the numbers.

    Returns:
        The contents of metrics.json, and the files and folders written.

    Raises:
        UserError: if model, data and classifier do not fit each other, or for options the model
            does not support.
    """
    output_dir = Path(output_dir).expanduser()
    options = options or SamplingOptions(seed=0)
    tokenizer = check_data(model, data)
    if min(data.resolution) < ReconstructionMetrics.min_side:
        raise UserError(f"SSIM needs images of {ReconstructionMetrics.min_side} pixels or more.")
    generator = model if isinstance(model, ImageGenerator) else None
    key = None  # what a batch calls the generator's condition
    if generator is not None and generator.conditioning.takes_images:
        key = "conditions"
    elif generator is not None and generator.conditioning.num_classes is not None:
        key = "labels"
    share = largest_share(num_samples)
    size = min(options.images_at_once, share)  # a compiled step is for batches of one size
    guided = [
        replace(options, batch_size=size, guidance=replace(options.guidance, scale=scale))
        for scale in guidance_scales
    ]
    if generator is not None:
        condition = None if key is None else torch.as_tensor(data.val_dataset[0][key])[None]
        for one in guided:  # unsupported options fail now
            generator.sample(1, condition, options=replace(one, compile=False))
    if classifier is not None:
        check_classifier(classifier, data)
    device = tokenizer.last_layer.device
    device = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    written = []
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        if classifier is None and key == "labels":
            training = classifier_training or ClassifierTraining()
            written.append(output_dir / "classifier")
            classifier = on_first_rank(lambda: _train(data, training, device, written[0]))
    judges = Judges(classifier and classifier.to(device), features and features.to(device), device)
    with evaluation_mode(model):
        batches = _batches(data, data.val_dataset, max_images, options, "validation images")
        real, measured = measure_validation(tokenizer, batches, judges, _losses(generator, key))
        numbers = {**(about or {}), "validation_images": real.numbers(None, data.class_names)}
        numbers |= {"resolution": list(data.resolution), **measured}
        if features is not None:
            numbers["frechet_features"] = features.description
            train = JudgedImages(replace(judges, classifier=None))
            some = _batches(data, data.train_dataset, num_samples, options, "training images")
            for batch in some:
                train.update(batch["images"])
            numbers["training_images"] = train.numbers(real)
        pictures = {}
        if generator is not None:
            for number, one in enumerate(guided):  # those with and without guidance share a step
                num_alike = sum(one.guidance.is_off == other.guidance.is_off for other in guided)
                guided[number] = generator.prepare_sampling(one, dtype, share * num_alike)
            numbers["sampling"] = {
                "num_samples": num_samples,
                "guidance_scales": list(guidance_scales),
                "max_images": max_images,
                "dtype": str(generator.transformer.head.weight.dtype).removeprefix("torch."),
                **asdict(options),
                "compile": [one.compile for one in guided],
            }
            numbers["samples"] = []
            for one in guided:
                samples, shown = _judge_samples(generator, key, data, judges, one, num_samples)
                scale = {"guidance_scale": one.guidance.scale}
                numbers["samples"].append({**scale, **samples.numbers(real, data.class_names)})
                name = f"_guidance_{one.guidance.scale:g}" if len(guided) > 1 else ""
                pictures[f"grid{name}.png"] = shown
    numbers["notes"] = _notes(generator, numbers, features, guided)
    if rank() > 0:
        return numbers, []
    with writing(output_dir):
        metrics = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        (output_dir / "metrics.json").write_text(metrics, "utf-8")
        (output_dir / "report.md").write_text(report_text(numbers), "utf-8")
        for path in output_dir.glob("grid*.png"):  # of an earlier evaluation
            path.unlink()
        for name, shown in pictures.items():
            _grid(shown, data.class_names).save(output_dir / name)
    names = ["metrics.json", "report.md", *pictures]
    return numbers, written + [output_dir / name for name in names]


def _losses(
    generator: ImageGenerator | None, key: str | None
) -> dict[str, Callable[[Tensor, dict[str, Any]], Tensor]]:
    """Returns the likelihoods to measure: with its condition, and without where that is learned."""
    if generator is None:
        return {}
    found = {
        "likelihood": lambda tokens, batch: generator.token_losses(
            tokens, batch[key] if key else None
        )
    }
    if key and generator.conditioning.can_do_without:
        found["likelihood_without_condition"] = lambda tokens, batch: generator.token_losses(tokens)
    return found


def _judge_samples(
    generator: ImageGenerator,
    key: str | None,
    data: ImageDataModule,
    judges: Judges,
    options: SamplingOptions,
    num_samples: int,
) -> tuple[JudgedImages, list[Shown]]:
    """Draws samples; returns what the judges see in them, and those that are shown."""
    dataset = data.val_dataset if key == "conditions" else data.train_dataset
    judged = JudgedImages(judges if key == "labels" else replace(judges, classifier=None))
    shown: list[Shown] = []
    name = f"sampling, guidance {options.guidance.scale:g}"
    batches = _batches(data, dataset, num_samples, options, name, repeat=True)
    starts = dealt(range(0, num_samples, options.images_at_once))
    for start, batch in zip(starts, batches, strict=True):
        condition = None if key is None else batch[key]
        count = len(batch["images"])
        samples = generator.sample(count, condition, options=options, first_image=start)
        labels = batch["labels"].tolist() if key == "labels" else [-1] * count
        predictions = judged.update(samples, batch.get("labels"))
        numbers = range(start, start + count)
        shown += map(Shown, numbers, labels, to_uint8(samples), predictions)
        shown = _first_of_each(shown)
    return judged, _first_of_each(sorted(chain.from_iterable(gather(shown))))


def _grid(pictures: Sequence[Shown], class_names: Sequence[str]) -> Image.Image:
    """Lays out the pictures, by class where they have one."""
    if pictures[0].label < 0:
        return pixel_grid(np.stack([one.picture for one in pictures]), min_side=96)
    shown: dict[int, list[tuple[np.ndarray, int | None]]] = defaultdict(list)
    for one in pictures:
        shown[one.label].append((one.picture, one.prediction))
    return class_grid(shown, class_names)


def _first_of_each(pictures: Sequence[Shown]) -> list[Shown]:
    """Keeps the pictures that are shown: the first of the first classes."""
    kept: dict[int, list[Shown]] = defaultdict(list)
    for one in pictures:
        most = SHOWN_WITHOUT_CLASSES if one.label < 0 else SHOWN_A_CLASS
        if (one.label in kept or len(kept) < SHOWN_CLASSES) and len(kept[one.label]) < most:
            kept[one.label].append(one)
    return list(chain.from_iterable(kept.values()))


def _batches(
    data: ImageDataModule,
    dataset: ImageDataset,
    most: int | None,
    options: SamplingOptions,
    name: str,
    repeat: bool = False,
) -> Iterable[dict[str, Any]]:
    """Returns this rank's batches of the images, not augmented, under a progress bar.

    Fewer than all are chosen in proportion to their classes; with `repeat` also more than all.
    """
    taken: Sequence[int] = range(len(dataset))
    if most is not None and (most < len(dataset) or repeat):
        taken = in_proportion([dataset.label(number) for number in taken], most, options.seed)
    size = min(options.images_at_once, largest_share(len(taken)))
    batches = [taken[start : start + size] for start in range(0, len(taken), size)]
    num_workers = data.num_workers_for(dataset)
    loader = make_loader(dataset, num_workers, batch_sampler=list(dealt(batches)))
    return tqdm(loader, name, unit="batch", mininterval=1, disable=rank() > 0)


def _train(
    data: ImageDataModule, training: ClassifierTraining, device: torch.device, directory: Path
) -> ImageClassifier:
    """Trains a classifier on the training images, with the augmentation of their transform.

    It is saved in the directory, and returned on the CPU.
    """
    dataset = data.train_dataset
    classifier = training.new_classifier(data.resolution, data.channels, data.class_names)
    batches = EndlessBatches(len(dataset), training.batch_size, seed=training.seed)
    loader = make_loader(dataset, data.num_workers_for(dataset), batch_sampler=batches)
    num_steps = training.steps_for(len(dataset))
    classifier = train_classifier(classifier.to(device), loader, training, num_steps)
    classifier.save_pretrained(directory)
    return classifier.cpu()


def _notes(
    generator: ImageGenerator | None,
    numbers: dict[str, Any],
    features: FeatureExtractor | None,
    guided: Sequence[SamplingOptions],
) -> list[str]:
    """Says what was not measured and why, and which numbers to take with care."""
    notes = []
    if generator is not None:
        strongest = max((one.guidance for one in guided), key=lambda guidance: guidance.scale)
        notes += [note[0].upper() + note[1:] for note in strongest.notes(generator.num_tokens)]
        if generator.conditioning.num_classes is None:
            notes.append("The generator has no classes, so no classifier can agree with it.")
    if features is None:
        return [*notes, "No Fréchet distance was measured: it needs frechet.weights=FILE."]
    names = ("training_images", "validation_images", "reconstructions")
    sets = [*(numbers[name] for name in names), *numbers.get("samples", [])]
    return notes + features.notes(min(row["num_images"] for row in sets))
