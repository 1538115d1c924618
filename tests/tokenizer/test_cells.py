from pathlib import Path

import pytest
import torch

from taming.runtime.errors import UserError
from taming.serialization import load_model_directory, save_model_directory
from taming.tokenizer import CellClasses

MAP = torch.tensor([[0, 0, 1, 2, 3, 3], [0, 1, 2, 1, 3, 0], [2, 2, 3, 2, 0, 1], [2, 2, 1, 0, 2, 3]])


def one_hot(classes: torch.Tensor, num_classes: int = 4) -> torch.Tensor:
    return torch.nn.functional.one_hot(classes, num_classes).movedim(-1, -3).float()


def test_encoding_takes_the_most_frequent_class_or_the_lowest_of_equals() -> None:
    cells = CellClasses(4, cell_size=2, resolution=(4, 6))
    assert cells.grid_size == (2, 3)
    assert (cells.codebook_size, cells.image_channels, cells.label_maps) == (4, 4, True)
    assert cells.downsample_factor == 2
    indices = cells.encode(one_hot(MAP)[None])
    assert indices.dtype == torch.int64
    # 1 and 2 twice each: 1; all four classes once each: 0
    assert indices.tolist() == [[[0, 1, 3], [2, 0, 0]]]
    assert cells.encode(one_hot(MAP[:, :4])[None]).shape == (1, 2, 2)  # another size


def test_a_cell_of_one_pixel_loses_nothing() -> None:
    cells = CellClasses(4, 1, (4, 6))
    assert torch.equal(cells.encode(one_hot(MAP)[None])[0], MAP)
    assert torch.equal(cells.decode(MAP[None]), one_hot(MAP)[None])


def test_decoding_fills_cells() -> None:
    cells = CellClasses(3, 2, 4)
    indices = torch.tensor([[[0, 2], [1, 0]], [[1, 1], [2, 0]]])
    label_maps = cells.decode(indices)
    assert (label_maps.shape, label_maps.dtype) == ((2, 3, 4, 4), torch.float32)
    assert (label_maps.sum(1) == 1).all()
    expected = [[0, 0, 2, 2], [0, 0, 2, 2], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert label_maps[0].argmax(0).tolist() == expected
    assert torch.equal(cells.encode(label_maps), indices)


def test_saving_and_loading(tmp_path: Path) -> None:
    cells = CellClasses(3, 2, (4, 6))
    assert cells.state_dict() == {}
    save_model_directory(cells.to_saved(), tmp_path / "cells")
    loaded = CellClasses.from_saved(load_model_directory(tmp_path / "cells"))
    assert loaded.to_saved() == cells.to_saved()
    assert loaded.resolution == (4, 6)
    assert not loaded.training
    different = (CellClasses(4, 2, (4, 6)), CellClasses(3, 1, (4, 6)), CellClasses(3, 2, (6, 4)))
    prints = {model.to_saved().fingerprint() for model in (cells, loaded, *different)}
    assert len(prints) == 4


def test_label_maps_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"resolution 4×7 .* factor 2"):
        CellClasses(3, 2, (4, 7))
    with pytest.raises(UserError, match=r"\(b 3 H W\), not \(1, 4, 4, 4\)"):
        CellClasses(3, 2, 4).encode(torch.zeros(1, 4, 4, 4))
