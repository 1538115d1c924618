from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import changed, weights

import taming
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN


def make(**changes: Any) -> VQGAN:
    torch.manual_seed(0)
    config: dict[str, Any] = {
        "quantizer": {"kind": "vector", "codebook_size": 16, "codebook_dim": 4},
        "resolution": 16,
        "base_channels": 8,
        "channel_multipliers": [1, 2, 2],
        "num_residual_blocks": 1,
        "attention_resolutions": [4],
        "latent_channels": 8,
    }
    return VQGAN(**{**config, **changes})


def pictures(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


REVIVING = {"kind": "vector", "codebook_size": 16, "codebook_dim": 4, "revive_after": 2}


def test_shapes_of_every_step() -> None:
    vqgan = make()
    images = pictures(2, 3, 16, 24)
    assert (vqgan.downsample_factor, vqgan.grid_size, vqgan.codebook_size) == (4, (4, 4), 16)
    assert vqgan.encode_latents(images).shape == (2, 4, 4, 6)
    indices = vqgan.encode(images)
    assert (indices.shape, indices.dtype) == ((2, 4, 6), torch.int64)
    assert vqgan.decode(indices).shape == images.shape
    output = vqgan(images)
    assert output.reconstructions.shape == images.shape
    assert output.quantizer.indices.shape == (2, 4, 6)
    assert make(resolution=[16, 32]).grid_size == (4, 8)
    assert make(image_channels=1)(pictures(1, 1, 16, 16)).reconstructions.shape == (1, 1, 16, 16)


def test_decoding_the_indices_reconstructs_the_images() -> None:
    vqgan = make().eval()
    images = pictures(2, 3, 16, 16)
    with torch.no_grad():
        decoded, reconstructions = vqgan.decode(vqgan.encode(images)), vqgan(images).reconstructions
    assert (decoded - reconstructions).abs().max() < 1e-5 * reconstructions.abs().max()


def test_encode_latents_are_what_the_quantizer_receives() -> None:
    vqgan = make(
        quantizer={"kind": "vector", "codebook_size": 16, "codebook_dim": 4, "cosine": True}
    )
    images = pictures(1, 3, 16, 16)
    latents = vqgan.encode_latents(images)
    assert (latents.norm(dim=1) - 1).abs().max() > 0.01  # before any normalisation
    assert torch.equal(vqgan.quantizer(latents).indices, vqgan.encode(images))


@pytest.mark.parametrize("training", [True, False])
def test_encoding_is_deterministic_and_changes_nothing(training: bool) -> None:
    vqgan = make(dropout=0.5, quantizer=REVIVING).train(training)
    before = weights(vqgan)
    images = pictures(2, 3, 16, 16)
    assert torch.equal(vqgan.encode(images), vqgan.encode(images))
    assert not changed(vqgan, before)
    assert vqgan.training is training


def test_the_package_exports_its_two_classes() -> None:
    assert dir(taming) == ["ImageGenerator", "VQGAN", "__version__"]


def test_every_parameter_gets_a_gradient() -> None:
    vqgan = make()
    output = vqgan(pictures(2, 3, 16, 16))
    (output.reconstructions.square().mean() + sum(output.quantizer.losses.values())).backward()
    missing = [
        name for name, p in vqgan.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ]
    assert missing == []


def test_the_last_layer() -> None:
    vqgan = make()
    reconstructions = vqgan(pictures(1, 3, 16, 16)).reconstructions
    (gradient,) = torch.autograd.grad(reconstructions.sum(), vqgan.last_layer)
    assert gradient.shape == (3, 8, 3, 3)


def test_saving_and_loading(tmp_path: Path) -> None:
    vqgan = make(quantizer=REVIVING).train()
    vqgan(pictures(2, 3, 16, 16))
    vqgan.save_pretrained(tmp_path / "model")
    loaded = taming.VQGAN.from_pretrained(tmp_path / "model")
    assert not loaded.training
    assert loaded.config == vqgan.config
    images = pictures(2, 3, 16, 16)
    assert torch.equal(loaded(images).reconstructions, vqgan.eval()(images).reconstructions)
    assert loaded.to_saved().fingerprint() == vqgan.to_saved().fingerprint()


def test_label_maps_attribute(tmp_path: Path) -> None:
    cases = (3, False, False), (3, True, True), (12, False, False), (12, None, True)
    for channels, argument, expected in cases:
        vqgan = make(image_channels=channels, label_maps=argument)
        vqgan.save_pretrained(tmp_path / "model")
        assert VQGAN.from_pretrained(tmp_path / "model").label_maps is expected
        saved = vqgan.to_saved()
        saved.config = {k: v for k, v in saved.config.items() if k != "label_maps"}
        assert VQGAN.from_saved(saved).label_maps is (channels == 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_float_type(dtype: torch.dtype) -> None:
    vqgan = make().eval().to(dtype)
    images = pictures(1, 3, 16, 16).to(dtype)
    reconstructions = vqgan(images).reconstructions
    assert reconstructions.dtype == dtype
    assert torch.equal(vqgan.decode(vqgan.encode(images)), reconstructions)


def test_images_that_do_not_fit() -> None:
    vqgan = make()
    with pytest.raises(UserError, match=r"18×16 is not a multiple of .* factor 4"):
        vqgan.encode(pictures(1, 3, 18, 16))
    with pytest.raises(UserError, match=r"images \(b 3 H W\), not \(1, 1, 16, 16\)"):
        vqgan.encode(pictures(1, 1, 16, 16))
    with pytest.raises(UserError, match="18×18 is not a multiple"):
        make(resolution=18)
    assert vqgan.training  # an error leaves the mode as it was


def test_pixels_and_indices_of_a_wrong_dtype_or_range() -> None:
    vqgan = make()
    pixels = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    for call in (vqgan.encode, vqgan.encode_latents, vqgan):
        with pytest.raises(UserError, match=r"float images in \[-1, 1\], not torch.uint8"):
            call(pixels)
    last = vqgan.codebook_size - 1
    assert vqgan.decode(torch.full((1, 4, 4), last)).shape == (1, 3, 16, 16)
    shape = (1, 4, 4)
    for indices in (torch.full(shape, last + 1), torch.full(shape, -1), torch.zeros(shape)):
        with pytest.raises(UserError, match=f"must be integers from 0 to {last}"):
            vqgan.decode(indices)
