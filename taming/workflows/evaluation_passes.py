"""The passes of an evaluation: over validation images, training images and samples."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from taming.data import ImageDataModule, ImageDataset
from taming.evaluation import CodebookUsage, ReconstructionMetrics, TokenLikelihood
from taming.generation import ImageGenerator
from taming.sequence import to_tokens
from taming.vqgan import VQGAN
from taming.workflows.evaluation_report import Verdicts
from taming.workflows.evaluation_settings import EvaluationSettings
from taming.workflows.judges import JudgedImages, Judges, in_proportion

__all__ = ["judge_samples", "judge_training_images", "measure_validation"]


def measure_validation(
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


def judge_training_images(
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


def judge_samples(
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
            options = settings.sampling(guidance_scale)
            samples = generator.sample(count, condition, options=options, first_image=start)
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
