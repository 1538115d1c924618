from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torchvision.transforms import v2

from taming.errors import MissingPathError, UserError
from taming.evaluation import FeatureExtractor, FrechetDistance


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Random weights of a SqueezeNet in torchvision's key names."""
    torch.manual_seed(0)
    path = tmp_path / "squeezenet.pth"
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), path)
    return path


def extractor(weights: Path, **settings: Any) -> FeatureExtractor:
    return FeatureExtractor(backbone="squeezenet1_1", weights=weights, **settings)


def test_features_are_torchvisions_averaged_over_the_image(weights: Path) -> None:
    network = torchvision.models.squeezenet1_1(weights=None)
    network.load_state_dict(torch.load(weights, weights_only=True))
    prepare = v2.Compose(
        [
            v2.Resize((48, 48), antialias=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    images = torch.rand(2, 3, 70, 90) * 2 - 1
    with torch.no_grad():
        expected = network.eval().features(prepare((images + 1) / 2)).mean((2, 3))
    features = extractor(weights, resolution=48)
    assert features.num_features == 512
    assert "squeezenet1_1" in features.description
    assert "48×48" in features.description
    torch.testing.assert_close(features(images), expected, rtol=1e-4, atol=1e-5)


def test_features_are_float32_under_autocast_and_take_grey(weights: Path) -> None:
    features = extractor(weights, resolution=32)
    grey = torch.rand(2, 1, 16, 16) * 2 - 1
    expected = features(grey.expand(-1, 3, -1, -1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(features(grey), expected)
    assert expected.dtype == torch.float32


def test_a_metric_keeps_the_network_out_of_checkpoints(weights: Path) -> None:
    metric = FrechetDistance(extractor(weights, resolution=32))
    assert dict(metric.state_dict()) == {}
    assert list(metric.parameters()) == []


@pytest.mark.parametrize("backbone", ["squeezenet1_1", "vgg16", "alexnet"])
def test_the_stated_widths_are_the_networks(
    backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.device("meta"):
        network = getattr(torchvision.models, backbone)(weights=None)
    monkeypatch.setattr(
        "taming.losses.backbone._read", lambda path, expected: expected
    )  # the weights do not matter
    features = FeatureExtractor(backbone=backbone, weights=tmp_path, resolution=32)
    assert features(torch.zeros(1, 3, 32, 32)).shape == (1, features.num_features)
    assert features.num_features == [
        m for m in network.features.modules() if isinstance(m, torch.nn.Conv2d)
    ][-1].out_channels * (2 if backbone == "squeezenet1_1" else 1)  # a Fire joins two


def test_what_does_not_fit_is_named(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match=r"nowhere\.pth does not exist.*frechet\.weights"):
        extractor(tmp_path / "nowhere.pth")
    with pytest.raises(UserError, match=r"resolution is 16: .* 32 or more"):
        extractor(weights, resolution=16)
