import pytest
import torch
import torch.nn.functional as F
from torch import nn

from taming.autoencoder.normalisation import GroupNorm


def layers() -> tuple[GroupNorm, nn.GroupNorm]:
    """Ours and PyTorch's with the same weights, under the same names."""
    torch.manual_seed(0)
    ours, plain = GroupNorm(4, 16), nn.GroupNorm(4, 16)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def passes(layer: nn.GroupNorm, x: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients of a normalisation with its activation."""
    x = x.clone().requires_grad_()
    output = F.silu(layer(x))
    generator = torch.Generator().manual_seed(1)
    output.backward(torch.randn(output.shape, generator=generator).to(x.dtype))
    return [output, x.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_pytorchs_in_the_inputs_dtype_and_format(
    dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    ours, plain = layers()
    x = (2 * torch.randn(3, 16, 6, 5) + 1).to(dtype).contiguous(memory_format=memory_format)
    expected = passes(plain, x.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = passes(ours, x)
    for tensor in found[:2]:  # the output, and what goes back
        assert tensor.dtype == dtype and tensor.is_contiguous(memory_format=memory_format)
    for tensor, other in zip(found, expected, strict=True):
        error = (tensor.float() - other).norm() / other.norm()
        assert error < (1e-6 if dtype == torch.float32 else 0.006)
