"""An evaluation refuses data and classifiers that are not like those of the training."""

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
    "free": lambda: tiny_generator(Unconditional()),
    "classes": lambda: tiny_generator(ClassLabel(2, class_names=NAMES)),
    "unnamed": lambda: tiny_generator(ClassLabel(2)),
    "maps": lambda: tiny_generator(
        ImageCondition(4, GRID, unlabelled=0), condition_tokenizer=CellClasses(4, 2, (4, 6))
    ),
    "pictures": lambda: tiny_generator(
        ImageCondition(8, GRID), condition_tokenizer=tiny_vqgan(seed=5)
    ),
}


def data(**changes: Any) -> Any:
    """Stands for a data module of two classes."""
    settings = {"label_maps": False, "channels": 3, "resolution": (4, 6), "num_classes": 2,
                "class_names": NAMES, "condition_reader": None, **changes}  # fmt: skip
    return SimpleNamespace(**settings)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("free", {}, None),
        ("free", {"channels": 1}, "of 3 channels, and the images are pictures of 1 channels"),
        ("free", {"label_maps": True}, "the images are label maps"),
        ("free", {"resolution": (8, 8)}, r"8×8.*data.resolution=\[4,6\], or leave it out"),
        ("classes", {}, None),
        ("unnamed", {"class_names": ["owls", "dogs"]}, None),
        ("classes", {"num_classes": None, "class_names": []}, "no classes and not 2"),
        ("unnamed", {"num_classes": 3, "class_names": [*NAMES, "owls"]}, "3 classes and not 2"),
        ("classes", {"class_names": ["cats", "wolves"]}, "class 1 is 'wolves' and not 'dogs'"),
        ("maps", {"condition_reader": LabelMapReader(4, unlabelled=0)}, None),
        ("maps", {}, "data=paired"),
        (
            "maps",
            {"condition_reader": PictureReader()},
            "label maps of 4 channels, and the images are pictures",
        ),
        # three classes are as many channels as red, green and blue
        ("pictures", {"condition_reader": LabelMapReader(3)}, "the images are label maps of 3"),
        *(
            ("maps", {"condition_reader": reader}, "unlabelled=0 data.label_map.unlabelled_class=n")
            for reader in (
                LabelMapReader(4),
                LabelMapReader(4, unlabelled=None),
                LabelMapReader(4, unlabelled=0, unlabelled_class=1),
            )
        ),
    ],
)
def test_data_are_like_those_of_the_training(
    model: str, changes: dict[str, Any], message: str | None
) -> None:
    generator = MODELS[model]()
    if message is None:
        assert check_data(generator, data(**changes)) is generator.tokenizer
    else:
        with pytest.raises(UserError, match=message):
            check_data(generator, data(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"class_names": ["cats", "owls"]}, "class 1 is 'owls' and not 'dogs'"),
        ({"num_classes": 3}, "3 classes and not 2"),
        ({"image_channels": 1}, "1 channels"),
    ],
)
def test_a_classifier_is_of_the_datas_classes(changes: dict[str, Any], message: str | None) -> None:
    settings: dict[str, Any] = {"num_classes": 2, "image_channels": 3, "resolution": 16, **changes}
    classifier = ImageClassifier(**settings)
    if message is None:
        check_classifier(classifier, data())
    else:
        with pytest.raises(UserError, match=message):
            check_classifier(classifier, data())


class Stream:
    """Sixteen images of two classes, kept four together; `read` are those that were."""

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


def test_a_stream_is_read_in_order(tmp_path: Path) -> None:
    """For an image further back it would begin anew."""
    stream: Any = Stream()
    numbers = choose_images(stream, 8, seed=0)
    assert list(numbers) == sorted(numbers) and sum(number % 2 for number in numbers) == 4
    module = data(train_dataset=stream, num_workers_for=lambda _: 0)
    training = ClassifierTraining(num_steps=2, batch_size=8, base_channels=2)
    train_on_real(module, training, torch.device("cpu"), tmp_path / "classifier")
    assert sorted(stream.read) == list(range(16)) != stream.read
    assert [number // 4 for number in stream.read] == sorted(number // 4 for number in stream.read)
