import dataclasses
import json
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from taming.data import CacheDescription, LoaderOptions, TokenDataset, TokenGrid, TokenWriter
from taming.data.module import TokenDataModule
from taming.data.tokens import DRAWS_IN_BLOCK
from taming.runtime.errors import UserError

PLAIN = CacheDescription(
    data="d", seed=3, num_images=4, num_views=3, indices=TokenGrid("t", (2, 3), 1000)
)
PAIRED = dataclasses.replace(PLAIN, condition_indices=TokenGrid("c", (1, 2), 12), num_classes=300)


def codes(keys: list[int | tuple[int, int]]) -> dict[str, np.ndarray]:
    """Item or draw n: all indices are 10·n, those of its condition n, and its class 100 + n."""
    numbers = np.array([key if isinstance(key, int) else key[1] for key in keys])
    return {
        "indices": np.broadcast_to(10 * numbers[:, None, None], (len(keys), 2, 3)),
        "condition_indices": np.broadcast_to(numbers[:, None, None], (len(keys), 1, 2)),
        "labels": 100 + numbers,
    }


def write_all(writer: TokenWriter) -> int:
    """Writes what nobody else does; returns how many items that is."""
    claimed = list(writer.claim(5))
    for keys in claimed:
        writer.write(codes(keys))
    return sum(map(len, claimed))


