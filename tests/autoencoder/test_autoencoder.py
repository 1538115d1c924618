from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taming.autoencoder import AutoencoderShape, Decoder, Encoder
from taming.autoencoder.blocks import (
    AttentionBlock,
    Downsample,
    GroupNorm,
    ResidualBlock,
    Upsample,
    group_norm,
)


def shape(**changes: Any) -> AutoencoderShape:
    settings: dict[str, Any] = {
        "image_channels": 3,
        "resolution": 16,
        "base_channels": 8,
        "channel_multipliers": (1, 2, 2),
        "num_residual_blocks": 1,
        "attention_resolutions": (4,),
        "latent_channels": 6,
    }
    return AutoencoderShape(**{**settings, **changes})


def test_each_level_but_the_first_halves_and_the_decoder_doubles() -> None:
    images = torch.randn(2, 3, 16, 24)
    latents = Encoder(shape())(images)
    assert latents.shape == (2, 6, 4, 6)
    assert Decoder(shape())(latents).shape == images.shape


def test_attention_is_at_the_named_heights_only() -> None:
    def attention_heights(levels: Any, heights: list[int]) -> list[int]:
        pairs = zip(heights, levels, strict=True)
        return [h for h, level in pairs for layer in level if isinstance(layer, AttentionBlock)]

    two_levels = shape(num_residual_blocks=2, attention_resolutions=(8, 4))
    assert attention_heights(Encoder(two_levels).levels, [16, 8, 4]) == [8, 8, 4, 4]
    # one residual block more per level, from the smallest resolution to the largest
    assert attention_heights(Decoder(two_levels).levels, [4, 8, 16]) == [4, 4, 4, 8, 8, 8]


@pytest.mark.parametrize("layer", [Downsample(1), Upsample(1)])
def test_downsampling_pads_right_and_bottom_and_upsampling_repeats_pixels(layer: Any) -> None:
    pixel = 0 if isinstance(layer, Downsample) else 1  # top left of the window, or its middle
    with torch.no_grad():
        layer.conv.weight.zero_()[0, 0, pixel, pixel] = 1.0
        layer.conv.bias.zero_()
    x = torch.arange(16.0).view(1, 1, 4, 4)
    repeated = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(layer(x), x[:, :, ::2, ::2] if pixel == 0 else repeated)


def test_blocks_add_to_a_skip_connection() -> None:
    x = torch.randn(2, 8, 4, 4)
    residual, attention = ResidualBlock(8, 8), AttentionBlock(8)
    for parameter in (*residual.conv2.parameters(), *attention.attention.parameters()):
        nn.init.zeros_(parameter)
    assert torch.equal(residual(x), x) and torch.equal(attention(x), x)
    wider = ResidualBlock(8, 12)
    assert wider(x).shape == (2, 12, 4, 4) and wider.skip.weight.shape == (12, 8, 1, 1)


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 24), (8, 8), (7, 7), (37, 1)])
def test_group_norm_has_as_many_groups_as_divide_the_channels(channels: int, groups: int) -> None:
    assert group_norm(channels).num_groups == groups


def output_and_gradients(layer: nn.GroupNorm, x: Tensor) -> list[Tensor]:
    """Output and gradients of a normalisation with its activation."""
    x = x.clone().requires_grad_()
    output = F.silu(layer(x))
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    return [output, *torch.autograd.grad(output, [x, *layer.parameters()], upstream)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_equals_pytorchs_in_the_inputs_dtype_and_format(
    dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    torch.manual_seed(0)
    layer, reference = GroupNorm(4, 16), nn.GroupNorm(4, 16)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    reference.load_state_dict(layer.state_dict())
    x = (2 * torch.randn(3, 16, 6, 5) + 1).to(dtype).contiguous(memory_format=memory_format)
    expected = output_and_gradients(reference, x.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        actual = output_and_gradients(layer, x)
    for tensor in actual[:2]:  # the output and the gradient of the input
        assert tensor.dtype == dtype and tensor.is_contiguous(memory_format=memory_format)
    for tensor, other in zip(actual, expected, strict=True):
        error = (tensor.float() - other).norm() / other.norm()
        assert error < (1e-6 if dtype == torch.float32 else 0.006)
