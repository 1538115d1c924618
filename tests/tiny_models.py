"""Models of a few weights that nobody trained."""

import copy
from typing import Any

import torch
from torch import nn

from taming.conditioning import Conditioning
from taming.generation import ImageGenerator
from taming.tokenizer import VQGAN, Tokenizer
from taming.transformer import GPT, GPTConfig


def tiny_vqgan(seed: int = 0, **changes: Any) -> VQGAN:
    """Eight codes, images of 4×6 and downsample factor 2 unless changed."""
    torch.manual_seed(seed)
    settings = {
        "quantizer": {"kind": "vector", "codebook_size": 8, "codebook_dim": 4},
        "resolution": (4, 6),
        "base_channels": 8,
        "channel_multipliers": (1, 2),
        "num_residual_blocks": 1,
        "attention_resolutions": (),
        "latent_channels": 8,
    }
    vqgan = VQGAN(**{**settings, **changes})
    perturb(vqgan)
    return vqgan.eval()


def tiny_generator(
    conditioning: Conditioning,
    grid_size: tuple[int, int] = (2, 3),
    condition_tokenizer: Tokenizer | None = None,
    tokenizer: VQGAN | None = None,
    **changes: Any,
) -> ImageGenerator:
    tokenizer = tokenizer or tiny_vqgan(resolution=tuple(2 * side for side in grid_size))
    torch.manual_seed(1)
    shape = {**conditioning.transformer_config(grid_size), **changes}
    codebook_size = tokenizer.codebook_size
    transformer = GPT(
        GPTConfig(codebook_size=codebook_size, num_layers=1, num_heads=2, embed_dim=16, **shape)
    )
    perturb(transformer)
    return ImageGenerator(
        tokenizer, transformer, conditioning, grid_size, condition_tokenizer=condition_tokenizer
    ).eval()


def perturb(model: nn.Module) -> None:
    """Adds noise to the weights, or every image would be nearly the same grey."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of its weights and buffers."""
    return copy.deepcopy(module.state_dict())


def changed(module: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    """The names of weights and buffers that are others now."""
    now = module.state_dict()
    assert now.keys() == before.keys()
    return {name for name, tensor in now.items() if not torch.equal(tensor, before[name])}
