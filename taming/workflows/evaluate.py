"""Numbers for a generator, a tokenizer or generated images, beside images it has not seen."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from taming.contexts import evaluation_mode
from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.errors import UserError, writing
from taming.evaluation import (
    ClassifierTraining,
    FeatureNetwork,
    ImageClassifier,
    Judges,
    ReconstructionMetrics,
    measure_validation,
    report_text,
)
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions
from taming.losses import LPIPSLoss
from taming.ranks import dealt, largest_share, on_first_rank, rank
from taming.vqgan import VQGAN
from taming.workflows.evaluation_classifier import train_on_real
from taming.workflows.evaluation_data import (
    FeatureCache,
    RealImages,
    check_classifier,
    check_data,
    chosen,
    dealt_batches,
    judge,
)
from taming.workflows.evaluation_notes import evaluation_contract, evaluation_notes
from taming.workflows.evaluation_pictures import best_and_worst, sample_grid
from taming.workflows.evaluation_samples import SampleBatch, measure_samples, training_numbers

__all__ = ["evaluate_model"]

Subject = ImageGenerator | VQGAN | ImageDataset


def evaluate_model(
    subject: Subject,
    data: ImageDataModule,
    output_dir: str | Path,
    *,
    num_samples: Annotated[int, Ge(2)] = 1000,
    guidance_scales: Sequence[Annotated[float, Ge(0)]] = (1.0,),
    max_images: Annotated[int, Ge(2)] | None = None,
    max_training_images: Annotated[int, Ge(2)] | None = 10000,
    options: SamplingOptions | None = None,
    dtype: SamplingDtype = "float32",
    device: torch.device | None = None,
    classifier: ImageClassifier | None = None,
    classifier_training: ClassifierTraining | None = None,
    features: FeatureNetwork | None = None,
    lpips: LPIPSLoss | None = None,
    cache_dir: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Path]]:
    """Measures a generator, a tokenizer, or images that another program has generated.

    Of the validation images: how well they are reconstructed, and how probable the transformer
    finds their tokens. Of samples: how often a classifier predicts the requested class (GAN-test),
    beside how often it is right about real images; how often one trained on the samples is right
    about real images (GAN-train); and what their features say (see `compare_features` and
    `memorisation`), beside those of as many training images. Classes are requested as often as they
    occur among the training images.

    Into `output_dir` go `metrics.json`, the numbers and their `EvaluationContract`; `report.md`,
    the same as tables; `grid.png`, samples by class, one grid for each guidance scale;
    `reconstructions.png`, the best and the worst; and `classifier/`, if it had to be trained.

    `num_samples` are drawn for each guidance scale; `max_images` bounds the validation images, and
    `max_training_images` those among which copies are looked for. The seed of `options` also
    chooses images, and their batch size is that of all passes. For sampling, after all else, a
    generator is converted to `dtype`, see `prepare_sampling`; `device` is for images without model.
    Without `classifier` one is trained if the samples have classes; without `features` there are no
    numbers of them. Features of real images are kept in `cache_dir` for the next evaluation.
    `about`, where all this is from, is recorded before the numbers, and `notes` beside them.

    Returns:
        The contents of metrics.json, and the files and folders written; nothing but on the first
        process.

    Raises:
        UserError: if model, data and classifier do not fit each other, or for options the model
            does not support.
    """
    output_dir, about = Path(output_dir).expanduser(), dict(about or {})
    options = options or SamplingOptions(seed=0)
    generator = subject if isinstance(subject, ImageGenerator) else None
    tokenizer = None if isinstance(subject, ImageDataset) else check_data(subject, data)
    if min(data.resolution) < ReconstructionMetrics.min_side:
        raise UserError(f"SSIM needs images of {ReconstructionMetrics.min_side} pixels or more.")
    key = _condition_key(subject)
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
    if tokenizer is not None:
        device = tokenizer.last_layer.device
    if device is None or device.type == "mps":  # it has no float64
        device = torch.device("cpu")
    training, written = classifier_training or ClassifierTraining(), []
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        if classifier is None and key == "labels":
            written.append(output_dir / "classifier")
            classifier = on_first_rank(lambda: train_on_real(data, training, device, written[0]))
    judges = Judges(classifier and classifier.to(device), features and features.to(device), device)
    subject_digest = "" if isinstance(subject, ImageDataset) else subject.to_saved().fingerprint()
    cache, seed, names = FeatureCache(cache_dir, features), options.seed, data.class_names
    batch_size, val = options.images_at_once, chosen(data.val_dataset, max_images, options.seed)
    numbers: dict[str, Any] = {"resolution": list(data.resolution)}
    pictures = {}
    if isinstance(subject, ImageDataset):
        images = judge(judges, data, data.val_dataset, val, batch_size, "validation images", cache)
    else:
        assert tokenizer is not None
        path, known = cache.find(data.val_dataset, val)
        with evaluation_mode(subject):
            found = measure_validation(
                tokenizer,
                dealt_batches(data, data.val_dataset, val, batch_size, "validation images"),
                judges,
                _losses(generator, key),
                lpips and lpips.to(device),
                replace(judges, features=None) if known else judges,
            )
            images = found.real
            if path is not None:
                (cache.load if known else cache.save)(path, images)
            if rank() == 0:
                picture = best_and_worst(tokenizer, found, data.val_dataset, val)
                pictures["reconstructions.png"] = picture
                numbers["reconstructions"] = found.reconstructions(names, seed)
        numbers |= found.likelihoods
    train = None
    if features is not None:
        some = chosen(data.train_dataset, max_training_images, seed)
        network = replace(judges, classifier=None)
        name = "training images"
        train = judge(network, data, data.train_dataset, some, batch_size, name, cache)
    real = RealImages(data, judges, val, images, train, batch_size, seed)
    if rank() == 0:
        numbers["validation_images"] = images.numbers(None, names, seed)
    rows = []
    if isinstance(subject, ImageDataset):
        num_samples = len(subject)
        batches = _given(subject, data, batch_size, key)
        row, judged, shown = measure_samples(batches, real, training, key == "labels")
        rows.append(row)
        if rank() == 0:
            subject_digest = judged.digest
            pictures["grid.png"] = sample_grid(shown, names)
    elif generator is not None:
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
        for one in guided:
            with evaluation_mode(generator):
                batches = _drawn(generator, key, data, one, num_samples)
                row, _, shown = measure_samples(batches, real, training, key == "labels")
            rows.append({"guidance_scale": one.guidance.scale, **row})
            if rank() == 0:
                name = f"_guidance_{one.guidance.scale:g}" if len(guided) > 1 else ""
                pictures[f"grid{name}.png"] = sample_grid(shown, names)
    if rank() > 0:
        return {}, []
    if rows:
        numbers["samples"] = rows
    if train is not None:
        count = num_samples if rows else images.num_images
        numbers["training_images"] = training_numbers(real, count)
        assert features is not None
        numbers["frechet_features"] = features.description
    contract = evaluation_contract(
        real,
        str(about.get("checkpoint") or about.get("samples_from")),
        subject_digest,
        num_samples=num_samples if rows else None,
        lpips=None if lpips is None else lpips.backbone,
    )
    numbers = {"contract": contract.plain(), **about, **numbers}
    numbers["notes"] = [*notes, *evaluation_notes(subject, numbers, real, guided)]
    numbers = _without_nan(numbers)
    with writing(output_dir):
        metrics = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        (output_dir / "metrics.json").write_text(metrics, "utf-8")
        (output_dir / "report.md").write_text(report_text(numbers), "utf-8")
        for path in output_dir.glob("grid*.png"):  # of an earlier evaluation
            path.unlink()
        for name, picture in pictures.items():
            picture.save(output_dir / name)
    names = ["metrics.json", "report.md", *pictures]
    return numbers, written + [output_dir / name for name in names]


def _condition_key(subject: Subject) -> str | None:
    """Returns what a batch calls the samples' condition; None without one."""
    if isinstance(subject, ImageDataset):
        return "labels" if subject.label(0) is not None else None
    if isinstance(subject, VQGAN):
        return None
    if subject.conditioning.takes_images:
        return "conditions"
    return None if subject.conditioning.num_classes is None else "labels"


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


