"""Pictures and label maps of noise."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def noise(*shape: int, seed: int = 0, most: int = 255) -> np.ndarray:
    """Whole numbers from 0 to `most`."""
    return np.random.default_rng(seed).integers(0, most, shape, dtype=np.uint8, endpoint=True)


def write_picture(path: Path, height: int = 16, width: int = 16, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(height, width, 3, seed=seed)).save(path)
    return path


def write_images(folder: Path, count: int, side: int = 16, seed: int = 0) -> Path:
    """`000.png` and so on, others for each seed."""
    for index in range(count):
        write_picture(folder / f"{index:03d}.png", side, side, 1000 * seed + index)
    return folder


def write_maps(folder: Path, maps: Iterable[np.ndarray]) -> Path:
    """Label maps (or other grey pictures) of these numbers, named as pictures are."""
    folder.mkdir(parents=True)
    for index, numbers in enumerate(maps):
        Image.fromarray(numbers).save(folder / f"{index:03d}.png")
    return folder


def write_pairs(folder: Path, count: int, side: int = 16, num_classes: int = 4) -> Path:
    """`image/NAME.png` and `label/NAME.png`."""
    write_images(folder / "image", count, side)
    write_maps(folder / "label", noise(count, side, side, most=num_classes - 1))
    return folder
