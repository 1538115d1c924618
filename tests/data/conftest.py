from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tiny_data import write_pairs
from tiny_images import write_picture

from taming.data.shards import make_shards


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


@pytest.fixture
def folder(make_folder: Callable[..., Path]) -> Path:
    """Eleven PNGs of two classes."""
    return make_folder({"cat": 6, "dog": 5})


@pytest.fixture
def table_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Hugging Face's `datasets` convert into a temporary directory."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def shards(
    folder: Path, tmp_path: Path, table_cache: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Four shards with three of these PNGs each, the last with two."""
    monkeypatch.setattr("taming.data.shards.MEBI", 7500)
    summary = make_shards(folder, tmp_path / "shards", shard_size=1)
    assert summary[:3] == (11, 2, 4)
    return tmp_path / "shards"
