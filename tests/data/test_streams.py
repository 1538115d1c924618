"""Streams: of shards through a pipe, and of Parquet files."""

import io
import pickle
import tarfile
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_data import batches, data_module, equal

from taming.data import (
    CacheDescription,
    ImageFolder,
    ImageStream,
    PictureReader,
    TokenGrid,
    TokenWriter,
)
from taming.data.module import ImageDataModule
from taming.data.readers import BrokenImageError
from taming.data.streams import StreamedImages
from taming.runtime.errors import UserError

datasets = pytest.importorskip("datasets")
pytest.importorskip("webdataset")


@pytest.fixture
def parquet(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images of the shards in two files, in the shards' order."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    samples = list(stream(piped(shards)).samples())
    rows = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": content, "path": None} for content, _ in samples],
            "label": [int(label or 0) for _, label in samples],
        },
        features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=["0", "1"])}
        ),
    )
    for part in range(2):
        rows.shard(2, part, contiguous=True).to_parquet(tmp_path / f"{part}.parquet")
    return tmp_path / "*.parquet"


def piped(shards: Path) -> str:
    return f"pipe:cat {shards}/{{000000..000003}}.tar"


def stream(path: Path | str, **settings: Any) -> ImageStream:
    settings = {"num_val_images": 3, "shuffle_buffer": 4, "patience": 20, **settings}
    return ImageStream(path=str(path), reader=PictureReader(), **settings)


def module(path: Path | str, **settings: Any) -> ImageDataModule:
    own = {
        name: settings.pop(name) for name in list(settings) if name in ImageStream.__annotations__
    }
    return data_module(stream(path, **own), crop="random", crop_scale=(0.5, 1.0), **settings)


def test_a_pass_has_every_image_once_mixed_within_blocks(shards: Path) -> None:
    data = module(piped(shards), batch_size=8)
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


def test_pipes_and_parquet_give_the_same_batches(shards: Path, parquet: Path) -> None:
    reference = batches(module(piped(shards)), 5)
    assert equal(batches(module(parquet), 5), reference)
    assert reference[0].keys() == {"images", "labels"}