def _drawn(
    generator: ImageGenerator,
    key: str | None,
    data: ImageDataModule,
    options: SamplingOptions,
    num_samples: int,
) -> Iterator[SampleBatch]:
    """Draws this rank's samples."""
    dataset = data.val_dataset if key == "conditions" else data.train_dataset
    size, name = options.images_at_once, f"sampling, guidance {options.guidance.scale:g}"
    numbers = chosen(dataset, num_samples, options.seed, repeat=True)
    starts = dealt(range(0, num_samples, size))
    for start, batch in zip(starts, dealt_batches(data, dataset, numbers, size, name), strict=True):
        condition, count = None if key is None else batch[key], len(batch["images"])
        samples = generator.sample(count, condition, options=options, first_image=start)
        yield SampleBatch(start, samples, batch["labels"] if key == "labels" else None)


def _given(
    subject: ImageDataset, data: ImageDataModule, batch_size: int, key: str | None
) -> Iterator[SampleBatch]:
    """Reads this rank's part of generated images."""
    size = min(batch_size, largest_share(len(subject)))
    starts = dealt(range(0, len(subject), size))
    batches = dealt_batches(data, subject, range(len(subject)), size, "samples")
    for start, batch in zip(starts, batches, strict=True):
        yield SampleBatch(start, batch["images"], batch["labels"] if key else None)


def _without_nan(value: Any) -> Any:
    """Puts None where a number is NaN, which JSON does not know."""
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
