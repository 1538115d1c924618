"""Held-out images of which the training images contain another version."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from taming.evaluation.near_duplicates import (
    NOISE,
    VERSIONS,
    NearDuplicates,
    Pair,
    find_pairs,
    thumbnails,
)

CPU = torch.device("cpu")


def pictures(count: int, seed: int, channels: int = 3) -> Tensor:
    """Blurred noise of 32×32 pixels, in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, 8, 8, generator=generator)
    return F.interpolate(coarse, 32, mode="bicubic").mul(0.4).clamp(-1, 1)


def as_jpeg(image: Tensor) -> Tensor:
    pixels = ((image + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=90)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 127.5 - 1


def search(held_out: Tensor, training: Tensor, mirror: bool = True) -> list[Pair]:
    return find_pairs(thumbnails(held_out), thumbnails(training), mirror=mirror, device=CPU)


def test_versions_of_an_image_are_found_and_others_are_not() -> None:
    training, held_out = pictures(400, 0), pictures(12, 1)
    held_out[0] = training[3]
    held_out[1] = training[4].flip(2)
    held_out[2] = as_jpeg(training[5])
    held_out[3] = (0.8 * training[6] + 0.1).clamp(-1, 1)  # darker
    pairs = search(held_out, training)
    assert [(pair.held_out, pair.training) for pair in pairs] == [(i, i + 3) for i in range(4)]
    assert [pair.mirrored for pair in pairs] == [False, True, False, False]
    assert pairs[0].similarity == pytest.approx(1)
    assert len(search(held_out, training, mirror=False)) == 3


def test_copies_among_few_images() -> None:
    training, held_out = pictures(5, 0), pictures(4, 1)
    held_out[2] = training[1].flip(2)
    assert [(pair.held_out, pair.training) for pair in search(held_out, training)] == [(2, 1)]


def test_many_training_images_may_be_versions_of_one() -> None:
    """As in a video: the nearest does not stand out."""
    training, held_out = pictures(400, 0), pictures(4, 1)
    training[:30] = (training[0] + 0.02 * pictures(30, 3)).clamp(-1, 1)
    held_out[3] = training[0] + 0.02 * pictures(1, 4)[0]
    (pair,) = search(held_out, training)
    assert pair.held_out == 3 and pair.training < 30 and pair.similarity > 0.95


def test_what_all_images_share_does_not_count() -> None:
    """All look alike, as trousers in a catalogue do, and differ in details."""
    shared = pictures(1, 5) * 1.5
    training, held_out = ((shared + 0.1 * pictures(n, n)).clamp(-1, 1) for n in (300, 8))
    held_out[2] = (training[9] + 0.01 * pictures(1, 7)[0]).clamp(-1, 1)
    far = (thumbnails(held_out).float()[0] - thumbnails(training).float()[0]).square().mean().sqrt()
    assert far < 15  # of 255 grey levels: pixels alone would call them all near-duplicates
    assert [(pair.held_out, pair.training) for pair in search(held_out, training)] == [(2, 9)]


def test_similarity_is_the_cosine_under_the_inverse_covariance() -> None:
    training, held_out = (thumbnails(pictures(n, n, channels=1)) for n in (40, 3))
    held_out[1] = training[5] // 10 * 10
    pairs = find_pairs(held_out, training, mirror=False, device=CPU)
    (pair,) = pairs
    both = torch.cat([held_out, training]).flatten(1).double().numpy()
    noise = NOISE**2 + VERSIONS**2 * 256 / 43
    inverse = np.linalg.inv(np.cov(both.T) + noise * np.eye(256))
    x, y = both[1] - both.mean(0), both[3 + 5] - both.mean(0)
    expected = x @ inverse @ y / np.sqrt((x @ inverse @ x) * (y @ inverse @ y))
    assert (pair.held_out, pair.training) == (1, 5)
    assert pair.similarity == pytest.approx(expected, abs=1e-4)


class Images:
    """Stands for a data set."""

    def __init__(self, images: Tensor, prefix: str) -> None:
        self.images, self.prefix = images, prefix

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"images": self.images[index]}

    def name(self, index: int) -> str:
        return f"{self.prefix}/{index}.png"


def near_duplicates(pairs: list[Pair], **changes: Any) -> NearDuplicates:
    images = {"held_out": Images(pictures(4, 0), "val"), "training": Images(pictures(9, 1), "a\nb")}
    settings: dict[str, Any] = {**images, "held_out_numbers": [3, 1, 0],
        "training_numbers": range(9), "left_out": False, **changes}  # fmt: skip
    return NearDuplicates(pairs, **settings)


def test_files_and_note(tmp_path: Path) -> None:
    result = near_duplicates([Pair(1, 8, 0.91, True), Pair(0, 2, 0.99, False)])
    table, picture = result.write(tmp_path)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1:] == [["val/3.png", "a\nb/2.png", "0.9900", "0"],
                        ["val/1.png", "a\nb/8.png", "0.9100", "1"]]  # fmt: skip
    with Image.open(picture) as image:
        assert image.width == 2 * (2 * 64 + 2) + 2  # two pairs of two images, enlarged
    note = result.note("test")
    assert note is not None and note.startswith("2 of 3 test images (66.7%) are near-duplicates of")
    assert "such as val/3.png of a" in note and "near_duplicates=leave_out" in note
    left_out = near_duplicates(result.pairs, left_out=True).note("test")
    assert left_out is not None and "and were left out, such as" in left_out
    assert result.numbers()["num_near_duplicates"] == 2
    # a later evaluation in the same directory
    nothing = near_duplicates([])
    assert nothing.write(tmp_path) == [] == list(tmp_path.iterdir())
    assert nothing.note("test") is None
    note = near_duplicates([], training_numbers=[1, 2]).note("validation")
    assert note == (
        "0 of 3 validation images (0.0%) are near-duplicates of 2 of 9 training images."
    )
