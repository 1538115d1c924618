import numpy as np
import torch

from taming.pictures import as_palette, class_grid, pixel_grid, to_uint8


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
    grid = np.asarray(pixel_grid(to_uint8(images), num_columns=2))
    assert grid.shape == (2 * 50 + 2, 2 * 50 + 2, 3)
    assert [int(grid[y, x, 0]) for y, x in ((20, 20), (20, 70), (70, 20), (70, 70))] == [
        0,
        128,
        255,
        255,  # an empty place is paper
    ]


def test_small_images_are_enlarged_by_a_whole_factor() -> None:
    grid = pixel_grid(to_uint8(torch.zeros(1, 3, 20, 10)))
    assert grid.size == (50 + 4, 100 + 4)  # 10 pixels become 50, the first multiple above 48


def test_a_caption_of_two_lines() -> None:
    images = torch.ones(2, 3, 48, 48)
    grid = np.asarray(pixel_grid(to_uint8(images), captions=["cat\nof two", "dog"]))
    assert len(grid) == 48 + 2 * 14 + 2 * 2
    second = grid[2 + 14 : 2 + 28]
    assert second[:, 2:50].min() < 100
    assert second[:, 52:100].min() == 255  # the dog's has one


def test_the_generated_palette_is_pascal_vocs_and_its_colours_are_distinct() -> None:
    palette = as_palette(None, 256)
    assert palette.dtype == np.uint8
    assert len(np.unique(palette, axis=0)) == 256
    # as published: background, aeroplane, bicycle, bird, ..., person (15), ..., void (255)
    assert palette[[0, 1, 2, 3, 15, 255]].tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [192, 128, 128], [224, 224, 192]
    ]  # fmt: skip


def test_a_palette_of_ones_own() -> None:
    colors = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert as_palette(colors, 2).tolist() == colors[:2]


def test_label_maps_have_the_colours_of_their_classes() -> None:
    classes = torch.tensor([[[0, 1, 2]]])
    logits = torch.full((1, 3, 1, 3), -7.0).scatter_(1, classes.unsqueeze(1), -6.5)
    palette = as_palette([[9, 0, 0], [0, 9, 0], [0, 0, 9]], 3)
    assert to_uint8(logits, palette).tolist() == [[[[9, 0, 0], [0, 9, 0], [0, 0, 9]]]]
    assert to_uint8(logits).tolist() == [[[[0, 0, 0]] * 3]]  # three channels are a picture ...
    four = torch.cat([logits, logits - 1], 1)[:, :4]
    assert to_uint8(four, as_palette(None, 4)).tolist() == [[as_palette(None, 3).tolist()]]


def test_of_other_channels_the_first_are_shown() -> None:
    images = torch.linspace(-1, 1, 20).view(1, 5, 2, 2)
    assert np.array_equal(to_uint8(images), to_uint8(images[:, :3]))
    assert np.array_equal(to_uint8(images[:, :2]), to_uint8(images[:, :1]))


def test_a_grid_by_class_frames_what_is_mistaken() -> None:
    grey = np.full((14, 14, 3), 128, dtype=np.uint8)
    pixels = np.asarray(class_grid([grey] * 3, [1, 1, 0], [0, 1, 0], ["dark", "bright"]))
    side, gap, caption = 16 * 6, 2, 2 * 14  # a frame of 1 each side, enlarged to 96 or more
    assert pixels.shape == (2 * (side + caption + gap) + gap, 2 * (side + gap) + gap, 3)
    places = ((0, 0), (0, 1), (1, 0), (1, 1))
    colors = [
        tuple(pixels[gap + caption + row * (side + caption + gap), gap + column * (side + gap)])
        for row, column in places
    ]
    good, bad, empty = (60, 170, 90), (220, 50, 40), (255, 255, 255)
    assert colors == [good, empty, bad, good]
    # the class above each sample, under it what a mistaken one was taken for
    for line, expected in ((0, [True, False, True, True]), (1, [False, False, True, False])):
        for (row, column), written in zip(places, expected, strict=True):
            top = gap + line * 14 + row * (side + caption + gap)
            left = gap + column * (side + gap)
            assert bool(pixels[top : top + 14, left : left + side].min() < 100) is written
    inside = gap + caption + side // 2
    assert tuple(pixels[inside, gap + side // 2]) == (128, 128, 128)
    plain = np.asarray(class_grid([grey], [0], None, ["dark"]))
    assert plain.shape == (7 * 14 + 14 + 4, 7 * 14 + 4, 3)  # without a classifier no frame
