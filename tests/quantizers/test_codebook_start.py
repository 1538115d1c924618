"""Initial codes from data, and k-means."""

from typing import Any

import pytest
import torch
from vector_quantize_pytorch.vector_quantize_pytorch import kmeans as reference_kmeans

from taming.quantizers import VectorQuantizer
from taming.quantizers.codebook import kmeans


def rows(n: int = 200, d: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def as_grid(rows: torch.Tensor) -> torch.Tensor:
    return rows.T[None, :, :, None]


@pytest.mark.parametrize("spherical", [False, True])
def test_kmeans_equals_an_independent_implementation(spherical: bool) -> None:
    points = rows()
    if spherical:
        points = torch.nn.functional.normalize(points, dim=1)
    start = points[:10]
    expected, _ = reference_kmeans(
        points[None], 10, 7, use_cosine_sim=spherical, sample_fn=lambda *_: start[None]
    )
    centres = kmeans(points, start, spherical=spherical, num_iterations=7)
    torch.testing.assert_close(centres, expected[0])


def test_a_centre_without_rows_stays() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0]])
    centres = kmeans(points, torch.tensor([[1.5], [50.0]]))
    assert centres.flatten().tolist() == [1.0, 50.0]


@pytest.mark.parametrize("cosine", [False, True])
def test_codes_start_at_the_centres_of_clusters(cosine: bool) -> None:
    torch.manual_seed(0)
    # four tight clusters in four directions, 50 latents each, 4 codes, a lucky draw of the start
    centres = torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, 0.0], [0.0, -3.0]])
    points = centres.repeat(50, 1) + 0.1 * rows(200, 2)
    distances = []
    for seed in range(8):
        torch.manual_seed(seed)
        quantizer = VectorQuantizer(codebook_size=4, codebook_dim=2, init="kmeans", cosine=cosine)
        quantizer.train()(as_grid(points))
        expected = centres / 3 if cosine else centres
        distances.append(torch.cdist(expected, quantizer.codebook).min(1).values.max().item())
    assert min(distances) < 0.1  # clusters of 50 with a spread of 0.1: means are within 0.015


@pytest.mark.parametrize("init", ["data", "kmeans"])
@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_codes_start_only_once(init: str, ema_decay: float | None) -> None:
    quantizer, resumed = (
        VectorQuantizer(codebook_size=8, codebook_dim=3, init=init, ema_decay=ema_decay)
        for _ in range(2)
    )
    quantizer.train()(as_grid(rows()))
    assert quantizer.started.all()
    resumed.load_state_dict(quantizer.state_dict())
    for each in (quantizer, resumed):
        before = each.codebook.detach().clone()
        each.train()(as_grid(rows(seed=1) + 100))
        changes = (each.codebook - before).norm(dim=1)
        if ema_decay is None:
            assert torch.equal(each.codebook, before)
        else:  # all latents chose one code
            assert (changes > 1).sum() == 1


@pytest.mark.parametrize("init", ["data", "kmeans"])
def test_more_codes_than_latents(init: str) -> None:
    torch.manual_seed(0)
    quantizer = VectorQuantizer(codebook_size=32, codebook_dim=3, init=init, cosine=True)
    points = torch.nn.functional.normalize(rows(20), dim=1)
    output = quantizer.train()(as_grid(points))
    torch.testing.assert_close(output.quantized, as_grid(points))  # a code for each latent
    assert (~quantizer.started).sum() == 12
    next_points = torch.nn.functional.normalize(rows(20, seed=1), dim=1)
    quantizer(as_grid(next_points))
    assert quantizer.started.all()
    distances = torch.cdist(quantizer.codebook.detach(), torch.cat([points, next_points]))
    assert distances.min(1).values.max() < 1e-3


def test_with_init_uniform_only_revival_moves_codes() -> None:
    settings: dict[str, Any] = {"codebook_size": 8, "codebook_dim": 3, "init": "uniform"}
    quantizer = VectorQuantizer(**settings, revive_after=2).train()
    before = quantizer.codebook.detach().clone()
    for num_moved in (0, 0, 1):
        quantizer(as_grid(rows(1) + 9))  # one latent a batch, far from all codes: one is used
        assert int((quantizer.codebook != before).any(1).sum()) == num_moved


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({}, False),
        ({"revive_after": 7}, True),
        ({"revive_after": 7, "init": "uniform"}, False),
        ({"init": "data"}, True),
        ({"init": "kmeans", "revive_after": 7}, True),
    ],
)
def test_which_settings_start_codes_at_latents(settings: dict[str, Any], waits: bool) -> None:
    quantizer = VectorQuantizer(codebook_size=2, codebook_dim=3, **settings).train()
    assert quantizer.started.tolist() == [not waits] * 2
    before = quantizer.codebook.detach().clone()
    quantizer(as_grid(rows()))
    assert torch.equal(quantizer.codebook, before) != waits
