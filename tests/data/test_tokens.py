import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from taming.data import (
    CacheDescription,
    LoaderOptions,
    TokenDataset,
    TokenGrid,
    TokenWriter,
)
from taming.data.module import TokenDataModule
from taming.data.tokens import DRAWS_IN_BLOCK
from taming.errors import UserError

PLAIN = CacheDescription(
    data="d", seed=3, num_images=4, num_views=3, indices=TokenGrid("t", (2, 3), 1000)
)
PAIRED = dataclasses.replace(PLAIN, condition_indices=TokenGrid("c", (1, 2), 12), num_classes=300)


def codes(first: int, count: int) -> dict[str, np.ndarray]:
    """Item n: all indices are 10·n, those of its condition n, and its class 100 + n."""
    items = np.arange(first, first + count).reshape(-1, 1, 1)
    return {
        "indices": np.broadcast_to(10 * items, (count, 2, 3)),
        "condition_indices": np.broadcast_to(items, (count, 1, 2)),
        "labels": 100 + items[:, 0, 0],
    }


def made(directory: Path, description: CacheDescription = PAIRED) -> TokenDataset:
    writer = TokenWriter(directory.with_suffix(".unfinished"), description)
    for first in range(0, 12, 5):
        writer.write(codes(first, min(5, 12 - first)))
    writer.finish(directory)
    return TokenDataset(directory, description)


@pytest.mark.parametrize(("codebook_size", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_the_smallest_type_that_holds_every_index(codebook_size: int, dtype: str) -> None:
    description = dataclasses.replace(PLAIN, indices=TokenGrid("t", (1, 1), codebook_size))
    assert description.arrays["indices"] == (np.dtype(dtype), (4, 3, 1, 1))


def test_batches(tmp_path: Path) -> None:
    tokens = made(tmp_path / "a")
    assert len(tokens) == 4
    batch = tokens[[2, 0]]
    assert batch.keys() == {"indices", "condition_indices", "labels"}
    assert {value.dtype for value in batch.values()} == {torch.int64}
    assert batch["indices"].tolist() == [[[20] * 3] * 2, [[0] * 3] * 2]  # the first view is item 2
    assert batch["condition_indices"].tolist() == [[[2, 2]], [[0, 0]]]
    assert batch["labels"].tolist() == [102, 100]
    files = {path.name: path for path in (tmp_path / "a").iterdir()}
    assert files.keys() == {"meta.json", "indices.npy", "condition_indices.npy", "labels.npy"}
    assert np.load(files["indices.npy"]).dtype == np.load(files["labels.npy"]).dtype == np.uint16
    assert np.load(files["condition_indices.npy"]).dtype == np.uint8
    data = TokenDataModule(tokens, tokens, LoaderOptions(3, val_batch_size=4))
    for batch in islice(data.train_dataloader(), 3):
        assert batch["indices"].shape == (3, 2, 3)
        assert batch["condition_indices"].shape == (3, 1, 2)
    (batch,) = data.val_dataloader()
    assert batch["labels"].tolist() == [102, 100, 101, 103]
    assert made(tmp_path / "b", PLAIN)[[0]].keys() == {"indices"}


@pytest.mark.parametrize("start", [0, DRAWS_IN_BLOCK - 7])
def test_a_view_is_drawn_for_all_of_an_item(tmp_path: Path, start: int) -> None:
    tokens = made(tmp_path / "a")
    batch = tokens[[(1, draw) for draw in range(start, start + 20)]]
    views = batch["condition_indices"][:, 0, 0]
    assert set(views.tolist()) == {1, 5, 9}
    assert (batch["indices"] == 10 * views[:, None, None]).all()
    assert torch.equal(batch["labels"], 100 + views)
    for draw in range(20):  # by (seed, draw) alone
        assert tokens[[(1, start + draw)]]["indices"][0, 0, 0] == 10 * views[draw]


def test_a_damaged_cache(tmp_path: Path) -> None:
    made(tmp_path / "a")
    for changes in ({"data": "e"}, {"indices": TokenGrid("other", (2, 3), 1000)}):
        with pytest.raises(UserError, match=r"damaged \(it is of other data"):
            TokenDataset(tmp_path / "a", dataclasses.replace(PAIRED, **changes))
    file = tmp_path / "a" / "condition_indices.npy"
    np.save(file, np.zeros((4, 3, 2, 2), dtype=np.uint8))
    for _ in range(2):
        with pytest.raises(UserError, match=r"damaged .* delete it"):
            TokenDataset(tmp_path / "a", PAIRED)
        file.write_bytes(b"")


def test_a_changed_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taming.data.tokens.BLOCK", 50)  # bytes, of 144
    made(tmp_path / "a")
    file = tmp_path / "a" / "indices.npy"
    whole = file.read_bytes()
    for place in range(len(whole) - 144, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"damaged \(indices.npy has changed\): delete it"):
            TokenDataset(tmp_path / "a", PAIRED)
    monkeypatch.setattr("taming.data.tokens.BLOCKS_CHECKED", 1)  # of a large file only some
    monkeypatch.setattr("random.SystemRandom.sample", lambda self, numbers, count: numbers[:count])
    tokens = TokenDataset(tmp_path / "a", PAIRED)
    with pytest.raises(UserError, match="has changed"):
        tokens.check()


def test_the_order_of_items_is_view_after_view(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path / "a", PLAIN)
    whole = [0, 1, 2, 3, *((n % 4, n) for n in range(4, 12))]
    assert [*writer.description.batches(writer.done, 5)] == [whole[:5], whole[5:10], whole[10:]]
    writer.write(codes(0, 5))
    assert [*writer.description.batches(writer.done, 20)] == [whole[5:]]


def test_writing_goes_on_after_the_last_record(tmp_path: Path) -> None:
    begun = TokenWriter(tmp_path / "a", PAIRED)
    begun.write(codes(0, 5))
    begun.record(["b.png"])
    begun.write(codes(100, 3))  # is not recorded: to be done again
    writer = TokenWriter(tmp_path / "a", PAIRED)
    assert (writer.done, writer.replaced_names) == (5, {"b.png"})
    writer.record(["a.png", "b.png"])
    writer.write(codes(5, 7))
    writer.finish(tmp_path / "done")
    whole = made(tmp_path / "whole")
    for name in ("indices", "condition_indices", "labels"):
        files = [tmp_path / folder / f"{name}.npy" for folder in ("done", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()
    tokens = TokenDataset(tmp_path / "done", PAIRED)
    assert (tokens.replaced_names, whole.replaced_names) == (["a.png", "b.png"], [])


def test_a_writer_killed_while_finishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TokenWriter(tmp_path / "a", PLAIN)
    writer.write(codes(0, 12))

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            writer.finish(tmp_path / "done")
    writer = TokenWriter(tmp_path / "a", PLAIN)
    assert [*writer.description.batches(writer.done, 4)] == []
    writer.finish(tmp_path / "done")
    assert TokenDataset(tmp_path / "done", PLAIN)[[3]]["indices"].unique().tolist() == [30]


def test_an_unreadable_record_is_begun_anew(tmp_path: Path) -> None:
    begun = TokenWriter(tmp_path / "a", PAIRED)
    begun.write(codes(0, 5))
    begun.record()
    record = tmp_path / "a" / "progress.json"
    record.write_text(record.read_text()[:10])
    assert TokenWriter(tmp_path / "a", PAIRED).done == 0
    assert not record.exists()
