import numpy as np
import torch

from taming.pictures import as_palette, class_grid, pixel_grid, to_uint8


def test_levels_of_grey() -> None:
    images = torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0]).view(1, 1, 1, 5)
    pixels = to_uint8(images)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (1, 1, 5, 3)
    assert pixels[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255]
    assert (pixels == pixels[..., :1]).all()  # one channel becomes grey
    values = torch.arange(256).view(1, 1, 16, 16)  # bytes survive the round trip
    assert to_uint8(values / 127.5 - 1)[..., 0].flatten().tolist() == list(range(256))


def test_only_the_first_of_other_channels_are_shown() -> None:
    images = torch.linspace(-1, 1, 20).view(1, 5, 2, 2)
    assert np.array_equal(to_uint8(images), to_uint8(images[:, :3]))
    assert np.array_equal(to_uint8(images[:, :2]), to_uint8(images[:, :1]))


def test_grid_places_images_row_by_row() -> None:
    images = torch.linspace(-1, 1, 3).view(3, 1, 1, 1).expand(-1, 3, 48, 48)
    grid = np.asarray(pixel_grid(to_uint8(images), num_columns=2))
    assert grid.shape == (2 * 50 + 2, 2 * 50 + 2, 3)
    corners = [int(grid[y, x, 0]) for y, x in ((20, 20), (20, 70), (70, 20), (70, 70))]
    assert corners == [0, 128, 255, 255]  # an empty cell is white
    small = pixel_grid(to_uint8(torch.zeros(1, 3, 20, 10)))
    assert small.size == (50 + 4, 100 + 4)  # 10 pixels become 50, the first multiple above 48


def test_captions_of_two_lines() -> None:
    images = torch.ones(2, 3, 48, 48)
    grid = np.asarray(pixel_grid(to_uint8(images), captions=["cat\nof two", "dog"]))
    assert len(grid) == 48 + 2 * 14 + 2 * 2
    second = grid[2 + 14 : 2 + 28]
    assert second[:, 2:50].min() < 100
    assert second[:, 52:100].min() == 255  # the other caption has one line


def test_palettes() -> None:
    palette = as_palette(None, 256)
    assert palette.dtype == np.uint8
    assert len(np.unique(palette, axis=0)) == 256
    # as published by PASCAL VOC: background, aeroplane, bicycle, bird, person (15), void (255)
    assert palette[[0, 1, 2, 3, 15, 255]].tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [192, 128, 128], [224, 224, 192]
    ]  # fmt: skip
    colors = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert as_palette(colors, 2).tolist() == colors[:2]


def test_label_maps_have_the_colours_of_their_classes() -> None:
    classes = torch.tensor([[[0, 1, 2]]])
    logits = torch.full((1, 3, 1, 3), -7.0).scatter_(1, classes.unsqueeze(1), -6.5)
    palette = as_palette([[9, 0, 0], [0, 9, 0], [0, 0, 9]], 3)
    assert to_uint8(logits, palette).tolist() == [[[[9, 0, 0], [0, 9, 0], [0, 0, 9]]]]
    assert to_uint8(logits).tolist() == [[[[0, 0, 0]] * 3]]  # without a palette it is an image
    four = torch.cat([logits, logits - 1], 1)[:, :4]
    assert to_uint8(four, as_palette(None, 4)).tolist() == [[as_palette(None, 3).tolist()]]


def test_grid_by_class_frames_wrong_predictions() -> None:
    grey = np.full((14, 14, 3), 128, dtype=np.uint8)
    pixels = np.asarray(class_grid([grey] * 3, [1, 1, 0], [0, 1, 0], ["dark", "bright"]))
    side, gap, caption = 16 * 6, 2, 2 * 14  # with a frame of 1 per side, enlarged to 96
    height, width = side + caption + gap, side + gap
    assert pixels.shape == (2 * height + gap, 2 * width + gap, 3)
    cells = ((0, 0), (0, 1), (1, 0), (1, 1))
    corners = [(gap + row * height, gap + column * width) for row, column in cells]
    green, red, white = (60, 170, 90), (220, 50, 40), (255, 255, 255)
    frames = [tuple(pixels[top + caption, left]) for top, left in corners]
    assert frames == [green, white, red, green]
    # the caption has the class and, below it, a wrong prediction
    for line, has_text in ((0, [True, False, True, True]), (1, [False, False, True, False])):
        for (top, left), expected in zip(corners, has_text, strict=True):
            text = pixels[top + line * 14 : top + (line + 1) * 14, left : left + side]
            assert bool(text.min() < 100) is expected
    assert tuple(pixels[gap + caption + side // 2, gap + side // 2]) == (128, 128, 128)
    plain = np.asarray(class_grid([grey], [0], None, ["dark"]))
    assert plain.shape == (7 * 14 + 14 + 4, 7 * 14 + 4, 3)  # without a classifier no frame
