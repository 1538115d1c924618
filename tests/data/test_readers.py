import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from taming.data import BrokenImageError, ImageTransform, LabelMapReader, PictureReader
from taming.data.readers import MAX_PIXELS, header_size

GREEN = (0, 255, 0)


def saved(image: Image.Image, kind: str, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return file


def pixels(
    image: Image.Image, kind: str = "PNG", channels: Any = 3, **options: object
) -> np.ndarray:
    loaded = PictureReader(channels, GREEN).read(saved(image, kind, **options))
    assert loaded.mode == {1: "L", 3: "RGB"}[channels]
    return np.asarray(loaded)


def solid(mode: str, color: object) -> Image.Image:
    return Image.new(mode, (6, 4), color)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(kind: str) -> None:
    original = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(pixels(Image.fromarray(original), kind), original)


def test_grey_becomes_rgb_and_rgb_becomes_luma() -> None:
    assert (pixels(solid("L", 77)) == 77).all()
    assert (pixels(solid("RGB", (255, 0, 0)), channels=1) == 76).all()  # 0.299 * 255
    assert set(pixels(solid("1", 1), channels=1).flatten()) == {255}


def test_palette_and_its_transparent_entry() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert pixels(image).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert pixels(image, transparency=0).tolist() == [[[0, 255, 0], [40, 50, 60]]]
    assert pixels(image, transparency=b"\x00\xff").tolist() == [[[0, 255, 0], [40, 50, 60]]]


def test_transparency_shows_the_background_and_blends() -> None:
    assert (pixels(solid("RGBA", (255, 0, 0, 0))) == GREEN).all()
    assert (pixels(solid("RGBA", (255, 0, 0, 51))) == (51, 204, 0)).all()  # alpha one fifth
    assert (pixels(solid("LA", (255, 0))) == GREEN).all()
    assert (pixels(solid("LA", (255, 0)), channels=1) == 150).all()  # the background's luma
    assert (pixels(solid("RGBA", (255, 0, 0, 0)), "WEBP", lossless=True) == GREEN).all()


def test_cmyk_jpeg() -> None:
    result = pixels(solid("CMYK", (255, 0, 0, 0)), "JPEG")  # pure cyan
    assert np.abs(result.astype(int) - (0, 255, 255)).max() <= 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_cut_off(kind: str) -> None:
    samples = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    assert pixels(Image.fromarray(samples), kind, channels=1).tolist() == [[0, 1, 128, 255]]


def test_sixteen_bit_grey_with_a_transparent_value() -> None:
    samples = Image.fromarray(np.array([[0, 32896, 32897]], dtype=np.uint16))
    assert pixels(samples, transparency=32896).tolist() == [[[0, 0, 0], [*GREEN], [128, 128, 128]]]
    assert pixels(samples, channels=1, transparency=32896).tolist() == [[0, 150, 128]]


@pytest.mark.parametrize("channels", [1, 3])
def test_lab_tiff(channels: Any) -> None:
    assert pixels(solid("LAB", (255, 128, 128)), "TIFF", channels).min() >= 254  # white


def test_float_and_wide_integer_tiffs() -> None:
    halves = np.array([[0.0, 0.5, 1.0]], dtype=np.float32)
    assert pixels(Image.fromarray(halves), "TIFF", channels=1).tolist() == [[0, 128, 255]]
    with pytest.raises(BrokenImageError, match="unknown range"):
        pixels(Image.fromarray(np.array([[0, 1 << 20]], dtype=np.int32)), "TIFF")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 100, "subsampling": 0}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_exif_rotation_is_applied(kind: str, options: dict[str, Any]) -> None:
    image = Image.new("RGB", (6, 4))
    image.paste((255, 255, 255), (0, 0, 6, 2))  # top half white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to view: the top comes to the right
    file = saved(image, kind, exif=exif, **options)
    assert header_size(file) == (6, 4)
    upright = np.asarray(PictureReader(1, GREEN).read(file))
    assert upright.shape == (6, 4)
    assert upright[:, 2:].min() > 250
    assert upright[:, :2].max() < 5