def test_processes_change_nothing(
    shards: Path, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a copy of the data set, and reads all of the stream."""
    reference = list(islice(module(piped(shards)).train_dataloader(), 5))
    copies = []
    for _ in range(2):
        data = module(parquet)
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


def test_a_training_goes_on_at_its_step(shards: Path) -> None:
    reference = list(islice(module(piped(shards)).train_dataloader(), 6))
    resumed = module(piped(shards))
    resumed.start_item = 4 * resumed.batch_size
    assert equal(list(islice(resumed.train_dataloader(), 2)), reference[4:])


def test_it_reads_no_further_than_it_must(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    begin = StreamedImages._begin
    monkeypatch.setattr(StreamedImages, "_begin", lambda self: begun.append(0) or begin(self))
    train, val = stream(piped(shards), num_images=11, shuffle_buffer=2).open()
    for index in (0, 3, 1, 5, 2, 7, 4):  # back to the block before, and no further
        train.images.load(index)
    for index in (2, 0, 1):
        val.images.load(index)
    assert len(begun) == 2
    train.images.load(0)
    assert len(begun) == 3


def test_an_encoding_of_several_views_reads_it_once(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = [], StreamedImages._begin
    monkeypatch.setattr(StreamedImages, "_begin", lambda self: begun.append(0) or begin(self))
    monkeypatch.setattr("taming.data.token_writer.SHARD_ITEMS", 5)
    data = module(piped(shards)).train_dataset
    description = CacheDescription("d", 0, len(data), 4, TokenGrid("t", (1, 1), 2))
    with closing(TokenWriter(tmp_path / "tokens", description)) as writer:
        assert len([data[key] for keys in writer.claim(3) for key in keys]) == 32
    assert len(begun) == 1


def test_the_first_batch_is_that_of_the_training(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = module(piped(shards), batch_size=2, num_workers=1)
    begun = []
    begin = StreamedImages._begin
    monkeypatch.setattr(StreamedImages, "_begin", lambda self: begun.append(0) or begin(self))
    first = data.first_batch()
    images: Any = data.train_dataset.images
    assert (len(begun), list(images._blocks)) == (1, [0])
    data.train_dataloader()  # workers read from here on
    assert (images._samples, images._blocks) == (None, {})
    data = module(piped(shards), batch_size=2)
    assert equal([first], list(islice(data.train_dataloader(), 1)))


def test_parquet_without_its_number_of_images(parquet: Path) -> None:
    source = stream(parquet, label_column="label")
    train, val = source.open()
    assert (len(train.images), len(val.images)) == (8, 3)
    with pytest.raises(UserError, match="has no column kind; it has image, label: set"):
        stream(parquet, label_column="kind").open()
    with pytest.raises(UserError, match="has 11 images, and 11 of them are for validation"):
        stream(parquet, num_val_images=11).open()


def cut_off(shards: Path) -> None:
    whole = (shards / "000001.tar").read_bytes()
    with tarfile.open(shards / "000001.tar") as archive:
        second = archive.getmembers()[2].offset_data
    (shards / "000001.tar").write_bytes(whole[: second + 100])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "pipe:cat {x}/{{000000..000004}}.tar",
            r"after image 11: pipe:.*000004\.tar: (empty file; )?exit 1$",
        ),
        ("pipe:sleep 9", "has stalled: nothing came for 0.5 seconds after image 0"),
        ("pipe:cat {x}/000000.tar && sleep 9", "has stalled: .* after image [23] "),
        ("x::pipe:true.tar", "must begin with pipe:"),
        ("PIPE:true.tar", "must begin with pipe:"),
        (
            "pipe:cat {x}/../two.tar",
            r"after image 0: pipe:.*two\.tar: a sample has several images: 1.png, 1.seg.png",
        ),
        ("pipe:cat {x}/../one.tar {x}/../one.tar", "several images: 1.png, 1.png"),
        ("pipe:yes; exit 3", "yes; exit 3: not a tar archive, .*; exit 3$"),
        (
            "pipe:gzip -c {x}/*.tar",
            r"after image 0: .*\.tar: not a tar archive, or a compressed one",
        ),
        ("pipe:cat {x}/000000.tar; exit 3", r"after image [0-3]: pipe:.*exit 3: exit 3$"),
    ],
)
def test_a_stream_that_breaks_off_or_stalls(shards: Path, path: str, message: str) -> None:
    for file, names in (("one.tar", ["1.png"]), ("two.tar", ["1.png", "1.seg.png"])):
        with tarfile.open(shards.parent / file, "w") as archive:
            for name in names:
                archive.add(shards.parent / "photos" / "cat" / "0.png", name)
    with pytest.raises(UserError, match=message):
        stream(path.format(x=shards), patience=0.5).open()


def test_a_corrupt_shard(shards: Path) -> None:
    cut_off(shards)
    with pytest.raises(
        UserError, match=r"after image 4: pipe:.*000001\.tar: unexpected end of data"
    ):
        stream(piped(shards)).open()


def test_a_damaged_or_missing_header_is_not_the_end(shards: Path) -> None:
    content = (shards / "000001.tar").read_bytes()
    with tarfile.open(shards / "000001.tar") as archive:
        second = archive.getmembers()[2].offset
    for damaged in (content[:second], content[:second] + b"x" * 512 + content[second + 512 :]):
        (shards / "000001.tar").write_bytes(damaged)
        with pytest.raises(
            UserError, match=rf"image [34]: pipe:.*000001\.tar: .* at byte {second:,}$"
        ):
            stream(piped(shards)).open()


def test_archives_in_a_row(shards: Path) -> None:
    found = list(stream(f"pipe:cat {shards}/*.tar").samples())
    assert found == list(stream(piped(shards)).samples())
    assert len(found) == 11


def test_a_file_that_is_too_large_is_broken_before_it_is_read(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, _ = stream(piped(shards), num_images=11).open()
    train.images.load(0)
    monkeypatch.setattr("taming.data.streams.MAX_BYTES", 100)
    assert {content for content, _ in stream(piped(shards)).samples()} == {None}
    train.images.close()
    with pytest.raises(BrokenImageError, match=r"^no image, or one of more than 0 MiB"):
        train.images.load(0)


def test_samples_are_those_of_shards_on_the_disk(tmp_path: Path) -> None:
    pixels = io.BytesIO()
    Image.new("RGB", (8, 8)).save(pixels, "PNG")
    files = {"__meta__": b"", "./a.PNG": pixels, "._a.json": b"?", "a.json": b'{"label": "cat"}',
             "b.cls": b"dog", "b.png": pixels, "._b.png": b"?", "c.txt": b"no image"}  # fmt: skip
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, content in files.items():
            content = content.getvalue() if isinstance(content, io.BytesIO) else content
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    images = ImageFolder(tmp_path / "x.tar", PictureReader(), labels="auto")
    found = list(stream(f"pipe:cat {tmp_path}/x.tar").samples())
    assert found == [(pixels.getvalue(), "cat"), (pixels.getvalue(), "dog")]
    assert [images.class_names[images.label(index) or 0] for index in range(2)] == ["cat", "dog"]


def test_classes_that_not_all_images_have(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    (shards / "more").mkdir()
    with tarfile.open(shards / "more" / "0.tar", "w") as archive:
        archive.add(shards.parent / "photos" / "cat" / "0.png", "0.png")
    with caplog.at_level("INFO"):
        train, _ = stream(f"pipe:cat {shards}/*.tar {shards}/more/0.tar").open()
    assert train.images.class_names == []
    assert "no classes: 1 of 12 have none" in caplog.text


def test_wrong_numbers(shards: Path) -> None:
    train, _ = stream(piped(shards), num_images=12, num_classes=1).open()
    with pytest.raises(UserError, match=r"ended after 11 images, and not 12: correct"):
        train.images.load(8)
    with pytest.raises(UserError, match="is of the class 1, which is none of 0"):
        [train.images.label(index) for index in range(8)]
    train, _ = stream(piped(shards), num_images=11).open()
    assert train.images.class_names == []
