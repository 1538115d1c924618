"""Numbers for a generator or a tokenizer, on images it has not seen."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from taming.contexts import evaluation_mode
from taming.data import EndlessBatches, ImageDataModule, ImageDataset
from taming.errors import writing
from taming.evaluation import (
    ClassifierTraining,
    FeatureExtractor,
    ImageClassifier,
    JudgedImages,
    Judges,
    in_proportion,
    measure_validation,
    report_text,
    train_classifier,
)
from taming.generation import ImageGenerator, SamplingOptions
from taming.pictures import class_grid, pixel_grid, to_uint8
from taming.vqgan import VQGAN
from taming.workflows.evaluation_data import check_classifier, check_data

__all__ = ["EvaluationReport", "evaluate_model"]

BATCH_SIZE = 64
SHOWN_A_CLASS, SHOWN_CLASSES, SHOWN_WITHOUT_CLASSES = 10, 12, 100


@dataclass
class EvaluationReport:
    """What `evaluate_model` found and wrote.

    Attributes:
        numbers: the contents of metrics.json.
        text: the contents of report.md.
        written: files and folders.
    """

    numbers: dict[str, Any]
    text: str
    written: list[Path] = field(default_factory=list)


def evaluate_model(
    model: ImageGenerator | VQGAN,
    data: ImageDataModule,
    output_dir: str | Path,
    *,
    num_samples: Annotated[int, Ge(2)] = 1000,
    guidance_scales: Sequence[float] = (1.0,),
    max_images: Annotated[int, Ge(2)] | None = None,
    options: SamplingOptions | None = None,
    classifier: ImageClassifier | None = None,
    classifier_training: ClassifierTraining | None = None,
    features: FeatureExtractor | None = None,
    about: Mapping[str, Any] | None = None,
) -> EvaluationReport:
    """Measures a model on validation images, and, if it is a generator, its samples.

    Of the validation images: how well they are reconstructed, and how probable the transformer
    finds their tokens. Of samples: how often a classifier predicts the requested class, beside how
    often it is right about real images; and the Fréchet distance of their features to those of the
    validation images, beside that of as many training images. Classes are requested as often as
    they occur among the training images.

    Into `output_dir` go `metrics.json`; `report.md`, the same as tables; `grid.png`, samples by
    class, one grid for each guidance scale; and `classifier/`, if it had to be trained.

    Args:
        model: in evaluation mode, on the device to use.
        data: the images, at the model's resolution.
        output_dir: where to write.
        num_samples: samples for each guidance scale, and training images they are compared with.
        guidance_scales: strengths of classifier-free guidance, each measured by itself; 1 is off.
        max_images: only so many of the validation images; None: all.
        options: how to sample; its seed also chooses images, and its batch size is that of all
            passes.
        classifier: of the data's classes; None: one is trained on the training images, if the model
            has classes.
        classifier_training: how; None for the defaults.
        features: network for the Fréchet distances; None: not measured.
        about: recorded in metrics.json before the numbers: where model and data are from.

    Raises:
        UserError: if model, data and classifier do not fit each other, or for options the model
            does not support.
    """
    output_dir = Path(output_dir).expanduser()
    options = options or SamplingOptions(seed=0)
    generator = model if isinstance(model, ImageGenerator) else None
    tokenizer = check_data(model, data)
    if classifier is not None:
        check_classifier(classifier, data)
    guided = [
        replace(options, guidance=replace(options.guidance, scale=s)) for s in guidance_scales
    ]
    if generator is not None:
        _check_sampling(generator, data, guided)
    device = tokenizer.last_layer.device
    judging = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    training = classifier_training or ClassifierTraining()
    must_train = classifier is None and _condition_key(generator) == "labels"
    if must_train:
        classifier = training.new_classifier(data.resolution, data.channels, data.class_names)
    judges = Judges(
        None if classifier is None else classifier.to(judging),
        None if features is None else features.to(judging),
        judging,
    )
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        if must_train:
            _train(classifier, data, training).save_pretrained(output_dir / "classifier")
    numbers: dict[str, Any] = dict(about or {})
    pictures = {}
    with evaluation_mode(model):
        batches = _batches(data, data.val_dataset, max_images, options, "validation images")
        real, measured = measure_validation(tokenizer, batches, judges, _logits(generator))
        numbers["validation_images"] = real.numbers()
        if real.confusion is not None:
            numbers["validation_images"]["by_class"] = real.by_class(data.class_names)
        numbers |= {"resolution": list(data.resolution), **measured}
        if features is not None:
            numbers["frechet_features"] = features.description
            train = JudgedImages(judges)
            batches = _batches(data, data.train_dataset, num_samples, options, "training images")
            for batch in batches:
                train.update(batch["images"])
            numbers["training_images"] = train.numbers(real)
        if generator is not None:
            numbers["sampling"] = {
                "num_samples": num_samples,
                "guidance_scales": list(guidance_scales),
                "max_images": max_images,
                **asdict(options),
            }
            numbers["samples"] = []
            for one in guided:
                scale = one.guidance.scale
                samples, picture = _judge_samples(generator, data, judges, one, num_samples)
                row = {"guidance_scale": scale, **samples.numbers(real)}
                if samples.confusion is not None:
                    row["by_class"] = samples.by_class(data.class_names)
                numbers["samples"].append(row)
                name = f"_guidance_{scale:g}" if len(guided) > 1 else ""
                pictures[f"grid{name}.png"] = picture
    numbers["notes"] = _notes(generator, numbers, features, options)
    text = report_text(numbers)
    with writing(output_dir):
        metrics = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        (output_dir / "metrics.json").write_text(metrics, "utf-8")
        (output_dir / "report.md").write_text(text, "utf-8")
        for path in output_dir.glob("grid*.png"):  # of an earlier evaluation
            path.unlink()
        for name, picture in pictures.items():
            picture.save(output_dir / name)
    names = [*(["classifier"] if must_train else []), "metrics.json", "report.md", *pictures]
    return EvaluationReport(numbers, text, [output_dir / name for name in names])


def _logits(
    generator: ImageGenerator | None,
) -> dict[str, Callable[[Tensor, dict[str, Any]], Tensor]]:
    """Returns the likelihoods to measure: with its condition, and without where that is learned."""
    if generator is None:
        return {}
    key = _condition_key(generator)
    found = {
        "likelihood": lambda tokens, batch: generator.logits(tokens, batch[key] if key else None)
    }
    if key and generator.conditioning.can_do_without:
        found["likelihood_without_condition"] = lambda tokens, batch: generator.logits(tokens)
    return found


def _condition_key(generator: ImageGenerator | None) -> str | None:
    """What a batch calls the generator's condition, if it has one."""
    if generator is None:
        return None
    if generator.conditioning.takes_images:
        return "conditions"
    return None if generator.conditioning.num_classes is None else "labels"


