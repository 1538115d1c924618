import dataclasses
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from taming.data import CacheDescription, TokenDataModule, TokenDataset, TokenGrid, TokenWriter
from taming.errors import UserError

PLAIN = CacheDescription(
    data="d", seed=3, num_images=4, num_views=3, indices=TokenGrid("t", (2, 3), 1000)
)
PAIRED = dataclasses.replace(PLAIN, condition_indices=TokenGrid("c", (1, 2), 12))


def codes(first: int, count: int) -> dict[str, np.ndarray]:
    """Item n: all indices are 10·n, and those of its condition n."""
    items = np.arange(first, first + count).reshape(-1, 1, 1)
    return {
        "indices": np.broadcast_to(10 * items, (count, 2, 3)),
        "condition_indices": np.broadcast_to(items, (count, 1, 2)),
    }


def made(directory: Path, description: CacheDescription, labels: Any = None) -> TokenDataset:
    writer = TokenWriter(
        directory.with_suffix(".unfinished"), description, with_labels=labels is not None
    )
    for first in range(0, 12, 5):
        count = min(5, 12 - first)
        classes = (
            None if labels is None else np.take(labels, range(first, first + count), mode="wrap")
        )
        writer.write(codes(first, count), classes)
    writer.finish(directory)
    return TokenDataset(directory, description)


