"""Streams of shards and Parquet files."""

import pickle
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_data import batches, data_module, equal

from taming.data import CacheDescription, ImageStream, PictureReader, TokenGrid, TokenWriter
from taming.data.module import ImageDataModule
from taming.data.readers import BrokenImageError
from taming.data.streams import StreamedImages
from taming.runtime.errors import UserError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def parquet(shards: Path, tmp_path: Path) -> Path:
    """The images of the shards in two files, in the order of the shards."""
    source = stream(shards)
    table = source.open_table("train", streaming=True)
    (batch,) = source.batches(table, 0, 20)
    rows = datasets.Dataset.from_dict(
        {
            "image": table.images(batch),
            "label": [int(label or 0) for label in table.classes(batch)],
        },
        features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=["0", "1"])}
        ),
    )
    for part in range(2):
        rows.shard(2, part, contiguous=True).to_parquet(tmp_path / f"{part}.parquet")
    return tmp_path / "*.parquet"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the images from which streams were read."""
    starts = []
    read = ImageStream.batches

    def counting(self: ImageStream, table: Any, start: int, size: int) -> Any:
        starts.append(start)
        return read(self, table, start, size)

    monkeypatch.setattr(ImageStream, "batches", counting)
    return starts


def stream(path: Path | str, **settings: Any) -> ImageStream:
    settings = {"num_val_images": 3, "shuffle_buffer": 4, **settings}
    return ImageStream(path=str(path), reader=PictureReader(), **settings)


def module(path: Path | str, **settings: Any) -> ImageDataModule:
    return data_module(stream(path), crop="random", crop_scale=(0.5, 1.0), **settings)


def test_a_pass_has_every_image_once_mixed_within_blocks(shards: Path) -> None:
    data = module(shards, batch_size=8)
    assert data.class_names == ["0", "1"]
    assert (len(data.train_dataset), len(data.val_dataset)) == (8, 3)
    loader = data.train_dataloader()
    passes = list(islice(loader.batch_sampler, 2))  # type: ignore[arg-type]
    orders = [[index for index, _ in keys] for keys in passes]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order[:4]) == [0, 1, 2, 3]
        assert sorted(order[4:]) == [4, 5, 6, 7]
    first, second = islice(loader, 2)
    assert sorted(first["labels"].tolist()) == sorted(second["labels"].tolist())


def test_shards_and_parquet_give_the_same_batches(shards: Path, parquet: Path) -> None:
    reference = batches(module(shards / "{000000..000003}.tar"), 5)
    assert equal(batches(module(parquet), 5), reference)
    assert equal(batches(module(shards / "*.tar", num_workers=1), 5), reference)
    assert reference[0].keys() == {"images", "labels"}


@pytest.mark.parametrize("kind", ["shards", "parquet"])
def test_processes_change_nothing(
    kind: str, shards: Path, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a copy of the data set and reads all of the stream."""
    reference = list(islice(module(shards).train_dataloader(), 5))
    copies = []
    for _ in range(2):
        data = module(shards if kind == "shards" else parquet)
        keys = list(islice(data.train_dataloader().batch_sampler, 5))  # type: ignore[arg-type]
        copies.append(pickle.loads(pickle.dumps(data.train_dataset)))
    worker = SimpleNamespace(id=1, num_workers=2, dataset=None, seed=0)
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: worker)
    for number, batch in enumerate(keys):
        items = [copies[number % 2][key] for key in batch]
        assert torch.equal(
            torch.stack([item["images"] for item in items]), reference[number]["images"]
        )
        assert [item["labels"] for item in items] == reference[number]["labels"].tolist()


def test_a_training_resumes_at_its_step(shards: Path) -> None:
    reference = list(islice(module(shards).train_dataloader(), 6))
    resumed = module(shards)
    resumed.start_item = 4 * resumed.batch_size
    assert equal(list(islice(resumed.train_dataloader(), 2)), reference[4:])


def test_a_stream_is_read_no_further_than_necessary(shards: Path, starts: list[int]) -> None:
    train, val = stream(shards, num_images=11, shuffle_buffer=2).open()
    for index in (0, 3, 1, 5, 2, 7, 4):  # back to the previous block and no further
        train.images.load(index)
    for index in (2, 0, 1):
        val.images.load(index)
    assert starts == [3, 0]
    train.images.load(0)
    assert starts == [3, 0, 3]


def test_an_encoding_of_several_views_reads_it_once(
    shards: Path, tmp_path: Path, starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taming.data.token_writer.SHARD_ITEMS", 5)
    data = module(shards).train_dataset
    starts.clear()  # it has counted the images
    description = CacheDescription("d", 0, len(data), 4, TokenGrid("t", (1, 1), 2))
    with closing(TokenWriter(tmp_path / "tokens", description)) as writer:
        assert len([data[key] for keys in writer.claim(3) for key in keys]) == 32
    assert starts == [3]


def test_the_first_batch_of_a_stream(shards: Path, starts: list[int]) -> None:
    data = module(shards, batch_size=2, num_workers=1)
    images: Any = data.train_dataset.images
    starts.clear()
    first = data.first_batch()
    assert (starts, list(images._blocks)) == ([3], [0])
    data.train_dataloader()  # workers read from here on
    assert (images._batches, images._blocks) == (None, {})
    data = module(shards, batch_size=2)
    assert equal([first], list(islice(data.train_dataloader(), 1)))


def test_parquet_without_its_number_of_images(parquet: Path) -> None:
    train, val = stream(parquet, label_column="label").open()
    assert (len(train.images), len(val.images)) == (8, 3)
    with pytest.raises(UserError, match=r"cannot be loaded: .*kind"):
        stream(parquet, label_column="kind").open()
    with pytest.raises(UserError, match="has only 11 images, but 11 are for validation"):
        stream(parquet, num_val_images=11).open()


def test_a_stream_that_breaks_off(shards: Path, parquet: Path) -> None:
    (shards / "000002.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"the shard .*000002\.tar cannot be read"):
        stream(shards).open()
    train, _ = stream(parquet, num_images=11).open()
    assert isinstance(train.images, StreamedImages)
    file = parquet.parent / "1.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cannot be read after image \d+: .*Parquet"):
        [train.images.load(index) for index in range(8)]


def test_images_by_their_path(folder: Path, table_cache: None, tmp_path: Path) -> None:
    train, _ = stream(folder).open()
    assert train.images.class_names == ["cat", "dog"]
    assert train.images.load(0).size == (24, 24)
    rows = {"image": [str(folder / "cat" / "0.png"), None]}
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "x.parquet")
    train, _ = stream(tmp_path / "x.parquet", num_val_images=1).open()
    with pytest.raises(BrokenImageError, match=r"^no image"):
        train.images.load(0)


def test_classes_that_not_all_images_have(
    folder: Path, table_cache: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(5):
            archive.add(folder / "cat" / "0.png", f"{number}.png")
        (tmp_path / "cls").write_text("1")
        archive.add(tmp_path / "cls", "4.cls")
    with caplog.at_level("INFO"):
        train, _ = stream(tmp_path / "a.tar").open()
    assert train.images.class_names == []
    assert "no classes, because 4 of 5 images have none" in caplog.text


def test_wrong_numbers(shards: Path) -> None:
    train, _ = stream(shards, num_images=12, num_classes=1).open()
    with pytest.raises(UserError, match=r"ended after 11 images, not 12\. Correct"):
        train.images.load(8)
    with pytest.raises(UserError, match=r"has the class 1\. The classes are 0\."):
        [train.images.label(index) for index in range(8)]
    train, _ = stream(shards, num_images=11).open()
    assert train.images.class_names == []
