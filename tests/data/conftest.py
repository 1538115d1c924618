from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_data import write_pairs


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with PNGs of noise: `make_folder({"cat": 3, "dog": 2})`; "" for the top."""

    def make(
        counts: dict[str, int], name: str = "photos", size: tuple[int, int] = (24, 24)
    ) -> Path:
        seed = 0
        for folder, count in counts.items():
            (tmp_path / name / folder).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                rng = np.random.default_rng(seed)
                pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / name / folder / f"{i}.png")
                seed += 1
        return tmp_path / name

    return make


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Eight pictures and label maps of five classes, see `write_pairs`."""
    return write_pairs(tmp_path / "pairs")
