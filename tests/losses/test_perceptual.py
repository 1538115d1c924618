import urllib.error
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn

from taming.losses import Backbone, FeatureLoss, FrozenNetwork, LPIPSLoss
from taming.losses.perceptual import unit_length
from taming.runtime.errors import MissingPathError, UserError

SQUEEZENET = "weights/squeezenet1_1_imagenet_features.safetensors"


def images(channels: int = 3, side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(2, channels, side, side, generator=generator) * 2 - 1
    second = torch.rand(2, channels, side, side, generator=generator) * 2 - 1
    return first, second


@pytest.fixture
def random_weights(tmp_path: Path) -> Path:
    """Random weights of a SqueezeNet in torchvision's key names."""
    torch.manual_seed(0)
    path = tmp_path / "squeezenet.safetensors"
    save_file(torchvision.models.squeezenet1_1(weights=None).state_dict(), path)
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory instead of torchvision's downloads, and no network."""

    def no_network(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("Name or service not known")

    path = tmp_path / "hub"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    return path


# --- a frozen network ---------------------------------------------------------------------------


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.frozen = FrozenNetwork(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))


def test_a_frozen_network_is_not_trained() -> None:
    module = Trained()
    assert set(module.state_dict()) == {"layer.weight", "layer.bias"}
    assert len(list(module.parameters())) == 2
    module.train()
    assert not any(m.training for m in module.frozen.network.modules())
    x = torch.ones(3, 2, requires_grad=True)
    assert torch.equal(module.frozen(x), module.frozen(x))  # no dropout
    module.frozen(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in module.frozen.network.parameters())


def test_a_copy_shares_the_frozen_network_and_does_not_move_it() -> None:
    """A moving average deep-copies the training module, perhaps to another device."""
    module = Trained()
    copy = deepcopy(module).to(torch.float64)
    assert copy.frozen.network is module.frozen.network
    assert copy.layer.weight is not module.layer.weight
    x = torch.ones(3, 2)
    assert torch.equal(copy.frozen(x), module.frozen(x))  # only the copy's layer is float64
    assert set(copy.state_dict()) == set(module.state_dict())
    module.to(torch.float64)
    assert copy.frozen(x.double()).dtype == torch.float64


# --- LPIPS --------------------------------------------------------------------------------------


def test_missing_lpips_weights_without_network_give_one_clear_error(hub: Path) -> None:
    with pytest.raises(UserError) as caught:
        LPIPSLoss(backbone="alex")
    message = str(caught.value)
    assert str(hub / "checkpoints" / "alexnet-owt-7be5be79.pth") in message
    for part in ("https://", "Name or service not known", "by hand", "perceptual=none"):
        assert part in message


def test_lpips_loads_a_weights_file_from_the_cache(hub: Path) -> None:
    (hub / "checkpoints").mkdir(parents=True)
    torch.manual_seed(0)
    state = torchvision.models.alexnet(weights=None).state_dict()
    torch.save(state, hub / "checkpoints" / "alexnet-owt-7be5be79.pth")
    loss = LPIPSLoss(backbone="alex")
    loaded = loss.lpips.network.net.slice1[0].weight
    assert torch.equal(loaded, state["features.0.weight"])
    heads = loss.lpips.network.lin0.model[1].weight
    assert (heads >= 0).all()  # the published heads, which the package contains
    assert heads.std() > 0


@pytest.mark.parametrize("damage", [b"no weights", b"PK\x03\x04 the beginning of a zip"])
def test_damaged_lpips_weights_give_one_clear_error(hub: Path, damage: bytes) -> None:
    path = hub / "checkpoints" / "alexnet-owt-7be5be79.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    with pytest.raises(UserError, match=rf"{path} are damaged .* Delete that file"):
        LPIPSLoss(backbone="alex")


@pytest.mark.parametrize("backbone", ["vgg16", "alexnet", "squeezenet1_1"])
def test_the_smallest_image_of_each_network(backbone: str) -> None:
    side = Backbone.MIN_SIDES[backbone]
    with torch.device("meta"):
        network = getattr(torchvision.models, backbone)().features
        network = network[: max(Backbone.LAYERS[backbone]) + 1]
        assert network(torch.zeros(1, 3, side, side)).numel() > 0
        with pytest.raises(RuntimeError, match="too small"):
            network(torch.zeros(1, 3, side - 1, side - 1))


def test_lpips_with_random_weights(hub: Path) -> None:
    torch.manual_seed(0)
    loss = LPIPSLoss(backbone="alex", pretrained=False).train()
    first, second = images(side=64)
    assert not any(module.training for module in loss.lpips.network.modules())  # dropout off
    different = loss(first.requires_grad_(), second)
    assert different.shape == ()
    assert different.item() > 0
    assert loss(first, second).item() == different.item()
    assert loss(first, first).item() == 0.0
    different.backward()
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


@pytest.mark.parametrize("backbone", ["alex", "vgg"])
def test_lpips_equals_the_package(backbone: str, hub: Path) -> None:
    torch.manual_seed(0)
    loss = LPIPSLoss(backbone=backbone, pretrained=False)
    first, second = images(side=32)
    first.requires_grad_()
    values = [loss(first, second), loss.lpips.network(first, second).mean()]
    gradients = [torch.autograd.grad(value, first)[0] for value in values]
    assert values[0].item() == pytest.approx(values[1].item(), rel=1e-6)
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[1].norm()


def test_the_gradient_is_finite_where_all_features_are_0(hub: Path) -> None:
    features, target = torch.rand(2, 2, 5, 3, 3).unbind()
    features[:, :, 1, 1] = 0.0
    features.requires_grad_()
    (unit_length(features) - target).square().sum().backward()
    assert unit_length(features)[:, :, 1, 1].abs().max() == 0
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()

    loss = LPIPSLoss(backbone="alex", pretrained=False)
    first_layers = loss.lpips.network.net.slice1
    first_layers[1] = nn.Identity()  # a ReLU would stop a NaN
    with torch.no_grad():
        first_layers[0].bias.zero_()
    first, second = images(side=64)
    first[0, :, :32, :32] = loss.lpips.network.scaling_layer.shift.view(3, 1, 1)  # becomes 0
    for distance, finite in ((loss, True), (loss.lpips, False)):
        pixels = first.clone().requires_grad_()
        distance(pixels, second).mean().backward()
        assert pixels.grad is not None
        assert torch.isfinite(pixels.grad).all() == finite


def test_lpips_in_bf16_is_close_to_float32(hub: Path) -> None:
    torch.manual_seed(0)
    loss = LPIPSLoss(backbone="alex", pretrained=False)
    first, second = images(side=64)
    first.requires_grad_()
    value = loss(first, second)
    with torch.autocast("cpu", torch.bfloat16):
        in_bf16 = loss(first, second)
    assert in_bf16.dtype == torch.float32
    assert in_bf16.item() == pytest.approx(value.item(), rel=0.01)
    pair = [torch.autograd.grad(x, first)[0].flatten() for x in (value, in_bf16)]
    assert torch.cosine_similarity(*pair, dim=0) > 0.95


# --- features -----------------------------------------------------------------------------------


def reference(weights: Path, first: torch.Tensor, second: torch.Tensor) -> float:
    """The same distance from hooks on torchvision's model."""
    network = torchvision.models.squeezenet1_1(weights=None)
    network.load_state_dict(
        {k: v for k, v in load_file(weights).items() if k.startswith("features.")}, strict=False
    )
    network.eval()
    features: dict[int, list[torch.Tensor]] = {}
    for index in Backbone.LAYERS["squeezenet1_1"]:

        def record(module: nn.Module, args: Any, output: torch.Tensor, index: int = index) -> None:
            features.setdefault(index, []).append(output.clone())

        network.features[index].register_forward_hook(record)
    normalise = torchvision.transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.no_grad():
        for picture in (first, second):
            network.features(normalise((picture + 1) / 2))
    unit = nn.functional.normalize
    terms = [(unit(a) - unit(b)).square().sum(1).mean().item() for a, b in features.values()]
    return sum(terms) / len(terms)


def test_the_feature_distance_equals_torchvisions_network(random_weights: Path) -> None:
    first, second = images()
    loss = FeatureLoss(backbone="squeezenet1_1", weights=random_weights)
    expected = reference(random_weights, first, second)
    assert loss(first, second).item() == pytest.approx(expected, rel=1e-4)
    assert loss(first, first).item() == 0.0


def test_trained_features_react_more_to_blur_than_to_brightness(shared: Path) -> None:
    weights = shared / SQUEEZENET
    if not weights.is_file():
        pytest.skip(f"needs {weights}")
    loss = FeatureLoss(backbone="squeezenet1_1", weights=weights)
    picture, _ = images(side=64)
    picture = nn.functional.interpolate(picture[:, :, :16, :16], 64, mode="bilinear")
    texture = (picture + 0.3 * torch.randn(picture.shape)).clamp(-1, 1)
    blurred = torchvision.transforms.functional.gaussian_blur(texture, [7, 7], [3.0, 3.0])
    assert 0 < loss(texture + 0.02, texture).item() < loss(blurred, texture).item() < 4
    assert loss(blurred, texture).item() == pytest.approx(
        reference(weights, blurred, texture), rel=1e-4
    )


def test_the_feature_network_is_frozen(random_weights: Path) -> None:
    loss = FeatureLoss(backbone="squeezenet1_1", weights=random_weights).train()
    first, second = images()
    loss(first.requires_grad_(), second.requires_grad_()).backward()
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    assert second.grad is None  # the images are constants
    assert list(loss.parameters()) == []


def test_feature_losses_take_grey_images_and_change_dtype(random_weights: Path) -> None:
    loss = FeatureLoss(backbone="squeezenet1_1", weights=random_weights)
    first, second = images(1)
    grey = loss(first, second).item()
    colour = loss(first.expand(-1, 3, -1, -1), second.expand(-1, 3, -1, -1)).item()
    assert grey == colour
    loss.to(torch.float64)
    assert loss(first.double(), second.double()).item() == pytest.approx(grey, rel=1e-4)


def test_weights_from_a_pth_file(random_weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(load_file(random_weights), path)
    first, second = images()
    values = [
        FeatureLoss(backbone="squeezenet1_1", weights=weights)(first, second).item()
        for weights in (path, random_weights)
    ]
    assert values[0] == values[1]


def test_wrong_feature_weights_give_clear_errors(random_weights: Path, tmp_path: Path) -> None:
    def build(path: Path) -> None:
        FeatureLoss(backbone="squeezenet1_1", weights=path)

    with pytest.raises(MissingPathError, match=r"nowhere\.safetensors does not exist"):
        build(tmp_path / "nowhere.safetensors")
    with pytest.raises(
        UserError, match=r"'resnet50' is unknown\. Choose one of squeezenet1_1, vgg16"
    ):
        FeatureLoss(backbone="resnet50", weights=random_weights)
    state = load_file(random_weights)
    path = tmp_path / "misfit.safetensors"
    save_file({k: v for k, v in state.items() if k != "features.0.weight"}, path)
    with pytest.raises(UserError, match=r"to another network: .*0\.weight"):
        build(path)
    for name in ("broken.safetensors", "broken.pth"):
        (tmp_path / name).write_bytes(b"not weights at all")
        with pytest.raises(UserError, match="is damaged or belongs"):
            build(tmp_path / name)