def _judge_samples(
    generator: ImageGenerator,
    data: ImageDataModule,
    judges: Judges,
    options: SamplingOptions,
    num_samples: int,
) -> tuple[JudgedImages, Image.Image]:
    """Draws samples; returns what the judges see in them, and the first ones as a grid."""
    judged = JudgedImages(judges)
    shown: dict[int, list[tuple[np.ndarray, int | None]]] = defaultdict(list)
    most = SHOWN_A_CLASS if _condition_key(generator) == "labels" else SHOWN_WITHOUT_CLASSES
    description = f"sampling, guidance {options.guidance.scale:g}"
    with tqdm(total=num_samples, unit="image", desc=description, mininterval=1) as bar:
        for condition in _conditions(generator, data, options, num_samples):
            count = min(options.batch_size or BATCH_SIZE, num_samples - bar.n)
            samples = generator.sample(count, condition, options=options, first_image=bar.n)
            labels = condition if _condition_key(generator) == "labels" else None
            predictions = judged.update(samples, labels)
            for number, picture in enumerate(to_uint8(samples)):
                label = -1 if labels is None else int(labels[number])
                if label not in shown and len(shown) == SHOWN_CLASSES:
                    continue
                if len(shown[label]) < most:
                    prediction = None if predictions is None else predictions[number]
                    shown[label].append((picture, prediction))
            bar.update(count)
    if -1 in shown:
        return judged, pixel_grid(np.stack([picture for picture, _ in shown[-1]]), min_side=96)
    return judged, class_grid(shown, data.class_names)