@pytest.mark.parametrize("channels", [1, 3])
def test_tensors_are_black_to_white(channels: Any) -> None:
    reader = PictureReader(channels)
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    result = reader.tensor(reader.read(saved(ramp, "PNG")))
    assert (result.shape, result.dtype) == ((channels, 16, 16), torch.float32)
    assert torch.equal(result[0].flatten(), torch.arange(256) / 127.5 - 1)


def test_broken_files_say_why(tmp_path: Path) -> None:
    whole = saved(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG").getvalue()
    half = io.BytesIO(whole[: len(whole) // 2])
    assert header_size(half) == (64, 64)  # a header alone does not show it
    with pytest.raises(BrokenImageError, match="truncated"):
        PictureReader(3, GREEN).read(half)
    for content in (b"", b"not an image at all"):
        with pytest.raises(BrokenImageError, match=r"^not an image of a known format$"):
            PictureReader(3, GREEN).read(io.BytesIO(content))
        with pytest.raises(BrokenImageError, match=r"^not an image of a known format$"):
            header_size(io.BytesIO(content))


def test_a_header_is_read_without_the_rest() -> None:
    class Counted(io.BytesIO):
        count = 0

        def read(self, size: int | None = -1) -> bytes:
            content = super().read(size)
            self.count += len(content)
            return content

    content = saved(Image.effect_noise((1024, 1024), 100), "JPEG", quality=95).getvalue()
    file = Counted(content)
    assert header_size(file) == (1024, 1024)
    assert 0 < file.count < 5000 < len(content) / 100


def test_the_repr_that_identifies_token_caches() -> None:
    """A cache made by an earlier version is result as long as these stay as they are."""
    picture = "PictureReader(channels=1, background=(0, 127, 255))"
    assert repr(PictureReader(1, background=[0, 127, 255])) == picture
    maps = "LabelMapReader(num_classes=5, unlabelled=255, unlabelled_class=None)"
    assert repr(LabelMapReader(5, palette=[(0, 0, 0)] * 5)) == maps
    whole = ImageTransform(resolution=16, resize="stretch", crop="none")
    assert repr(whole) == (
        "ImageTransform(resolution=(16, 16), resize='stretch', crop='none', crop_scale=(1.0, 1.0), "
        "horizontal_flip=False, random_shift=0, pad=0, condition_resolution=None, draft=False)"
    )
    crops = ImageTransform(
        resolution=[12, 16], resize="shorter_side", crop="random", crop_scale=[0.5, 1],
        condition_resolution=[6, 8],
    )  # fmt: skip
    assert repr(crops) == (
        "ImageTransform(resolution=(12, 16), resize='shorter_side', crop='random', "
        "crop_scale=(0.5, 1), horizontal_flip=False, random_shift=0, pad=0, "
        "condition_resolution=(6, 8), draft=False)"
    )


@pytest.mark.parametrize("read", [PictureReader().read, header_size])
def test_only_formats_whose_decoders_start_nothing_are_opened(read: Any, tmp_path: Path) -> None:
    eps = tmp_path / "picture.jpg"  # Ghostscript's
    Image.new("RGB", (4, 4)).save(eps, "EPS")
    with pytest.raises(BrokenImageError, match="not an image of a known format"):
        read(eps)


def test_few_copies_exist_at_once() -> None:
    file = saved(Image.new("F", (1000, 1000), 0.5), "TIFF")
    tracemalloc.start()
    PictureReader().read(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6  # 4 MB, and as many


def test_an_image_is_measured_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = saved(Image.new("1", (9000, 8000)), "PNG")
    assert MAX_PIXELS < 9000 * 8000
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(BrokenImageError, match="9000×8000 pixels, and at most 64,000,000"):
        PictureReader().read(bomb)
