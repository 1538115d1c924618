import json
from pathlib import Path

import pytest
import torch

from taming.errors import MissingPathError, UserError
from taming.evaluation import ImageClassifier, load_classifier


def small(**changes: object) -> ImageClassifier:
    torch.manual_seed(0)
    settings = {"num_classes": 3, "image_channels": 1, "resolution": 16, "base_channels": 4}
    return ImageClassifier(**{**settings, **changes}).eval()  # type: ignore[arg-type]


def test_logits_of_images_of_any_size() -> None:
    classifier = small(resolution=(16, 24))
    assert classifier(torch.zeros(5, 1, 16, 24)).shape == (5, 3)
    flat = torch.full((1, 1, 16, 24), 0.25)
    large = torch.full((1, 1, 64, 48), 0.25)  # resized, one grey is the same grey
    torch.testing.assert_close(classifier(large), classifier(flat))
    with pytest.raises(UserError, match=r"images \(b 1 H W\), got \(2, 3, 16, 24\)"):
        classifier(torch.zeros(2, 3, 16, 24))


def test_an_image_is_judged_alone_and_by_where_things_are() -> None:
    classifier = small()
    images = torch.rand(4, 1, 16, 16) * 2 - 1
    torch.testing.assert_close(classifier(images)[:1], classifier(images[:1]))
    upside_down = classifier(images.flip(2))
    assert not torch.allclose(upside_down, classifier(images), atol=1e-3)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    classifier = small(class_names=["cat", "dog", "owl"])
    classifier.train()(torch.rand(8, 1, 16, 16))  # other running means than the initial ones
    classifier.eval().save_pretrained(tmp_path / "classifier")
    loaded = load_classifier(tmp_path / "classifier")
    assert not loaded.training
    assert loaded.class_names == ("cat", "dog", "owl")
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(loaded(images), classifier(images))


def test_what_is_not_a_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="nowhere"):
        load_classifier(tmp_path / "nowhere")
    path = small().save_pretrained(tmp_path / "classifier")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_classes": 4}))
    with pytest.raises(UserError, match="do not fit"):
        load_classifier(path)
    (path / "config.json").write_text(json.dumps({**config, "kind": "vqgan"}))
    with pytest.raises(UserError, match="holds a vqgan, where a classifier is needed"):
        load_classifier(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 1}, "2 classes or more"),
        ({"resolution": 2}, "2×2"),
        ({"class_names": ["a"]}, "1 class names for 3"),
    ],
)
def test_sizes_out_of_range(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(**changes)
