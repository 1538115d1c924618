"""An evaluation refuses data and classifiers that differ from the training's."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import tiny_generator, tiny_vqgan

from taming.conditioning import ClassLabel, ImageCondition, Unconditional
from taming.data import LabelMapReader, PictureReader
from taming.evaluation import ClassifierTraining, ImageClassifier
from taming.evaluation.classification_accuracy import train_on_real
from taming.evaluation.real_images import check_classifier, check_data, choose_images
from taming.runtime.errors import UserError
from taming.tokenizer import CellClasses

GRID = (2, 3)
NAMES = ["cats", "dogs"]
MODELS = {
    "unconditional": lambda: tiny_generator(Unconditional()),
    "classes": lambda: tiny_generator(ClassLabel(2, class_names=NAMES)),
    "unnamed": lambda: tiny_generator(ClassLabel(2)),
    "maps": lambda: tiny_generator(
        ImageCondition(4, GRID, unlabelled=0), condition_tokenizer=CellClasses(4, 2, (4, 6))
    ),
    "pictures": lambda: tiny_generator(
        ImageCondition(8, GRID), condition_tokenizer=tiny_vqgan(seed=5)
    ),
}
UNLABELLED = "unlabelled=0 data.label_map.unlabelled_class=n"


def data(**changes: Any) -> Any:
    """Stands for a data module of two classes."""
    settings = {"label_maps": False, "channels": 3, "resolution": (4, 6), "num_classes": 2,
                "class_names": NAMES, "condition_reader": None, **changes}  # fmt: skip
    return SimpleNamespace(**settings)


def expect_error(message: str | None) -> AbstractContextManager[Any]:
    """Expects an error with this message, or none."""
    return nullcontext() if message is None else pytest.raises(UserError, match=message)


def reads(*arguments: Any, **settings: Any) -> dict[str, Any]:
    return {"condition_reader": LabelMapReader(*arguments, **settings)}


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("unconditional", {}, None),
        ("unconditional", {"channels": 1}, "of 3 channels, and the images are pictures of 1"),
        ("unconditional", {"label_maps": True}, "the images are label maps"),
        ("unconditional", {"resolution": (8, 8)}, r"8×8.*data.resolution=\[4,6\], or leave it out"),
        ("classes", {}, None),
        ("unnamed", {"class_names": ["owls", "dogs"]}, None),
        ("classes", {"num_classes": None, "class_names": []}, "no classes and not 2"),
        ("unnamed", {"num_classes": 3, "class_names": [*NAMES, "owls"]}, "3 classes and not 2"),
        ("classes", {"class_names": ["cats", "wolves"]}, "class 1 is 'wolves' and not 'dogs'"),
        ("maps", reads(4, unlabelled=0), None),
        ("maps", {}, "data=paired"),
        (
            "maps",
            {"condition_reader": PictureReader()},
            "label maps of 4 channels, and the images are pictures",
        ),
        # three classes are as many channels as red, green and blue
        ("pictures", reads(3), "the images are label maps of 3"),
        ("maps", reads(4), UNLABELLED),
        ("maps", reads(4, unlabelled=None), UNLABELLED),
        ("maps", reads(4, unlabelled=0, unlabelled_class=1), UNLABELLED),
    ],
)
def test_data_must_be_like_the_training_data(
    model: str, changes: dict[str, Any], message: str | None
) -> None:
    generator = MODELS[model]()
    with expect_error(message):
        assert check_data(generator, data(**changes)) is generator.tokenizer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"class_names": ["cats", "owls"]}, "class 1 is 'owls' and not 'dogs'"),
        ({"num_classes": 3}, "3 classes and not 2"),
        ({"image_channels": 1}, "1 channels"),
    ],
)
def test_classifier_must_have_the_classes_of_the_data(
    changes: dict[str, Any], message: str | None
) -> None:
    settings: dict[str, Any] = {"num_classes": 2, "image_channels": 3, "resolution": 16, **changes}
    with expect_error(message):
        check_classifier(ImageClassifier(**settings), data())


class Stream:
    """Sixteen images of two classes in blocks of four; `read` are the numbers of those read."""

    block = 4

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 16

    def label(self, index: int) -> int:
        return index % 2

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        self.read.append(key[0])
        return {"images": torch.zeros(3, 8, 8), "labels": self.label(key[0])}


def test_streams_are_read_in_order(tmp_path: Path) -> None:
    """A stream would start again for an image further back."""
    stream: Any = Stream()
    numbers = choose_images(stream, 8, seed=0)
    assert list(numbers) == sorted(numbers) and sum(number % 2 for number in numbers) == 4
    module = data(train_dataset=stream, num_workers_for=lambda _: 0)
    training = ClassifierTraining(num_steps=2, batch_size=8, base_channels=2)
    train_on_real(module, training, torch.device("cpu"), tmp_path / "classifier")
    assert sorted(stream.read) == list(range(16)) != stream.read
    assert [number // 4 for number in stream.read] == sorted(number // 4 for number in stream.read)
