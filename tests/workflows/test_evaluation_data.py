"""An evaluation refuses data and classifiers that are not like those of the training."""

from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import tiny_generator, tiny_vqgan

from taming.conditioning import CellClasses, ClassLabel, ImageCondition, Unconditional
from taming.data import LabelMapReader, PictureReader
from taming.errors import UserError
from taming.evaluation import ImageClassifier
from taming.workflows.evaluation_data import check_classifier, check_data

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
