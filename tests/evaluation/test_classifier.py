"""The classifier and its training, on scikit-learn's digits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from taming.evaluation import ClassifierTraining, ImageClassifier
from taming.evaluation.classifier import train_classifier
from taming.runtime.errors import UserError


def small(**changes: object) -> ImageClassifier:
    torch.manual_seed(0)
    settings = {"num_classes": 3, "image_channels": 1, "resolution": 16, "base_channels": 4}
    return ImageClassifier(**{**settings, **changes}).eval()  # type: ignore[arg-type]


def test_logits_of_images_of_any_size() -> None:
    classifier = small(resolution=(16, 24))
    assert classifier(torch.zeros(5, 1, 16, 24)).shape == (5, 3)
    flat, large = (torch.full((1, 1, *size), 0.25) for size in ((16, 24), (64, 48)))
    torch.testing.assert_close(classifier(large), classifier(flat))  # resized, grey stays grey


def test_logits_depend_on_positions_and_not_on_the_batch() -> None:
    classifier = small()
    images = torch.rand(4, 1, 16, 16) * 2 - 1
    torch.testing.assert_close(classifier(images)[:1], classifier(images[:1]))
    assert not torch.allclose(classifier(images.flip(2)), classifier(images), atol=1e-3)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    classifier = small(class_names=["cat", "dog", "owl"])
    classifier.train()(torch.rand(8, 1, 16, 16))  # other running means than the initial ones
    classifier.eval().save_pretrained(tmp_path / "classifier")
    loaded = ImageClassifier.from_pretrained(tmp_path / "classifier")
    assert not loaded.training
    assert loaded.class_names == ("cat", "dog", "owl")
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(loaded(images), classifier(images))


def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float().view(-1, 1, 8, 8) / 8 - 1, torch.from_numpy(labels)


def batches(size: int) -> Iterator[dict[str, Tensor]]:
    """Batches of the first 1,500 digits, without end."""
    images, labels = digits()
    generator = torch.Generator().manual_seed(0)
    while True:
        for numbers in torch.randperm(1500, generator=generator).split(size):
            yield {"images": images[numbers], "labels": labels[numbers]}


def trained(settings: ClassifierTraining) -> ImageClassifier:
    classifier = settings.new_classifier((8, 8), 1, list("0123456789"))
    return train_classifier(classifier, batches(settings.batch_size), settings, settings.num_steps)


def test_digits_are_recognised() -> None:
    before = torch.get_rng_state()
    classifier = trained(ClassifierTraining(num_steps=100, batch_size=64))
    assert torch.equal(torch.get_rng_state(), before)
    assert not classifier.training
    assert classifier.class_names == tuple("0123456789")
    images, labels = (x[1500:] for x in digits())
    assert (classifier(images).argmax(1) == labels).double().mean() > 0.9


def test_the_same_seed_gives_the_same_classifier() -> None:
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(weights))  # the global random state does not matter
        settings = ClassifierTraining(num_steps=2, batch_size=8, base_channels=4, seed=seed)
        weights.append(trained(settings).head.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_settings_bound_the_size_and_the_steps() -> None:
    settings = ClassifierTraining(max_side=16)
    assert settings.new_classifier((20, 40), 1, ["a", "b"]).resolution == (8, 16)
    assert [settings.steps_for(n) for n in (60_000, 1280, 1279, 640, 4)] == [1000] * 3 + [500, 100]
    assert ClassifierTraining(num_steps=30).steps_for(4) == 30
    with pytest.raises(UserError, match="2 classes or more"):
        ClassifierTraining().new_classifier((16, 16), 1, ["cats"])
    with pytest.raises(UserError, match="num_levels=6 halves images of 16×16 too often"):
        ClassifierTraining(num_levels=6).new_classifier((16, 16), 1, ["cats", "dogs"])
