from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FolderMaker = Callable[..., Path]


def noise(seed: int, height: int = 24, width: int = 24) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def make_folder(tmp_path: Path) -> FolderMaker:
    """Makes a folder with PNGs of noise: `make_folder({"cat": 3, "dog": 2})`; "" for the top."""

    def make(
        counts: dict[str, int], name: str = "photos", size: tuple[int, int] = (24, 24)
    ) -> Path:
        root = tmp_path / name
        seed = 0
        for folder, count in counts.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                noise(seed, *size).save(root / folder / f"{i}.png")
                seed += 1
        return root

    return make