@pytest.mark.parametrize(
    ("codebook_size", "dtype"),
    [(2, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_the_smallest_type_that_holds_every_index(codebook_size: int, dtype: str) -> None:
    grid = TokenGrid("t", (1, 1), codebook_size)
    assert grid.dtype == np.dtype(dtype)
    assert np.iinfo(grid.dtype).max >= codebook_size - 1


def test_items(tmp_path: Path) -> None:
    tokens = made(tmp_path / "a", PAIRED, [1, 0, 1, 2])
    assert len(tokens) == 4
    item = tokens[2]
    assert item.keys() == {"indices", "condition_indices", "labels"}
    assert (item["indices"].dtype, item["condition_indices"].dtype) == (torch.int64, torch.int64)
    assert item["indices"].tolist() == [[20] * 3] * 2  # its first view is item 2
    assert item["condition_indices"].tolist() == [[2, 2]]
    assert item["labels"] == 1
    assert np.load(tmp_path / "a" / "indices.npy").dtype == np.uint16
    assert np.load(tmp_path / "a" / "condition_indices.npy").dtype == np.uint8
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "meta.json", "indices.npy", "condition_indices.npy", "labels.npy"
    }  # fmt: skip


def test_a_view_is_drawn_for_both(tmp_path: Path) -> None:
    tokens = made(tmp_path / "a", PAIRED)
    views = set()
    for draw in range(20):
        item = tokens[1, draw]
        (number,) = item["indices"].unique().tolist()
        assert item["condition_indices"].unique().tolist() == [number // 10]
        views.add(number // 10)
        assert torch.equal(tokens[1, draw]["indices"], item["indices"])
    assert views == {1, 5, 9}


def test_without_conditions_and_classes(tmp_path: Path) -> None:
    assert made(tmp_path / "a", PLAIN)[0].keys() == {"indices"}


def test_batches(tmp_path: Path) -> None:
    tokens = made(tmp_path / "a", PAIRED, [1, 0, 1, 2])
    data = TokenDataModule(tokens, tokens, batch_size=3, val_batch_size=4, seed=0)
    for batch in islice(data.train_dataloader(), 3):
        assert batch["indices"].shape == (3, 2, 3)
        assert batch["condition_indices"].shape == (3, 1, 2)
        assert batch["condition_indices"].dtype == torch.int64
    (batch,) = data.val_dataloader()
    assert batch["labels"].tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "e"},
        {"seed": 4},
        {"num_views": 2},
        {"indices": TokenGrid("other", (2, 3), 1000)},
        {"condition_indices": TokenGrid("other", (1, 2), 12)},
        {"condition_indices": TokenGrid("c", (1, 2), 13)},
        {"condition_indices": None},
    ],
)
def test_a_cache_of_something_else(tmp_path: Path, changes: dict[str, Any]) -> None:
    made(tmp_path / "a", PAIRED)
    (name,) = changes
    with pytest.raises(UserError, match=rf"stale: it was made from another {name}"):
        TokenDataset(tmp_path / "a", dataclasses.replace(PAIRED, **changes))


def test_a_damaged_cache(tmp_path: Path) -> None:
    made(tmp_path / "a", PAIRED)
    file = tmp_path / "a" / "condition_indices.npy"
    np.save(file, np.zeros((4, 3, 2, 2), dtype=np.uint8))
    with pytest.raises(UserError, match="another shape of condition_indices"):
        TokenDataset(tmp_path / "a", PAIRED)
    file.write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        TokenDataset(tmp_path / "a", PAIRED)


def test_the_order_of_items_is_view_after_view(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path / "a", PLAIN, with_labels=False)
    whole = [0, 1, 2, 3, *((n % 4, n) for n in range(4, 12))]
    assert [*writer.remaining(5)] == [whole[:5], whole[5:10], whole[10:]]
    writer.write(codes(0, 5))
    assert [*writer.remaining(20)] == [whole[5:]]
    # the keys of ImageNet with eight views would fill gigabytes: they are made as they are needed
    assert iter(writer.remaining(1)) is not iter(writer.remaining(1))
    assert not isinstance(writer.remaining(1), list)


def test_writing_goes_on_after_the_last_record(tmp_path: Path) -> None:
    begun = TokenWriter(tmp_path / "a", PAIRED, with_labels=True)
    begun.write(codes(0, 5), np.array([1, 0, 1, 2, 1]))
    begun.record(["b.png"])
    begun.write(codes(100, 3), np.array([9, 9, 9]))  # is not recorded: to be done again
    writer = TokenWriter(tmp_path / "a", PAIRED, with_labels=True)
    assert (writer.done, writer.replaced) == (5, {"b.png"})
    writer.record(["a.png", "b.png"])
    writer.write(codes(5, 7), np.array([0, 1, 2, 1, 0, 1, 2]))
    writer.finish(tmp_path / "done")
    whole = made(tmp_path / "whole", PAIRED, [1, 0, 1, 2])
    for name in ("indices", "condition_indices", "labels"):
        files = [tmp_path / folder / f"{name}.npy" for folder in ("done", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()
    tokens = TokenDataset(tmp_path / "done", PAIRED)
    assert tokens[3]["labels"] == whole[3]["labels"] == 2
    assert (tokens.replaced, whole.replaced) == (["a.png", "b.png"], [])


@pytest.mark.parametrize("batches", [[12], [5, 7], [4, 4, 4]])
def test_views_of_another_class_give_way_to_the_first(tmp_path: Path, batches: list[int]) -> None:
    """Image 1, of class 7, breaks after its first view; image 2, broken at first, was repaired."""
    labels = np.array([0, 7, 0, 1, 0, 0, 5, 1, 0, 0, 5, 1])
    whole = codes(0, 12)
    writer = TokenWriter(tmp_path / "a", PAIRED, with_labels=True)
    for end, count in zip(np.cumsum(batches), batches, strict=True):
        items = slice(end - count, end)
        writer.write({name: array[items] for name, array in whole.items()}, labels[items])
    writer.finish(tmp_path / "done")
    tokens = TokenDataset(tmp_path / "done", PAIRED)
    assert tokens.labels is not None
    assert tokens.labels.tolist() == [0, 7, 0, 1]
    views = [[0, 4, 8], [1, 1, 1], [2, 2, 2], [3, 7, 11]]
    assert tokens.arrays["condition_indices"][..., 0, 0].tolist() == views
    assert (tokens.arrays["indices"][..., 0, 0] == 10 * np.array(views)).all()


def test_a_writer_killed_while_finishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TokenWriter(tmp_path / "a", PLAIN, with_labels=False)
    writer.write(codes(0, 12))

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            writer.finish(tmp_path / "done")
    writer = TokenWriter(tmp_path / "a", PLAIN, with_labels=False)
    assert [*writer.remaining(4)] == []
    writer.finish(tmp_path / "done")
    assert TokenDataset(tmp_path / "done", PLAIN)[3]["indices"].unique().tolist() == [30]


@pytest.mark.parametrize("damage", ["record", "too_many", "file", "shape", "none", "description"])
def test_what_cannot_be_gone_on_with_begins_anew(tmp_path: Path, damage: str) -> None:
    begun = TokenWriter(tmp_path / "a", PAIRED, with_labels=False)
    begun.write(codes(0, 5))
    begun.record()
    record, file = tmp_path / "a" / "progress.json", tmp_path / "a" / "condition_indices.npy"
    if damage == "record":
        record.write_text(record.read_text()[:20])
    elif damage == "too_many":
        record.write_text(record.read_text().replace('"done": 5', '"done": 13'))
    elif damage == "file":
        file.unlink()
    elif damage == "shape":
        np.save(file, np.zeros((4, 3, 1, 1), dtype=np.uint8))
    elif damage == "none":
        record.unlink()
    changes: dict[str, Any] = {"seed": 9} if damage == "description" else {}
    writer = TokenWriter(tmp_path / "a", dataclasses.replace(PAIRED, **changes), with_labels=False)
    assert writer.done == 0
    assert not record.exists()
