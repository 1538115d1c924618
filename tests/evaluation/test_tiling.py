import pytest
import torch
from tiny_models import tiny_vqgan

from taming.evaluation.tiling import reconstruct_tiled, tile_starts, tile_weights


class Recorder(torch.nn.Module):
    """In the place of a model: returns what `answer` makes of each tile, and counts tiles."""

    downsample_factor = 4
    codebook_size = 2

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.answer = answer
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, images: torch.Tensor) -> object:
        self.shapes.append(tuple(images.shape[2:]))

        class Output:
            reconstructions = self.answer(images, len(self.shapes))
            quantizer = type("Quantizer", (), {"code_counts": torch.tensor([1, 0])})

        return Output


@pytest.mark.parametrize(
    ("length", "tile", "overlap", "expected"),
    [
        (32, 32, 8, [0]),
        (24, 32, 8, [0]),
        (56, 32, 8, [0, 24]),  # 32 + 24: exactly the overlap asked for
        (40, 32, 8, [0, 8]),
        (80, 32, 8, [0, 24, 48]),
        (84, 32, 8, [0, 16, 32, 52]),  # evenly: 17⅓ apart, rounded down to multiples of 4
        (64, 32, 0, [0, 32]),
    ],
)
def test_tiles_cover_a_side(length: int, tile: int, overlap: int, expected: list[int]) -> None:
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
    down = torch.tensor([7, 5, 3, 1]) / 8
    torch.testing.assert_close(weights[0], torch.cat([torch.ones(4), down]))
    torch.testing.assert_close(weights[1], torch.cat([down.flip(0), torch.ones(4)]))


def test_tiles_that_agree_give_the_image() -> None:
    model = Recorder(lambda images, number: images * 0.5)
    images = torch.rand(2, 3, 40, 52) * 2 - 1
    reconstructions, code_counts = reconstruct_tiled(model, images, 16, 4)
    torch.testing.assert_close(reconstructions, images * 0.5)
    assert set(model.shapes) == {(16, 16)}
    assert code_counts.tolist() == [len(model.shapes), 0]
    assert len(model.shapes) == 3 * 4


def test_tiles_that_disagree_leave_no_seam() -> None:
    # the second of two tiles is 1 brighter: the step becomes a ramp over the 8 pixels they share
    model = Recorder(lambda images, number: torch.full_like(images, float(number)))
    images = torch.zeros(1, 1, 16, 24)
    reconstructions, _ = reconstruct_tiled(model, images, 16, 8)
    row = reconstructions[0, 0, 5]
    assert row[:8].tolist() == [1.0] * 8
    assert row[16:].tolist() == [2.0] * 8
    steps = row.diff()
    assert steps.max().item() == pytest.approx(1 / 8, abs=1e-6)
    assert (steps >= 0).all()
    hard, _ = reconstruct_tiled(Recorder(model.answer), torch.zeros(1, 1, 16, 32), 16, 0)
    assert hard.diff().max().item() == 1.0  # without overlap there is one


def test_a_tile_of_full_size_is_no_tile() -> None:
    vqgan = tiny_vqgan(resolution=16, channel_multipliers=(1, 1, 1))
    images = torch.rand(2, 3, 24, 16) * 2 - 1
    with torch.no_grad():
        whole, counts = reconstruct_tiled(vqgan, images, None, 0)
        torch.testing.assert_close(whole, vqgan.decode(vqgan.encode(images)))
        for tile in (24, 32):
            tiled, tiled_counts = reconstruct_tiled(vqgan, images, tile, 8)
            assert torch.equal(tiled, whole)
            assert torch.equal(tiled_counts, counts)
        assert counts.sum() == 2 * 6 * 4
        # narrower than a tile in one direction only
        tiled, tiled_counts = reconstruct_tiled(vqgan, images, 16, 8)
        assert tiled.shape == images.shape
        assert tiled_counts.sum() == 2 * 2 * 4 * 4
        single = vqgan(images[:, :, 8:]).reconstructions
        torch.testing.assert_close(tiled[:, :, -8:], single[:, :, -8:])  # beyond the ramp
