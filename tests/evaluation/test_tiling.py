from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_vqgan
from torch import Tensor

from taming.evaluation.tiling import reconstruct_tiled, tile_starts, tile_weights


class Recorder:
    """Stands for a model: `answer` maps a tile and its number to its reconstruction."""

    downsample_factor, codebook_size, device = 4, 2, torch.device("cpu")

    def __init__(self, answer: Callable[[Tensor, int], Tensor]) -> None:
        self.answer = answer
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, images: Tensor) -> SimpleNamespace:
        self.shapes.append(tuple(images.shape[2:]))
        quantizer = SimpleNamespace(code_counts=torch.tensor([1, 0]))
        reconstructions = self.answer(images, len(self.shapes))
        return SimpleNamespace(reconstructions=reconstructions, quantizer=quantizer)


@pytest.mark.parametrize(
    ("length", "tile", "overlap", "expected"),
    [
        (32, 32, 8, [0]),
        (24, 32, 8, [0]),
        (56, 32, 8, [0, 24]),  # 32 + 24: exactly the overlap
        (40, 32, 8, [0, 8]),
        (80, 32, 8, [0, 24, 48]),
        (84, 32, 8, [0, 16, 32, 52]),  # evenly: 17⅓ apart, rounded down to multiples of 4
        (64, 32, 0, [0, 32]),
    ],
)
def test_starts_of_tiles(length: int, tile: int, overlap: int, expected: list[int]) -> None:
    assert tile_starts(length, tile, overlap, factor=4) == expected


@pytest.mark.parametrize("factor", [1, 2, 8, 16])
def test_tiles_leave_no_gap(factor: int) -> None:
    for tile in range(factor, 5 * factor, factor):
        for overlap in range(tile // 2 + 1):
            for length in range(factor, 12 * factor, factor):
                starts = tile_starts(length, tile, overlap, factor)
                covered = {x for start in starts for x in range(start, start + tile)}
                assert covered >= set(range(length))
                assert len(set(starts)) == len(starts)
                if length >= tile:
                    assert max(covered) == length - 1
                assert all(start % factor == 0 for start in starts)


def test_weights_of_two_tiles_cross_linearly() -> None:
    weights = tile_weights([0, 4], 8)
    falling = torch.tensor([7, 5, 3, 1]) / 8
    torch.testing.assert_close(weights[0], torch.cat([torch.ones(4), falling]))
    torch.testing.assert_close(weights[1], torch.cat([falling.flip(0), torch.ones(4)]))


def test_tiles_that_agree_give_the_image() -> None:
    model = Recorder(lambda images, number: images * 0.5)
    images = torch.rand(2, 3, 40, 52) * 2 - 1
    reconstructions, code_counts = reconstruct_tiled(model, images, 16, 4)
    torch.testing.assert_close(reconstructions, images * 0.5)
    assert model.shapes == [(16, 16)] * (3 * 4)
    assert code_counts.tolist() == [3 * 4, 0]


def test_tiles_that_disagree_leave_no_seam() -> None:
    # the second of two tiles is 1 brighter: the step becomes a ramp over the 8 pixels they share
    model = Recorder(lambda images, number: torch.full_like(images, float(number)))
    row = reconstruct_tiled(model, torch.zeros(1, 1, 16, 24), 16, 8)[0][0, 0, 5]
    assert row[:8].tolist() == [1.0] * 8
    assert row[16:].tolist() == [2.0] * 8
    assert row.diff().max().item() == pytest.approx(1 / 8, abs=1e-6)
    assert (row.diff() >= 0).all()
    hard, _ = reconstruct_tiled(Recorder(model.answer), torch.zeros(1, 1, 16, 32), 16, 0)
    assert hard.diff().max().item() == 1.0  # without overlap there is a seam


def test_tiles_of_a_model() -> None:
    vqgan = tiny_vqgan(resolution=16, channel_multipliers=(1, 1, 1))
    images = torch.rand(2, 3, 24, 16) * 2 - 1
    with torch.no_grad():
        whole, counts = reconstruct_tiled(vqgan, images, None, 0)
        torch.testing.assert_close(whole, vqgan.decode(vqgan.encode(images)))
        for tile in (24, 32):  # of full size, so there is one tile
            tiled, tiled_counts = reconstruct_tiled(vqgan, images, tile, 8)
            assert torch.equal(tiled, whole)
            assert torch.equal(tiled_counts, counts)
        assert counts.sum() == 2 * 6 * 4
        # two tiles in one direction, one in the other
        tiled, tiled_counts = reconstruct_tiled(vqgan, images, 16, 8)
        assert tiled.shape == images.shape
        assert tiled_counts.sum() == 2 * 2 * 4 * 4
        last = vqgan(images[:, :, 8:]).reconstructions
        torch.testing.assert_close(tiled[:, :, -8:], last[:, :, -8:])  # beyond the ramp
