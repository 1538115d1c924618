"""Feature networks: each gives what the code of its own library gives."""

from pathlib import Path

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torchvision.transforms import v2

from taming.evaluation import (
    FeatureExtractor,
    FeatureNetwork,
    FrechetDistance,
    load_feature_network,
)
from taming.runtime.errors import MissingPathError, UserError

NORMALIZE = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def images(height: int, width: int | None = None) -> Tensor:
    """Returns two 8-bit images in [-1, 1]."""
    size = (2, 3, height, width or height)
    return torch.randint(0, 256, size, generator=torch.Generator().manual_seed(0)) / 127.5 - 1


def save(network: nn.Module, path: Path, **tensors: Tensor) -> Path:
    torch.save({**network.state_dict(), **tensors}, path)
    return path


def check(features: FeatureNetwork, expected: Tensor, batch: Tensor) -> None:
    """The features are as expected, also under autocast, and the network has no parameters."""
    actual = features(batch)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert features.num_features == actual.shape[1]
    assert list(features.parameters()) == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(features(batch), actual)
    assert actual.dtype == torch.float32
    assert len(features.digest) == 64


def test_squeezenet_averages_its_last_stage_over_the_image(squeezenet: Path) -> None:
    network = torchvision.models.squeezenet1_1(weights=None)
    network.load_state_dict(torch.load(squeezenet, weights_only=True))
    prepare = v2.Compose([v2.Resize((48, 48), antialias=True), NORMALIZE])
    batch = images(70, 90)
    with torch.no_grad():
        expected = network.eval().features(prepare((batch + 1) / 2)).mean((2, 3))
    features = load_feature_network(backbone="squeezenet1_1", weights=squeezenet, resolution=48)
    check(features, expected, batch)
    torch.testing.assert_close(features(batch), expected, rtol=1e-4, atol=1e-5)
    assert features.num_features == 512
    assert features.description == "squeezenet1_1, last stage, images at 48×48"
    grey = batch[:, :1]
    assert torch.equal(features(grey), features(grey.expand(-1, 3, -1, -1)))
    metric = FrechetDistance(features)  # keeps the network out of checkpoints
    assert dict(metric.state_dict()) == {} and list(metric.parameters()) == []


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_torchvision_classifier_gives_the_input_of_its_last_layer(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]
    received: list[Tensor] = []
    last.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    weights = save(network, tmp_path / "weights.pth")
    with torch.no_grad():
        network(NORMALIZE((images(64) + 1) / 2))
    features = load_feature_network(backbone=name, weights=weights, resolution=64)
    check(features, received[0], images(64))


def test_dinov2(tmp_path: Path) -> None:
    name = "vit_small_patch14_dinov2"
    torch.manual_seed(0)
    published = timm.create_model(name, num_classes=0)  # positions of images at 518×518
    weights = save(published, tmp_path / "dinov2.pth", mask_token=torch.zeros(1, 384))
    small = timm.create_model(name, num_classes=0, img_size=56).eval()
    positions = timm.layers.resample_abs_pos_embed(published.pos_embed, (4, 4))
    small.load_state_dict({**published.state_dict(), "pos_embed": positions})
    with torch.no_grad():
        expected = small(NORMALIZE((images(56) + 1) / 2))
    features = load_feature_network(backbone=name, weights=weights, resolution=56)
    check(features, expected, images(56))


def test_inception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "inception.pth"
    torch.save(inception_weights(monkeypatch), weights)
    features = load_feature_network(backbone="inception", weights=weights)
    own = FeatureExtractorInceptionV3("own", ["2048", "logits_unbiased"], str(weights))
    with torch.no_grad():
        expected, logits = own(((images(40) + 1) * 127.5).round().to(torch.uint8))
    check(features, expected, images(40))
    torch.testing.assert_close(features.logits(expected), logits, rtol=1e-4, atol=1e-4)
    assert features.is_inception
    assert features.weights == features.digest[:8]  # not torch-fidelity's file

    # ADM's spatial features: mixed_6/conv:0, the seventh block after the stem, its 1×1 branch,
    # after batch norm and ReLU, the first 7 channels, as (height, width, channels)
    blocks = [name for name, _ in own.named_children() if name.startswith("Mixed_")]
    assert blocks[6] == "Mixed_6d"
    received: list[Tensor] = []
    own.Mixed_6d.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    with torch.no_grad():
        own(((images(40) + 1) * 127.5).round().to(torch.uint8))
        branch = own.Mixed_6d.branch1x1
        channels_last = branch.bn(branch.conv(received[0])).relu().movedim(1, -1)
    assert channels_last.shape == (2, 17, 17, 192) and channels_last.max() > 0
    pooled, spatial = features.with_spatial(images(40))
    torch.testing.assert_close(pooled, features(images(40)))
    assert spatial.shape == (2, 2023)
    torch.testing.assert_close(spatial, channels_last[..., :7].reshape(2, -1), rtol=1e-4, atol=1e-4)


def inception_weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Returns the untrained weights of torch-fidelity's network."""
    weights: dict[str, Tensor] = {}
    with monkeypatch.context() as patch:
        patch.setattr(
            FeatureExtractorInceptionV3,
            "load_state_dict",
            lambda self, *_, **__: weights.update(self.state_dict()),
        )
        patch.setattr(torch, "load", lambda *_, **__: {})
        FeatureExtractorInceptionV3("untrained", ["2048"], "none.pth")
    return weights


@pytest.mark.parametrize(
    "name",
    ["inception", "resnet18", "vit_small_patch14_dinov2", "resnet10t", "test_vit", "test_convnext"],
)
def test_weights_of_another_network(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="does not exist"):
        load_feature_network(backbone=name, weights=tmp_path / "none.pth")
    path = save(nn.Linear(2, 2), tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other\.pth"):
        load_feature_network(backbone=name, weights=path)


@pytest.mark.parametrize(("name", "resolution"), [("vit_b_16", 64), ("squeezenet1_0", 64)])
def test_network_without_such_features(name: str, resolution: int, tmp_path: Path) -> None:
    """One takes only images of 224 pixels, the other has no linear layer."""
    path = save(torchvision.models.get_model(name, weights=None), tmp_path / "weights.pth")
    with pytest.raises(UserError, match=rf"{name} cannot be used with .*resolution={resolution}"):
        load_feature_network(backbone=name, weights=path, resolution=resolution)


def test_unknown_network(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resnet1 is unknown\. Give squeezenet1_1, .* resnet50"):
        load_feature_network(backbone="resnet1", weights=tmp_path / "none.pth")
    with pytest.raises(UserError, match=r"inception is unknown\. .* or, in evaluate.py, inception"):
        FeatureExtractor(backbone="inception", weights=tmp_path / "none.pth")
