from collections.abc import Callable

import pytest
import torch
from vector_quantize_pytorch.vector_quantize_pytorch import rotate_to

from taming.quantizers import VectorQuantizer
from taming.quantizers.gradient import rotation, straight_through


def pair(n: int = 20, d: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    rows, codes = torch.randn(2, n, d, generator=torch.Generator().manual_seed(0))
    return rows.requires_grad_(), codes


@pytest.mark.parametrize("function", [straight_through, rotation])
def test_the_value_is_exactly_the_code(function: Callable) -> None:
    rows, codes = pair()
    assert torch.equal(function(rows, codes), codes)


def test_the_rotated_gradient_keeps_its_angle_and_relative_length() -> None:
    """The latent and its gradient enclose the same angle as the code and its gradient."""
    rows, codes = pair()
    upstream = torch.randn_like(codes)
    (gradient,) = torch.autograd.grad(rotation(rows, codes), rows, upstream)
    (reference,) = torch.autograd.grad(rotate_to(rows, codes), rows, upstream)
    torch.testing.assert_close(gradient, reference)
    scale = codes.norm(dim=1) / rows.norm(dim=1)
    torch.testing.assert_close(gradient.norm(dim=1), scale * upstream.norm(dim=1))
    cosine = torch.nn.functional.cosine_similarity
    torch.testing.assert_close(cosine(gradient, rows), cosine(upstream, codes))


def test_opposite_and_zero_latents_have_a_finite_gradient() -> None:
    codes = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    rows = torch.tensor([[-2.0, -4.0], [0.0, 0.0], [1.0, 1.0]]).requires_grad_()
    (gradient,) = torch.autograd.grad(rotation(rows, codes), rows, torch.ones(3, 2))
    assert torch.isfinite(gradient).all()
    # a reflection along the code, scaled by 1/2
    torch.testing.assert_close(gradient[0], torch.tensor([-0.1, -0.7]))


def test_the_gain_of_a_short_latent_is_bounded() -> None:
    lengths = torch.tensor([0.0, 1e-30, 1e-7, 1e-3, 0.099, 0.101, 1.0])
    rows = (lengths[:, None] * torch.tensor([0.6, 0.8])).requires_grad_()
    codes = torch.tensor([[0.0, 1.0]]).repeat(7, 1)
    upstream = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(rotation(rows, codes), rows, upstream)
    assert torch.equal(gradient[:5], upstream[:5])  # straight through below a tenth of the code
    gains = gradient.norm(dim=1) / upstream.norm(dim=1)
    torch.testing.assert_close(gains[5:], torch.tensor([1 / 0.101, 1.0]))


def test_the_quantizer_uses_the_chosen_gradient() -> None:
    gradients = {}
    z = torch.randn(1, 3, 4, 4).requires_grad_()
    upstream = torch.randn(1, 3, 4, 4)
    for name in ("straight_through", "rotation"):
        torch.manual_seed(0)
        quantizer = VectorQuantizer(codebook_size=8, codebook_dim=3, gradient=name)
        torch.nn.init.normal_(quantizer.codebook)
        (gradients[name],) = torch.autograd.grad(quantizer(z).quantized, z, upstream)
    rows, upstream_rows = (t.permute(0, 2, 3, 1).reshape(-1, 3) for t in (z, upstream))
    codes = quantizer.lookup(quantizer(z).indices).permute(0, 2, 3, 1).reshape(-1, 3)
    (expected,) = torch.autograd.grad(rotate_to(rows, codes.detach()), z, upstream_rows)
    torch.testing.assert_close(gradients["rotation"], expected)
    assert torch.equal(gradients["straight_through"], upstream)
