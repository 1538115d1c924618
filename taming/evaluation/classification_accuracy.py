"""Classifiers of an evaluation: one trained on real images, one on each set of samples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taming.data import EndlessBatches, ImageArray, ImageDataset, Part
from taming.data.batches import make_loader
from taming.data.module import ImageDataModule
from taming.data.readers import Channels
from taming.evaluation.classifier import ClassifierTraining, ImageClassifier, train_classifier
from taming.evaluation.real_images import RealImages
from taming.pictures import to_uint8
from taming.runtime.process_group import gather_shares, on_first_rank, rank

__all__ = ["SampleSet", "classification_accuracy", "train_on_real"]


def train_on_real(
    data: ImageDataModule, training: ClassifierTraining, device: torch.device, directory: Path
) -> ImageClassifier:
    """Trains a classifier on the training images, with the augmentation of their transform.

    Saves it in `directory`, and returns it on the CPU.
    """
    classifier = _train(data.train_dataset, data, training, device)
    classifier.save_pretrained(directory)
    return classifier


class SampleSet:
    """Samples to train a classifier on, at its resolution, on the CPU."""

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        self._batches: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, samples: Tensor, labels: Tensor) -> None:
        """Adds `(b c H W)` in [-1, 1] and their requested classes `(b,)`."""
        if samples.shape[2:] != self._resolution:
            samples = F.interpolate(samples, self._resolution, mode="bilinear", antialias=True)
        self._batches.append((to_uint8(samples.nan_to_num()), labels.cpu().numpy()))

    def gather(self) -> None:
        """Collects the samples of all processes on the first one."""
        self._batches = gather_shares(self._batches)

    def dataset(self, data: ImageDataModule, seed: int) -> ImageDataset:
        """Returns the samples with the augmentation of `data`."""
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*self._batches, strict=True))
        channels: Channels = 1 if data.channels == 1 else 3
        images = ImageArray("samples", pixels, labels, data.class_names, channels)
        crops = data.transform.resize == "shorter_side" and data.transform.crop == "random"
        transform = replace(
            data.transform,
            resolution=self._resolution,
            condition_resolution=None,
            resize="shorter_side" if crops else "stretch",
            crop="random" if crops else "none",
            pad=0,
        )
        return ImageDataset(Part(images), transform, seed=seed)


def classification_accuracy(samples: SampleSet, real: RealImages) -> dict[str, Any]:
    """Trains a classifier on samples, and returns its accuracy on the held-out images.

    This is the classification accuracy score (Ravuri and Vinyals 2019, "Classification Accuracy
    Score for Conditional Generative Models"). Training works as in `train_on_real`. The result is
    empty except on the first process.
    """
    samples.gather()
    data, judges, training = real.data, real.judges, real.options.classifier_training
    classifier = on_first_rank(
        lambda: _train(samples.dataset(data, training.seed), data, training, judges.device)
    )
    judges = replace(judges, classifier=classifier.to(judges.device), features=None)
    images = real.held_out_dataset, real.held_out_numbers
    judged = real.judge(judges, *images, "their classifier")
    if rank() > 0:
        return {}
    return {
        name.replace("agreement", "classification_accuracy"): value
        for name, value in judged.numbers().items()
        if name in ("agreement", "agreement_interval")
    }


def _train(
    dataset: ImageDataset, data: ImageDataModule, training: ClassifierTraining, device: torch.device
) -> ImageClassifier:
    classifier = training.new_classifier(data.resolution, data.channels, data.class_names)
    batches = EndlessBatches(
        len(dataset), training.batch_size, seed=training.seed, block=dataset.block
    )
    loader = make_loader(dataset, data.num_workers_for(dataset), batch_sampler=batches)
    num_steps = training.steps_for(len(dataset))
    return train_classifier(classifier.to(device), loader, training, num_steps).cpu()