def _conditions(
    generator: ImageGenerator, data: ImageDataModule, options: SamplingOptions, count: int
) -> Iterator[Tensor | None]:
    """Yields the condition of each batch of samples."""
    key, size = _condition_key(generator), options.batch_size or BATCH_SIZE
    if key == "conditions":
        taken = in_proportion(_labels(data.val_dataset), count, options.seed)
        for batch in DataLoader(data.val_dataset, sampler=taken, batch_size=size):
            yield batch[key]
    elif key == "labels":
        labels = _labels(data.train_dataset)
        taken = in_proportion(labels, count, options.seed)
        yield from torch.tensor([labels[number] for number in taken]).split(size)
    else:
        yield from [None] * -(-count // size)


def _batches(
    data: ImageDataModule,
    dataset: ImageDataset,
    max_images: int | None,
    options: SamplingOptions,
    name: str,
) -> Iterator[dict[str, Any]]:
    """Yields images, not augmented, at most so many, under a progress bar."""
    taken: Sequence[int] = range(len(dataset))
    if max_images is not None and max_images < len(dataset):
        taken = in_proportion(_labels(dataset), max_images, options.seed)
    loader = DataLoader(
        dataset,
        sampler=taken,
        batch_size=options.batch_size or BATCH_SIZE,
        num_workers=data.num_workers_for(dataset),
        generator=torch.Generator(),
    )
    with tqdm(total=len(taken), unit="image", desc=name, mininterval=1) as bar:
        for batch in loader:
            yield batch
            bar.update(len(batch["images"]))


def _labels(dataset: ImageDataset) -> list[int | None]:
    return [dataset.label(number) for number in range(len(dataset))]


def _train(
    classifier: ImageClassifier | None, data: ImageDataModule, training: ClassifierTraining
) -> ImageClassifier:
    """Trains a classifier on the training images, with the augmentation of their transform."""
    assert classifier is not None
    dataset = data.train_dataset
    loader = DataLoader(
        dataset,
        batch_sampler=EndlessBatches(len(dataset), training.batch_size, seed=training.seed),
        num_workers=data.num_workers_for(dataset),
        generator=torch.Generator(),  # its own: nothing is drawn from PyTorch's global state
    )
    return train_classifier(classifier, loader, training, training.steps_for(len(dataset)))


def _notes(
    generator: ImageGenerator | None,
    numbers: dict[str, Any],
    features: FeatureExtractor | None,
    options: SamplingOptions,
) -> list[str]:
    """Says what was not measured and why, and which numbers to take with care."""
    notes = []
    if generator is not None:
        scale = max(numbers["sampling"]["guidance_scales"])
        guidance = replace(options.guidance, scale=scale)
        notes += [note[0].upper() + note[1:] for note in guidance.notes(generator.num_tokens)]
        if generator.conditioning.num_classes is None:
            notes.append("The generator has no classes, so no classifier can agree with it.")
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


def _check_sampling(
    generator: ImageGenerator, data: ImageDataModule, scales: Sequence[SamplingOptions]
) -> None:
    """Draws an image with each guidance scale, so that unsupported options fail now."""
    key = _condition_key(generator)
    condition = None
    if key is not None:
        condition = torch.as_tensor(data.val_dataset[0][key])[None]
    for options in scales:
        generator.sample(1, condition, options=options)
