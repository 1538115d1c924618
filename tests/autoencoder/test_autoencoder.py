from typing import Any

import pytest
import torch

from taming.autoencoder import Decoder, Encoder
from taming.autoencoder.blocks import (
    AttentionBlock,
    Downsample,
    ResidualBlock,
    Upsample,
    group_norm,
)

SHAPE: dict[str, Any] = {
    "image_channels": 3,
    "resolution": 16,
    "base_channels": 8,
    "channel_multipliers": (1, 2, 2),
    "num_residual_blocks": 1,
    "attention_resolutions": (4,),
    "latent_channels": 6,
}


def test_each_level_but_the_first_halves_and_the_decoder_undoes_it() -> None:
    images = torch.randn(2, 3, 16, 24)
    latents = Encoder(**SHAPE)(images)
    assert latents.shape == (2, 6, 4, 6)
    assert Decoder(**SHAPE)(latents).shape == images.shape


def test_attention_stands_at_the_named_heights_only() -> None:
    def heights(levels: Any, sizes: list[int]) -> list[int]:
        found = []
        for size, level in zip(sizes, levels, strict=True):
            found += [size for layer in level if isinstance(layer, AttentionBlock)]
        return found

    shape = {**SHAPE, "num_residual_blocks": 2, "attention_resolutions": (8, 4)}
    assert heights(Encoder(**shape).levels, [16, 8, 4]) == [8, 8, 4, 4]
    # one residual block more per level, from the smallest resolution to the largest
    assert heights(Decoder(**shape).levels, [4, 8, 16]) == [4, 4, 4, 8, 8, 8]


def test_downsampling_pads_on_the_right_and_the_bottom_only() -> None:
    layer = Downsample(1)
    with torch.no_grad():
        layer.conv.weight.zero_()
        layer.conv.weight[0, 0, 0, 0] = 1.0  # takes the window's top left pixel
        layer.conv.bias.zero_()  # type: ignore[union-attr]
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(layer(x), x[:, :, ::2, ::2])


def test_upsampling_repeats_pixels() -> None:
    layer = Upsample(1)
    with torch.no_grad():
        layer.conv.weight.zero_()
        layer.conv.weight[0, 0, 1, 1] = 1.0  # identity
        layer.conv.bias.zero_()  # type: ignore[union-attr]
    x = torch.tensor([[[[1.0, 2.0]]]])
    assert torch.equal(layer(x), torch.tensor([[[[1.0, 1.0, 2.0, 2.0]] * 2]]).view(1, 1, 2, 4))


def test_blocks_keep_their_input_in_a_skip_connection() -> None:
    x = torch.randn(2, 8, 4, 4)
    residual, attention = ResidualBlock(8, 8), AttentionBlock(8)
    with torch.no_grad():
        for parameter in (*residual.conv2.parameters(), *attention.attention.parameters()):
            parameter.zero_()
    assert torch.equal(residual(x), x)
    assert torch.equal(attention(x), x)
    wider = ResidualBlock(8, 12)
    assert wider(x).shape == (2, 12, 4, 4)
    assert wider.skip.weight.shape == (12, 8, 1, 1)


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 24), (8, 8), (7, 7), (37, 1)])
def test_group_norm_takes_as_many_groups_as_divide(channels: int, groups: int) -> None:
    assert group_norm(channels).num_groups == groups
