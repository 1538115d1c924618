import numpy as np
import torch

from taming.evaluation import image_grid, reconstruction_grid, to_uint8


def test_black_grey_and_white() -> None:
    images = torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0]).view(1, 1, 1, 5)
    pixels = to_uint8(images)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (1, 1, 5, 3)
    assert pixels[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255]
    assert (pixels == pixels[..., :1]).all()  # one channel becomes grey


def test_bytes_survive_the_round_trip() -> None:
    values = torch.arange(256).view(1, 1, 16, 16)
    assert to_uint8(values / 127.5 - 1)[..., 0].flatten().tolist() == list(range(256))


def test_a_grid_places_images_row_by_row() -> None:
    images = torch.linspace(-1, 1, 3).view(3, 1, 1, 1).expand(-1, 3, 48, 48)
    grid = np.asarray(image_grid(images, num_columns=2))
    assert grid.shape == (2 * 50 + 2, 2 * 50 + 2, 3)
    assert [int(grid[y, x, 0]) for y, x in ((20, 20), (20, 70), (70, 20), (70, 70))] == [
        0,
        128,
        255,
        255,  # an empty place is paper
    ]


def test_small_images_are_enlarged_by_a_whole_factor() -> None:
    grid = image_grid(torch.zeros(1, 3, 20, 10))
    assert grid.size == (50 + 4, 100 + 4)  # 10 pixels become 50, the first multiple above 48


def test_captions_take_their_own_line() -> None:
    images = torch.ones(2, 3, 48, 48)
    plain, captioned = image_grid(images), image_grid(images, captions=["cat", "dog"])
    assert captioned.height == plain.height + 14
    assert np.asarray(captioned)[:16].min() < 100  # ink


def test_reconstructions_stand_beside_their_images() -> None:
    images, reconstructions = -torch.ones(5, 3, 48, 48), torch.ones(5, 3, 48, 48)
    grid = np.asarray(reconstruction_grid(images, reconstructions))
    assert grid.shape == (2 * 50 + 2, 8 * 50 + 2, 3)
    assert [int(grid[20, 20 + 50 * column, 0]) for column in range(8)] == [0, 255] * 4
