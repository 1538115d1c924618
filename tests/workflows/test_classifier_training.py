"""The judge's training, on scikit-learn's digits."""

import pytest
import torch
from torch.utils.data import DataLoader

from taming.data import (
    ArraySource,
    Digits,
    ImageDataModule,
    ImageDataset,
    ImageTransform,
    LoaderOptions,
)
from taming.errors import UserError
from taming.evaluation import ImageClassifier
from taming.workflows import ClassifierTraining, train_classifier


def accuracy(classifier: ImageClassifier, dataset: ImageDataset) -> float:
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    with torch.no_grad():
        named = classifier(batch["images"]).argmax(1)
    return (named == batch["labels"]).double().mean().item()


def digits(resolution: int) -> ImageDataModule:
    transform = ImageTransform(resolution=resolution, resize="enlarge", crop="none")
    return ImageDataModule(Digits(), transform, LoaderOptions(64))


def test_digits_are_recognised() -> None:
    data = digits(16)
    settings = ClassifierTraining(num_steps=70, batch_size=64)
    before = torch.get_rng_state()
    classifier = train_classifier(data.train_dataset, settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert not classifier.training
    assert classifier.class_names == tuple("0123456789")
    assert accuracy(classifier, data.val_dataset) > 0.95


def test_the_same_seed_gives_the_same_classifier() -> None:
    data = digits(8)
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(weights))  # what the program drew before does not matter
        settings = ClassifierTraining(num_steps=2, batch_size=8, base_channels=4, seed=seed)
        weights.append(train_classifier(data.train_dataset, settings).head.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_large_images_are_looked_at_smaller() -> None:
    source = ArraySource(
        "wide", torch.zeros(4, 20, 40, dtype=torch.uint8).numpy(), [0, 1, 0, 1], ["a", "b"], 1
    )
    dataset = ImageDataset(
        source, ImageTransform(resolution=(20, 40), resize="none", crop="none"), seed=0
    )
    settings = ClassifierTraining(num_steps=1, batch_size=2, base_channels=2, max_side=16)
    classifier = train_classifier(dataset, settings)
    assert classifier.resolution == (8, 16)


def test_few_images_are_not_trained_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ClassifierTraining()
    assert [settings.steps_for(n) for n in (60_000, 1280, 1279, 640, 4)] == [1000] * 3 + [500, 100]
    assert ClassifierTraining(num_steps=30).steps_for(4) == 30
    images = torch.arange(4, dtype=torch.uint8)[:, None, None].expand(4, 8, 8).numpy() * 80
    source = ArraySource("few", images, [0, 1, 0, 1], ["a", "b"], 1)
    dataset = ImageDataset(source, ImageTransform(resolution=8, resize="none", crop="none"), seed=0)
    steps = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: steps.append(step(self)))
    settings = ClassifierTraining(max_epochs=1, batch_size=2, base_channels=2)
    train_classifier(dataset, settings)
    assert len(steps) == 100


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(UserError, match="num_steps is 0"):
        ClassifierTraining(num_steps=0)
    with pytest.raises(UserError, match="max_epochs is 0"):
        ClassifierTraining(max_epochs=0)
    with pytest.raises(UserError, match="learning_rate -1"):
        ClassifierTraining(learning_rate=-1)
    source = ArraySource("plain", torch.zeros(4, 8, 8, dtype=torch.uint8).numpy(), [0] * 4, [], 1)
    dataset = ImageDataset(source, ImageTransform(resolution=8, resize="none", crop="none"), seed=0)
    with pytest.raises(UserError, match="plain has no classes"):
        train_classifier(dataset, ClassifierTraining())
