import copy
from typing import Any

import numpy as np
import pytest
import torch

from taming.quantizers import VectorQuantizer, codebook, vector
from taming.quantizers.codebook import random_rows


def make(**changes: Any) -> VectorQuantizer:
    torch.manual_seed(0)
    quantizer = VectorQuantizer(**{"codebook_size": 32, "codebook_dim": 4, **changes})
    torch.nn.init.normal_(quantizer.codebook)
    return quantizer


def latents(b: int = 2, d: int = 4, h: int = 3, w: int = 5, seed: int = 1) -> torch.Tensor:
    return torch.randn(b, d, h, w, generator=torch.Generator().manual_seed(seed))


def nearest(rows: np.ndarray, codebook: np.ndarray, cosine: bool) -> np.ndarray:
    if cosine:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        codebook = codebook / np.linalg.norm(codebook, axis=1, keepdims=True)
    return np.square(rows[:, None] - codebook[None]).sum(2).argmin(1)


@pytest.mark.parametrize("cosine", [False, True])
def test_indices_are_the_nearest_codes_in_float64(cosine: bool) -> None:
    quantizer = make(codebook_size=256, codebook_dim=8, cosine=cosine)
    z = latents(4, 8, 16, 16)
    rows = z.permute(0, 2, 3, 1).reshape(-1, 8).double().numpy()
    expected = nearest(rows, quantizer.codebook.detach().double().numpy(), cosine)
    indices = quantizer(z).indices
    assert indices.dtype == torch.int64
    assert np.array_equal(indices.flatten().numpy(), expected)


def test_losses_follow_the_paper_with_beta_on_the_commitment() -> None:
    quantizer = make(commitment_weight=0.25)
    z = latents().requires_grad_()
    output = quantizer(z)
    distance = (z - quantizer.lookup(output.indices)).square().mean().item()
    assert output.losses["codebook_loss"].item() == pytest.approx(distance, rel=1e-5)
    assert output.losses["commitment_loss"].item() == pytest.approx(0.25 * distance, rel=1e-5)


@pytest.mark.parametrize("cosine", [False, True])
def test_each_loss_moves_only_its_own_side(cosine: bool) -> None:
    quantizer = make(cosine=cosine)
    z = latents().requires_grad_()
    losses = quantizer(z).losses
    for name, sides in (
        ("codebook_loss", [quantizer.codebook, z]),
        ("commitment_loss", [z, quantizer.codebook]),
    ):
        expected, other = torch.autograd.grad(
            losses[name], sides, retain_graph=True, allow_unused=True
        )
        assert expected.abs().sum() > 0 and other is None


@pytest.mark.parametrize("entropy_weight", [0.0, 0.1])
def test_the_search_computes_distances_in_chunks(
    monkeypatch: pytest.MonkeyPatch, entropy_weight: float
) -> None:
    quantizer = make(cosine=True, entropy_weight=entropy_weight).eval()
    z = latents(3, 4, 7, 5)
    whole = quantizer(z)
    addmm, sizes = torch.addmm, []

    def record(*args: Any, **kwargs: Any) -> torch.Tensor:
        sizes.append(addmm(*args, **kwargs).numel())
        return addmm(*args, **kwargs)

    monkeypatch.setattr(torch, "addmm", record)
    monkeypatch.setattr(codebook, "CHUNK_DISTANCES", 330)  # 10 latents and a bit
    with torch.no_grad():
        output = quantizer(z)
    assert set(sizes) == {320, 160}  # 10 times 10 latents and 5
    assert sizes.count(160) == (2 if entropy_weight else 1)
    assert torch.equal(output.indices, whole.indices)
    assert torch.equal(output.quantized, whole.quantized)
    torch.testing.assert_close(output.loss, whole.loss)


def test_unused_codes_move_to_latents_and_used_ones_stay() -> None:
    quantizer = make(codebook_size=3, codebook_dim=1, revive_after=2).train()
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[0.0], [1.0], [100.0]]))
    quantizer.started.fill_(True)
    z = torch.tensor([0.1, 1.1]).view(1, 1, 1, 2)
    for expected in ([0, 0, 1], [0, 0, 2]):
        quantizer(z)
        assert quantizer.batches_unused.tolist() == expected
        assert quantizer.codebook.flatten().tolist() == [0.0, 1.0, 100.0]
    quantizer(z)
    assert quantizer.codebook[:2].flatten().tolist() == [0.0, 1.0]
    assert quantizer.codebook[2].item() in z.flatten().tolist()
    assert quantizer.batches_unused[2] == 0  # chosen: it is its latent's nearest


def searches(monkeypatch: pytest.MonkeyPatch, quantizer: VectorQuantizer, steps: int) -> list[int]:
    """The steps in which the quantizer draws latents for unused codes."""
    drawing_steps: list[int] = []
    with monkeypatch.context() as patch:
        for step in range(steps):
            patch.setattr(
                vector,
                "random_rows",
                lambda *args, s=step: drawing_steps.append(s) or random_rows(*args),
            )
            quantizer.set_step(step)
            quantizer(latents(seed=step))
    return drawing_steps


def test_only_some_steps_search_for_unused_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    revived = make(codebook_size=24, revive_after=50).train()
    assert searches(monkeypatch, revived, 21) == [0, 5, 10, 15, 20]
    small = make(codebook_size=64, revive_after=50).train()
    # 30 latents a batch: the start takes three batches unless codes come into use, and two at least
    start = [step for step in searches(monkeypatch, small, 21) if step % 5]
    assert start in ([1], [1, 2])
    never = make(codebook_size=24, init="data").train()
    assert searches(monkeypatch, never, 21) == [0]
    assert searches(monkeypatch, make().train(), 3) == []


@pytest.mark.parametrize("saved_at", [1, 3, 33, 34, 38])
def test_a_resumed_run_revives_the_same_codes(saved_at: int) -> None:
    settings: dict[str, Any] = {"codebook_size": 64, "revive_after": 30, "init": "kmeans"}

    def run(quantizer: VectorQuantizer, steps: range) -> dict[str, torch.Tensor]:
        for step in steps:
            torch.manual_seed(step)
            quantizer.train().set_step(step)
            quantizer(latents(seed=step) + (9 if step > 2 else 0))  # most codes are then unused
        return copy.deepcopy(quantizer.state_dict())

    first = make(**settings)
    saved = run(first, range(saved_at))
    expected = run(first, range(saved_at, 45))
    for resumed in (make(**settings), first):  # a new process, and one that steps back
        resumed.load_state_dict(saved)
        state = run(resumed, range(saved_at, 45))
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    if saved_at == 1:  # 30 latents for 64 codes
        assert (~saved["started"]).sum() == 34
    if saved_at == 34:  # step 33 had 30 latents for more unused codes; the rest waits for step 36
        assert (saved["batches_unused"] >= 30).any()
    assert (expected["codebook"] != saved["codebook"]).any()
