"""Numbers for a generator, a tokenizer or generated images, beside images it has not seen."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from PIL import Image
from torch import Tensor

from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation import (
    ClassifierTraining,
    FeatureNetwork,
    ImageClassifier,
    Judges,
    ReconstructionMetrics,
    measure_validation,
    report_text,
)
from taming.evaluation.classifier_training import train_on_real
from taming.evaluation.pictures import best_and_worst, sample_grid
from taming.evaluation.protocol import evaluation_contract, evaluation_notes
from taming.evaluation.real_images import RealImages, check_classifier, check_data
from taming.evaluation.samples import (
    condition_key,
    drawn_samples,
    given_samples,
    guided_options,
    measure_samples,
    prepare_sampling,
    training_numbers,
)
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions
from taming.losses import LPIPSLoss
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError, writing
from taming.runtime.process_group import on_first_rank, rank
from taming.tokenizer import VQGAN

__all__ = ["evaluate_model"]


def evaluate_model(
    subject: ImageGenerator | VQGAN | ImageDataset,
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

    Into `output_dir` go `metrics.json`, the numbers and their contract; `report.md`,
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
    options, key = options or SamplingOptions(seed=0), condition_key(subject)
    if isinstance(subject, ImageDataset):
        lpips = None  # it compares reconstructions with their images
    else:
        device = check_data(subject, data).device
    for name, measure in ("SSIM", ReconstructionMetrics), ("LPIPS", lpips):
        if measure is not None and min(data.resolution) < measure.min_side:
            raise UserError(f"{name} needs images of {measure.min_side} pixels or more.")
    if classifier is not None:
        check_classifier(classifier, data)
    guided = []
    if isinstance(subject, ImageGenerator):
        guided = guided_options(options, guidance_scales, num_samples)
        condition = None if key is None else torch.as_tensor(data.val_dataset[0][key])[None]
        for one in guided:  # unsupported options fail now
            subject.sample(1, condition, options=replace(one, compile=False))
    if device is None or device.type == "mps":  # it has no float64
        device = torch.device("cpu")
    training, written = classifier_training or ClassifierTraining(), []
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        if classifier is None and key == "labels":
            written.append(output_dir / "classifier")
            classifier = on_first_rank(lambda: train_on_real(data, training, device, written[0]))
    networks = classifier and classifier.to(device), features and features.to(device)
    judges = Judges(*networks, device, data.class_names, options.seed)
    size = options.images_at_once
    real = RealImages(data, judges, size, max_images, max_training_images, cache_dir)
    numbers: dict[str, Any] = {"resolution": list(data.resolution)}
    pictures: dict[str, Image.Image] = {}
    if isinstance(subject, ImageDataset):
        num_samples, digest = len(subject), ""
        sets = [given_samples(subject)]
    else:
        measured, pictures = _measure_tokenizer(subject, real, lpips and lpips.to(device))
        numbers, digest, sets = numbers | measured, subject.to_saved().fingerprint(), []
    if isinstance(subject, ImageGenerator):
        guided = prepare_sampling(subject, guided, num_samples, dtype)
        sets = [drawn_samples(subject, data, one, num_samples) for one in guided]
        numbers["sampling"] = {
            "num_samples": num_samples,
            "guidance_scales": list(guidance_scales),
            "max_images": max_images,
            "dtype": str(subject.transformer.head.weight.dtype).removeprefix("torch."),
            **asdict(options),
            "compile": [one.compile for one in guided],
        }
    rows = []
    for samples in sets:
        row, judged, shown = measure_samples(samples, real, training, key == "labels")
        rows.append(row)
        if rank() == 0:
            digest = digest or judged.digest
            name = "" if len(sets) == 1 else f"_guidance_{samples.settings['guidance_scale']:g}"
            pictures[f"grid{name}.png"] = sample_grid(shown, judged, data.class_names)
    if rank() > 0:
        return {}, []
    numbers["validation_images"] = real.val.numbers()
    if rows:
        numbers["samples"] = rows
    if real.train is not None:
        count = num_samples if rows else real.val.num_images
        numbers["training_images"] = training_numbers(real, count)
        assert features is not None
        numbers["frechet_features"] = features.description
    contract = evaluation_contract(
        real,
        str(about.get("checkpoint") or about.get("samples_from")),
        digest,
        num_samples=num_samples if rows else None,
        training=training,
        lpips=None if lpips is None else lpips.backbone,
        sample_sizes=(isinstance(subject, ImageDataset) and subject.images.sizes) or (),
    )
    numbers = {"contract": contract, **about, **numbers}
    numbers["notes"] = [*notes, *evaluation_notes(subject, numbers, real, guided)]
    numbers = json.loads(json.dumps(numbers), parse_constant=lambda _: None)  # what is not finite
    return numbers, written + _write(output_dir, numbers, pictures)


def _measure_tokenizer(
    subject: ImageGenerator | VQGAN, real: RealImages, lpips: LPIPSLoss | None
) -> tuple[dict[str, Any], dict[str, Image.Image]]:
    """Returns the numbers of the validation images' tokens and reconstructions, and a picture."""
    tokenizer = subject if isinstance(subject, VQGAN) else subject.require_tokenizer()
    with evaluation_mode(subject):
        dataset, chosen = real.data.val_dataset, real.val_numbers
        batches = (batch for _, batch in real.batches(dataset, chosen, "reconstructions"))
        found = measure_validation(tokenizer, batches, real.judges, _losses(subject), lpips)
    if rank() > 0:
        return found.likelihoods, {}
    picture = best_and_worst(tokenizer, found, dataset, chosen)
    numbers = {**found.likelihoods, "reconstructions": found.numbers(real.val)}
    return numbers, {"reconstructions.png": picture}


def _losses(
    subject: ImageGenerator | VQGAN,
) -> dict[str, Callable[[Tensor, dict[str, Any]], Tensor]]:
    """Returns the likelihoods to measure: with its condition, and without where that is learned."""
    if isinstance(subject, VQGAN):
        return {}
    key = condition_key(subject)
    found = {
        "likelihood": lambda tokens, batch: subject.token_losses(
            tokens, batch[key] if key else None
        )
    }
    if key and subject.conditioning.can_do_without:
        found["likelihood_without_condition"] = lambda tokens, batch: subject.token_losses(tokens)
    return found


def _write(
    output_dir: Path, numbers: dict[str, Any], pictures: Mapping[str, Image.Image]
) -> list[Path]:
    with writing(output_dir):
        metrics = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        (output_dir / "metrics.json").write_text(metrics, "utf-8")
        (output_dir / "report.md").write_text(report_text(numbers), "utf-8")
        for path in output_dir.glob("grid*.png"):  # of an earlier evaluation
            path.unlink()
        for name, picture in pictures.items():
            picture.save(output_dir / name)
    return [output_dir / name for name in ("metrics.json", "report.md", *pictures)]
