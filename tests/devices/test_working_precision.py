"""Under autocast nothing between two convolutions leaves bf16, or its memory format."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import DEVICE, fake_device
from tiny_models import tiny_vqgan
from torch import nn

from taming.discriminators import PatchDiscriminator
from taming.quantizers import Quantizer
from taming.tokenizer import VQGAN


def vqgan() -> VQGAN:
    return tiny_vqgan(resolution=16, attention_resolutions=[8]).train()


def discriminator(norm: Any) -> Callable[[], nn.Module]:
    return lambda: PatchDiscriminator(base_channels=8, num_layers=1, norm=norm)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vqgan": vqgan,
    **{norm: discriminator(norm) for norm in ("batch", "group", "actnorm")},
}


def layer_tensors(network: nn.Module, images: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """What goes into each layer and comes out of it, by its name."""
    actual: dict[str, list[torch.Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: actual.update({name: [*inputs, output]})

    for name, module in network.named_modules():
        if not list(module.children()) and not isinstance(module, nn.Identity | Quantizer):
            module.register_forward_hook(keep(name))
    network(images)
    return actual


def outside_bf16(actual: dict[str, list[torch.Tensor]]) -> list[str]:
    takes_float32 = ("encoder.conv_in", "post_quantizer", "layers.0")  # images and codes
    return [
        name
        for name, tensors in actual.items()
        for tensor in (tensors[1:] if name in takes_float32 else tensors)
        if tensor.dtype != torch.bfloat16
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_on_a_gpu_nothing_leaves_bf16(name: str) -> None:
    with fake_device(), torch.autocast("npy", torch.bfloat16):
        network = NETWORKS[name]().to(DEVICE)
        actual = layer_tensors(network, torch.zeros(2, 3, 16, 16, device=DEVICE))
    assert len(actual) > 5 and outside_bf16(actual) == []


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_leaves_bf16_or_the_memory_format(
    name: str, memory_format: torch.memory_format
) -> None:
    network = NETWORKS[name]().to(memory_format=memory_format)
    images = torch.randn(2, 3, 16, 16).contiguous(memory_format=memory_format)
    with torch.autocast("cpu", torch.bfloat16):
        actual = layer_tensors(network, images)
    assert len(actual) > 5 and outside_bf16(actual) == []
    maps = {name: [x for x in tensors if x.ndim == 4] for name, tensors in actual.items()}
    outside = [
        name
        for name, tensors in maps.items()
        if "attention" not in name
        for tensor in tensors
        if not tensor.is_contiguous(memory_format=memory_format)
    ]
    assert outside == []
