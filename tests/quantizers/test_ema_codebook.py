import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

from taming.quantizers import VectorQuantizer
from taming.quantizers.codebook import CodebookAverage


def batches(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def make(cosine: bool = False, decay: float = 0.8) -> VectorQuantizer:
    """A quantizer whose 12 codes start at latents, so that all are in use."""
    quantizer = VectorQuantizer(codebook_size=12, codebook_dim=3, cosine=cosine, ema_decay=decay)
    codes = batches(1)[0].permute(0, 2, 3, 1).reshape(-1, 3)[:12]
    if cosine:
        codes = torch.nn.functional.normalize(codes, dim=1)
    with torch.no_grad():
        quantizer.codebook.copy_(codes)
    assert quantizer.average is not None
    quantizer.average.restart(torch.ones(12, dtype=torch.bool), codes)
    return quantizer


@pytest.mark.parametrize("cosine", [False, True])
def test_codes_and_loss_equal_an_independent_implementation(cosine: bool) -> None:
    quantizer = make(cosine).train()
    reference = VectorQuantize(
        dim=3, codebook_size=12, decay=0.8, use_cosine_sim=cosine, threshold_ema_dead_code=0,
        commitment_weight=0.25, rotation_trick=False, accept_image_fmap=True,
    ).train()  # fmt: skip
    reference._codebook.embed.copy_(quantizer.codebook.detach()[None])
    reference._codebook.embed_avg.copy_(quantizer.codebook.detach()[None])
    for z in batches(6):
        output = quantizer(z)
        quantized, indices, loss = reference(z)
        assert torch.equal(output.indices, indices)
        torch.testing.assert_close(output.quantized, quantized)
        assert output.losses.keys() == {"commitment_loss"}
        assert output.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(quantizer.codebook.detach(), reference._codebook.embed[0])
    quantized, indices, _ = reference.eval()(z)
    output = quantizer.eval()(z)
    assert torch.equal(output.indices, indices)
    torch.testing.assert_close(output.quantized, quantized)


def test_after_k_steps_the_codes_have_their_closed_form() -> None:
    # with the same assignments each time, m_k = γ^k m_0 + (1 − γ^k) Σz and N_k likewise
    rows = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    indices, counts = torch.tensor([0, 0, 1]), torch.tensor([2, 1])
    start = torch.tensor([[0.5, 0.5], [-1.0, 2.0]])
    average, codes, decay, k = CodebookAverage(start, 0.9), start, 0.9, 7
    for _ in range(k):
        codes, _ = average.update(rows, indices, counts, codes)
    faded = decay**k
    sizes = faded + (1 - faded) * torch.tensor([2.0, 1.0])
    sums = faded * start + (1 - faded) * torch.tensor([[4.0, 0.0], [0.0, 5.0]])
    smoothed = (sizes + 1e-5) / (sizes.sum() + 2e-5) * sizes.sum()
    torch.testing.assert_close(average.sizes, sizes)
    torch.testing.assert_close(average.sums, sums)
    torch.testing.assert_close(codes, sums / smoothed[:, None])


def test_the_codebook_learns_without_gradient() -> None:
    quantizer = make().train()
    z = batches(1)[0].requires_grad_()
    before = quantizer.codebook.clone()
    output = quantizer(z)
    (output.quantized.sum() + output.loss).backward()
    assert not quantizer.codebook.requires_grad and quantizer.codebook.grad is None
    assert not torch.equal(quantizer.codebook, before)


def test_an_unused_code_stays_until_it_is_used_again() -> None:
    codes = torch.tensor([[0.0, 0.0], [0.6, 0.8]])
    average = CodebookAverage(codes, 0.99)
    rows, indices, counts = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), [4, 0]
    for _ in range(3000):  # 0.99^3000 is 1e-13
        codes, _ = average.update(rows, indices, torch.tensor(counts), codes)
    assert codes[1].norm().item() == pytest.approx(1.0, abs=0.011)
    once = (torch.tensor([[3.0, 4.0]]), torch.tensor([1]), torch.tensor([0, 1]))
    codes, _ = average.update(*once, codes)
    # Only this latent counts: N = 0.01, so the smoothing takes 0.1 %.
    torch.testing.assert_close(codes[1], torch.tensor([3.0, 4.0]), rtol=2e-3, atol=0)


def test_a_revived_code_restarts_its_average() -> None:
    quantizer = VectorQuantizer(
        codebook_size=2, codebook_dim=1, ema_decay=0.9, revive_after=1, init="uniform"
    ).train()
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[0.0], [100.0]]))
    z = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    quantizer(z)
    quantizer(z)  # the second code has been unused for one batch: it moves to a latent
    assert quantizer.average is not None
    new_code = quantizer.codebook[1].item()
    assert -0.1 <= new_code <= 1.1
    assert quantizer.average.sizes[1] == pytest.approx(0.9 + 0.1 * 1, abs=0.11)
    assert quantizer.average.sums[1].item() == pytest.approx(new_code, abs=0.11)
