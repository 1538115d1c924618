"""Images that some program has generated, read from an `.npz` file."""

from pathlib import Path

import numpy as np
import pytest

from taming.data import PictureReader, open_samples
from taming.runtime.errors import UserError

CLASSES = ["cat", "dog"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_compressed_or_not(save: object, tmp_path: Path) -> None:
    pixels = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
    save(tmp_path / "x.npz", arr_0=pixels, arr_1=[1, 0, 1])  # type: ignore[operator]
    samples = open_samples(tmp_path / "x.npz", PictureReader(), CLASSES)
    assert [samples.label(i) for i in range(len(samples))] == [1, 0, 1]
    assert np.array_equal(np.stack([np.asarray(samples.load(i)) for i in range(3)]), pixels)


@pytest.mark.parametrize("shape", [(3, 16), (3, 4, 4, 1, 3), (3, 4, 4, 4), (0, 4, 4, 3)])
def test_arrays_that_are_not_images(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.zeros(shape, dtype=np.uint8))
    with pytest.raises(UserError, match=r"arr_0 must be uint8 \(n, height, width, 3\)"):
        open_samples(tmp_path / "x.npz", PictureReader())


@pytest.mark.parametrize("labels", [[0, 2, 1], [0, 1], np.eye(3, 2, dtype=np.int64)])
def test_labels_that_are_not_classes(labels: object, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.zeros((3, 4, 4, 3), dtype=np.uint8), labels)
    with pytest.raises(UserError, match="arr_1 must have a class number, 0 to 1, for each of"):
        open_samples(tmp_path / "x.npz", PictureReader(), CLASSES)
