"""Networks whose features are compared: each gives what its own library's code gives."""

from pathlib import Path

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torchvision.transforms import v2

from taming.evaluation import FeatureExtractor, load_feature_network
from taming.evaluation.features import FeatureNetwork
from taming.runtime.errors import MissingPathError, UserError

NORMALIZE = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def images(side: int) -> Tensor:
    """Returns two pictures in [-1, 1], of 8 bits."""
    pixels = torch.randint(0, 256, (2, 3, side, side), generator=torch.Generator().manual_seed(0))
    return pixels / 127.5 - 1


def save(network: nn.Module, path: Path, **more: Tensor) -> Path:
    torch.save({**network.state_dict(), **more}, path)
    return path


def check(features: FeatureNetwork, expected: Tensor, pictures: Tensor) -> None:
    """The features are as expected, alike under autocast, and of a width that is known."""
    found = features(pictures)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert features.num_features == found.shape[1]
    assert list(features.parameters()) == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(features(pictures), found)
    assert len(features.digest) == 64


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_a_classifier_of_torchvision(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]
    received: list[Tensor] = []
    last.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    weights = save(network, tmp_path / "weights.pth")
    features = load_feature_network(backbone=name, weights=weights, resolution=64)
    pictures = images(64)
    with torch.no_grad():
        network(NORMALIZE((pictures + 1) / 2))
    check(features, received[0], pictures)


def test_dinov2(tmp_path: Path) -> None:
    name = "vit_small_patch14_dinov2"
    torch.manual_seed(0)
    published = timm.create_model(name, num_classes=0)  # positions of images at 518×518
    weights = save(published, tmp_path / "dinov2.pth", mask_token=torch.zeros(1, 384))
    small = timm.create_model(name, num_classes=0, img_size=56).eval()
    positions = timm.layers.resample_abs_pos_embed(published.pos_embed, (4, 4))
    small.load_state_dict({**published.state_dict(), "pos_embed": positions})
    pictures = images(56)
    with torch.no_grad():
        expected = small(NORMALIZE((pictures + 1) / 2))
    check(load_feature_network(backbone=name, weights=weights, resolution=56), expected, pictures)


def test_inception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    torch.save(inception_weights(monkeypatch), tmp_path / "inception.pth")
    features = load_feature_network(backbone="inception", weights=tmp_path / "inception.pth")
    own = FeatureExtractorInceptionV3(
        "own", ["2048", "logits_unbiased"], str(tmp_path / "inception.pth")
    )
    pictures = images(40)
    pixels = ((pictures + 1) * 127.5).round().to(torch.uint8)
    with torch.no_grad():
        expected, logits = own(pixels)
    check(features, expected, pictures)
    torch.testing.assert_close(features.logits(expected), logits, rtol=1e-4, atol=1e-4)
    assert features.is_inception


def inception_weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Returns torch-fidelity's network's own untrained weights."""
    kept: dict[str, Tensor] = {}

    def keep(self: nn.Module, *_: object, **__: object) -> None:
        kept.update(self.state_dict())

    with monkeypatch.context() as patch:
        patch.setattr(FeatureExtractorInceptionV3, "load_state_dict", keep)
        patch.setattr(torch, "load", lambda *_, **__: {})
        FeatureExtractorInceptionV3("untrained", ["2048"], "none.pth")
    return kept


@pytest.mark.parametrize(
    "name",
    ["inception", "resnet18", "vit_small_patch14_dinov2", "resnet10t", "test_vit", "test_convnext"],
)
def test_a_file_of_another_network(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="does not exist"):
        load_feature_network(backbone=name, weights=tmp_path / "none.pth")
    path = save(nn.Linear(2, 2), tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other\.pth"):
        load_feature_network(backbone=name, weights=path)


@pytest.mark.parametrize(("name", "resolution"), [("vit_b_16", 64), ("squeezenet1_0", 64)])
def test_a_network_that_has_no_such_features(name: str, resolution: int, tmp_path: Path) -> None:
    """One takes images of 224 pixels only, the other has no last linear layer."""
    path = save(torchvision.models.get_model(name, weights=None), tmp_path / "weights.pth")
    with pytest.raises(UserError, match=rf"{name} cannot be used with .*resolution={resolution}"):
        load_feature_network(backbone=name, weights=path, resolution=resolution)


def test_an_unknown_network(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resnet1 is unknown\. Give squeezenet1_1, .* resnet50"):
        load_feature_network(backbone="resnet1", weights=tmp_path / "none.pth")
    with pytest.raises(UserError, match=r"inception is unknown\. .* or, in evaluate.py, inception"):
        FeatureExtractor(backbone="inception", weights=tmp_path / "none.pth")
