from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tiny_data import write_pairs
from tiny_images import write_picture


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with PNGs of noise: `make_folder({"cat": 3, "dog": 2})`; "" for the top."""

    def make(
        counts: dict[str, int], name: str = "photos", size: tuple[int, int] = (24, 24)
    ) -> Path:
        seeds = count()
        for folder, number in counts.items():
            for i in range(number):
                write_picture(tmp_path / name / folder / f"{i}.png", *size, seed=next(seeds))
        return tmp_path / name

    return make


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Eight pictures and label maps of five classes, see `write_pairs`."""
    return write_pairs(tmp_path / "pairs")
