from typing import Any

import numpy as np
import pytest
from PIL import Image

from taming.data import ImageTransform
from taming.runtime.errors import UserError


def ramp(height: int, width: int) -> Image.Image:
    """Grey, each pixel its column number."""
    return Image.fromarray(np.tile(np.arange(width, dtype=np.uint8), (height, 1)))


def levels(image: Image.Image) -> np.ndarray:
    """`(c H W)`, 0 to 255."""
    pixels = np.asarray(image).astype(np.int64)
    return pixels.reshape(image.height, image.width, -1).transpose(2, 0, 1)


def test_shorter_side_takes_the_middle_and_keeps_the_aspect() -> None:
    transform = ImageTransform(resolution=4, resize="shorter_side", crop="center")
    columns = levels(transform(ramp(8, 20)))[0, 0]
    # columns 6 to 13 in pairs: 6.5, 8.5, ... away from the window's edges
    assert np.allclose(columns[1:3], [8.5, 10.5], atol=0.6)
    assert np.array_equal(columns, levels(transform(ramp(8, 20).crop((6, 0, 14, 8))))[0, 0])
    noise = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(transform(Image.fromarray(noise))), noise)  # of that size


def test_resizing_down_is_antialiased() -> None:
    stripes = Image.fromarray(np.tile(np.array([0, 255], dtype=np.uint8), (64, 32)))
    smooth = ImageTransform(resolution=16, resize="stretch", crop="none")(stripes)
    assert np.abs(levels(smooth) - 127.5).max() < 25  # stripes too fine to show become grey


def test_stretch_uses_the_whole_image() -> None:
    transform = ImageTransform(resolution=4, resize="stretch", crop="none")
    columns = levels(transform(ramp(4, 200)))[0, 0]
    assert np.allclose(columns, [25, 75, 125, 175], atol=8)


def test_enlarge_repeats_pixels_exactly() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    transform = ImageTransform(resolution=24, resize="enlarge", crop="none")
    expected = noise.repeat(3, 0).repeat(3, 1)
    assert np.array_equal(levels(transform(Image.fromarray(noise)))[0], expected)
    for size in ((7, 8), (9, 9), (48, 48), (8, 12)):
        with pytest.raises(UserError, match=rf"image of {size[0]}x{size[1]} .*multiple of"):
            transform.check_size(size)


def test_without_resizing_pixels_are_cut_out() -> None:
    transform = ImageTransform(resolution=4, resize="none", crop="center")
    assert levels(transform(ramp(10, 10)))[0, 0].tolist() == [3, 4, 5, 6]
    with pytest.raises(UserError, match=r"image of 3x9 pixels .* 4x4: .*too small to crop"):
        transform(ramp(3, 9))
    exact = ImageTransform(resolution=4, resize="none", crop="none")
    with pytest.raises(UserError, match="needs images of that size"):
        exact(ramp(5, 4))


def test_pad_comes_first() -> None:
    transform = ImageTransform(resolution=8, resize="enlarge", crop="none", pad=2)
    result = levels(transform(Image.new("L", (4, 4), 255)))[0]
    assert result[2:6, 2:6].min() == 255
    assert result.sum() == 255 * 16


def test_random_crops_stay_within_crop_scale_and_move() -> None:
    transform = ImageTransform(
        resolution=16, resize="shorter_side", crop="random", crop_scale=(0.5, 0.75)
    )
    lefts, widths = [], []
    for seed in range(300):
        columns = levels(transform(ramp(64, 64), np.random.default_rng(seed)))[0, 0]
        widths.append((columns[-2] - columns[1]) * 16 / 13)
        lefts.append(columns[0])
    assert 30 < min(widths) < 35 and 45 < max(widths) < 50
    assert min(lefts) < 3 and max(lefts) > 25
    # without random numbers: the largest window, in the middle
    assert levels(transform(ramp(64, 64)))[0, 0, 8] == 34


def test_flip_is_even() -> None:
    transform = ImageTransform(resolution=8, resize="none", crop="none", horizontal_flip=True)
    rng = np.random.default_rng(0)
    flipped = sum(int(levels(transform(ramp(8, 8), rng))[0, 0, 0]) == 7 for _ in range(200))
    assert 75 < flipped < 125


def test_shift_moves_and_fills() -> None:
    transform = ImageTransform(resolution=5, resize="none", crop="none", random_shift=2)
    dot = Image.new("RGB", (5, 5))
    dot.putpixel((2, 2), (255, 255, 255))
    rng = np.random.default_rng(0)
    places = set()
    for _ in range(300):
        result = levels(transform(dot, rng))[0]
        assert result.sum() == 255  # never lost, the rest is black
        places.add(int(result.argmax()))
    assert places == set(range(25))


@pytest.mark.parametrize(
    ("settings", "augments"),
    [
        ({"crop": "random"}, True),
        ({"horizontal_flip": True}, True),
        ({"random_shift": 1}, True),
        ({"pad": 2, "crop_scale": (0.5, 0.9)}, False),
    ],
)
def test_augments(settings: dict[str, Any], augments: bool) -> None:
    transform = ImageTransform(**{"resolution": 8, "resize": "none", "crop": "center", **settings})
    assert transform.augments is augments
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8))
    views = {transform(image, np.random.default_rng(seed)).tobytes() for seed in range(16)}
    assert (len(views) > 1) is augments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"condition_resolution": (8, 4)}, "condition_resolution is 8x4 and resolution 8x8"),
        ({"resize": "stretch"}, "set crop=none"),
        ({"crop": "none"}, "needs crop=center"),
        ({"crop_scale": (0.9, 0.5)}, "crop_scale"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageTransform(**{"resolution": 8, "resize": "shorter_side", "crop": "center", **settings})