def write_cache(directory: Path, description: CacheDescription = PAIRED) -> TokenDataset:
    writer = TokenWriter(directory, description)
    assert write_all(writer) == 12 and writer.finish()
    return TokenDataset(directory, description)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(("codebook_size", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_the_smallest_type_that_holds_every_index(codebook_size: int, dtype: str) -> None:
    description = dataclasses.replace(PLAIN, indices=TokenGrid("t", (1, 1), codebook_size))
    assert description.arrays["indices"] == (np.dtype(dtype), (4, 3, 1, 1))


def test_batches(tmp_path: Path) -> None:
    tokens = write_cache(tmp_path / "a")
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
    assert write_cache(tmp_path / "b", PLAIN)[[0]].keys() == {"indices"}


@pytest.mark.parametrize("start", [0, DRAWS_IN_BLOCK - 7])
def test_all_arrays_of_an_item_have_the_same_view(tmp_path: Path, start: int) -> None:
    tokens = write_cache(tmp_path / "a")
    batch = tokens[[(1, draw) for draw in range(start, start + 20)]]
    views = batch["condition_indices"][:, 0, 0]
    assert set(views.tolist()) == {1, 5, 9}
    assert (batch["indices"] == 10 * views[:, None, None]).all()
    assert torch.equal(batch["labels"], 100 + views)
    for draw in range(20):  # by (seed, draw) alone
        assert tokens[[(1, start + draw)]]["indices"][0, 0, 0] == 10 * views[draw]


def test_a_damaged_cache(tmp_path: Path) -> None:
    write_cache(tmp_path / "a")
    for changes in ({"data": "e"}, {"indices": TokenGrid("other", (2, 3), 1000)}):
        with pytest.raises(UserError, match=r"damaged \(its content does not match"):
            TokenDataset(tmp_path / "a", dataclasses.replace(PAIRED, **changes))
    file = tmp_path / "a" / "condition_indices.npy"
    np.save(file, np.zeros((4, 3, 2, 2), dtype=np.uint8))
    for _ in range(2):
        with pytest.raises(UserError, match=r"damaged .* Delete it"):
            TokenDataset(tmp_path / "a", PAIRED)
        file.write_bytes(b"")


def test_a_changed_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taming.data.tokens.BLOCK", 50)  # bytes, of 144
    write_cache(tmp_path / "a")
    file = tmp_path / "a" / "indices.npy"
    whole = file.read_bytes()
    for place in range(len(whole) - 144, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"damaged \(indices.npy has changed\)\. Delete it"):
            TokenDataset(tmp_path / "a", PAIRED)
    monkeypatch.setattr("taming.data.tokens.BLOCKS_CHECKED", 1)  # of a large file only some
    monkeypatch.setattr("random.SystemRandom.sample", lambda self, numbers, count: numbers[:count])
    tokens = TokenDataset(tmp_path / "a", PAIRED)
    with pytest.raises(UserError, match="has changed"):
        tokens.check()


def test_the_file_format(tmp_path: Path) -> None:
    meta = {
        "format": 2, "data": "d", "seed": 3, "num_images": 4, "num_views": 3,
        "indices": {"tokenizer": "t", "grid_size": [2, 3], "codebook_size": 1000},
        "condition_indices": None, "num_classes": None,
    }  # fmt: skip
    assert list(PLAIN.plain().items()) == list(meta.items())  # a digest of it is its name
    checksums = {"replaced": ["a.png"], "checksums": {"indices": [0x83F91C70]}}
    (tmp_path / "meta.json").write_text(json.dumps({**meta, **checksums}))
    numbers = np.arange(4 * 3 * 2 * 3, dtype=np.uint16).reshape(4, 3, 2, 3)
    np.save(tmp_path / "indices.npy", numbers)
    tokens = TokenDataset(tmp_path, PLAIN)
    tokens.check()
    assert tokens[[2]]["indices"].tolist() == numbers[[2], 0].tolist()
    assert tokens.replaced_names == ["a.png"]


def test_the_order_of_items_is_image_after_image(tmp_path: Path) -> None:
    """So an image is read once for all of its views."""
    keys = [0, (0, 4), (0, 8), 1, (1, 5), (1, 9), 2, (2, 6), (2, 10), 3, (3, 7), (3, 11)]
    with closing(TokenWriter(tmp_path / "a", PLAIN)) as writer:
        assert [*writer.claim(5)] == [keys[:5], keys[5:10], keys[10:]]


@pytest.fixture
def shards_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shards."""
    monkeypatch.setattr("taming.data.token_writer.SHARD_ITEMS", 4)


def shards(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.with_suffix(".unfinished").glob("*.npz"))


@pytest.mark.usefixtures("shards_of_four")
def test_writing_resumes_after_the_complete_shards(tmp_path: Path) -> None:
    interrupted = TokenWriter(tmp_path / "a", PAIRED)
    claimed = list(interrupted.claim(3))
    assert [len(keys) for keys in claimed] == [3, 1] * 3
    for keys in claimed[:3]:
        interrupted.write(codes(keys), ["b.png"])
    assert (interrupted.done, shards(tmp_path / "a")) == (7, ["0.npz"])
    interrupted.close()
    writer = TokenWriter(tmp_path / "a", PAIRED)
    assert writer.done == 4 and not writer.finish()
    for keys in writer.claim(8):
        writer.write(codes(keys), ["a.png", "b.png"])
    assert writer.finish()
    tokens, whole = TokenDataset(tmp_path / "a", PAIRED), write_cache(tmp_path / "whole")
    assert (tokens.replaced_names, whole.replaced_names) == (["a.png", "b.png"], [])
    assert files(tmp_path / "a").keys() == files(tmp_path / "whole").keys()
    for name, array in tokens.arrays.items():
        assert np.array_equal(array, whole.arrays[name])
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a", "whole"]


def test_shards_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "a.unfinished").symlink_to("precious")
    with pytest.raises(OSError, match=r"a\.unfinished"):
        TokenWriter(tmp_path / "a", PAIRED)


@pytest.mark.usefixtures("shards_of_four")
def test_writers_share_the_work(tmp_path: Path) -> None:
    one, other = (TokenWriter(tmp_path / "a", PAIRED) for _ in range(2))
    keys = next(one.claim(4))
    assert write_all(other) == 8
    one.write(codes(keys))
    assert (one.done, shards(tmp_path / "a")) == (12, ["0.npz", "4.npz", "8.npz"])
    assert other.finish() and one.finish()
    write_cache(tmp_path / "whole")
    assert files(tmp_path / "a") == files(tmp_path / "whole")
    assert not [*one.claim(4)] and not [*TokenWriter(tmp_path / "a", PAIRED).claim(4)]


@pytest.mark.usefixtures("shards_of_four")
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "index", "shape", "directory"])
def test_a_damaged_shard_is_written_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_cache(tmp_path / "whole")
    writer = TokenWriter(tmp_path / "a", PAIRED)
    write_all(writer)
    shard = tmp_path / "a.unfinished" / "4.npz"
    content = shard.read_bytes()
    changes = {
        "empty": b"",
        "short": content[:-20],
        "index": content.replace((50).to_bytes(2, "little"), (51).to_bytes(2, "little"), 1),
        "shape": content.replace(b"(4, 2, 3)", b"(1, 2, 3)"),
        "directory": content.replace(b"PK\x01\x02", b"PK\x01\x03"),
    }
    if damage == "missing":
        shard.unlink()
    else:
        assert changes[damage] != content
        shard.write_bytes(changes[damage])
    assert not writer.finish()
    assert (f"{shard} is damaged (" in caplog.text) == (damage != "missing")
    assert write_all(writer) == 4 and writer.finish()
    assert files(tmp_path / "a") == files(tmp_path / "whole")


def test_a_writer_killed_while_joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TokenWriter(tmp_path / "a", PLAIN)
    write_all(writer)

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            writer.finish()
    writer = TokenWriter(tmp_path / "a", PLAIN)
    assert write_all(writer) == 0 and writer.finish()
    assert TokenDataset(tmp_path / "a", PLAIN)[[3]]["indices"].unique().tolist() == [30]


def test_a_large_cache_has_few_shards(tmp_path: Path) -> None:
    large = dataclasses.replace(PLAIN, num_images=10**6)
    with closing(TokenWriter(tmp_path / "a", large)) as writer:
        assert len(next(writer.claim(1000))) == 733  # of 3 million items
    with pytest.raises(OSError, match="No space left"):  # before anything is encoded
        TokenWriter(tmp_path / "b", dataclasses.replace(large, num_images=10**15))
