import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_data import batches, data_module, equal
from tiny_data import table_images as source

from taming.data import ImageDataset, ImageTransform
from taming.data.huggingface import Table
from taming.runtime.errors import UserError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def table(table_cache: None) -> Callable[..., Any]:
    """Makes a dataset with `count` pictures and columns of these values or classes."""

    def make(count: int = 8, **columns: Any) -> Any:
        pixels = np.random.default_rng(0).integers(0, 256, (count, 24, 24, 3), dtype=np.uint8)
        values = {"picture": [Image.fromarray(one) for one in pixels], **columns}
        rows = datasets.Dataset.from_dict(values).cast_column("picture", datasets.Image())
        if "label" in columns:
            classes = datasets.ClassLabel(names=["cat", "dog", "eel"])
            rows = rows.cast_column("label", classes)
        return rows

    return make


@pytest.mark.parametrize("kind", ["file", "pattern", "folder", "saved", "saved splits"])
def test_files_of_all_kinds(table: Any, tmp_path: Path, kind: str) -> None:
    rows = table(label=[0, 1] * 4)
    place = tmp_path / "x"
    place.mkdir()
    if kind == "saved":
        rows.save_to_disk(place)
    elif kind == "saved splits":
        datasets.DatasetDict(train=rows, test=rows).save_to_disk(place)
    else:
        rows.to_parquet(place / "train-0.parquet")
    at = {"file": "train-0.parquet", "pattern": "*.parquet"}.get(kind, "")
    train, val = source(place / at, val_fraction=0.25).open()
    assert train.images.class_names == ["cat", "dog", "eel"]
    assert [train.images.label(i) for i in range(8)] == [0, 1] * 4
    assert len(train.indices or []) == 6
    assert len(val.indices or []) == 2
    loaded = np.asarray(train.images.load(5))
    assert np.array_equal(loaded, np.asarray(rows[5]["picture"]))
    again = source(place / at).open()[0].images
    assert again.fingerprint() == train.images.fingerprint()


def test_groups_and_test_images(table: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table(12, video=list("aabbccddeeff")).to_parquet(path)
    parts = source(path, group="video", val_fraction=0.25, test_fraction=0.3).open()
    assert [len(part.indices or ()) for part in parts] == [6, 2, 4]
    groups = [{part.images.groups[i] for i in part.indices or ()} for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 6
    with pytest.raises(UserError, match="film"):
        source(path, group="film").open()
    table(4, video=["a", "a", None, "b"]).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(UserError, match="1 of 4 rows have no video"):
        source(tmp_path / "y.parquet", group="video").open()


def test_batches_with_workers(table: Any, tmp_path: Path) -> None:
    table(label=[0, 1, 1, 0] * 2).to_parquet(tmp_path / "x.parquet")
    one, several = (
        batches(data_module(source(tmp_path / "x.parquet"), num_workers=workers), 4)
        for workers in (0, 2)
    )
    assert equal(one, several)
    assert one[0].keys() == {"images", "labels"}


def test_classes_by_name_and_a_validation_split(table: Any, tmp_path: Path) -> None:
    rows = table(kind=["b", "a", "b", "a"] * 2)
    path = tmp_path / "x"
    datasets.DatasetDict(train=rows, val=rows.select([1, 3])).save_to_disk(path)
    train, val = source(path, val_split="val", label_column="kind").open()
    assert train.images.class_names == val.images.class_names == ["a", "b"]
    assert (len(val.images), val.images.label(0), train.images.label(0)) == (2, 0, 1)
    other = table(2, kind=["a", "z"])
    datasets.DatasetDict(train=rows, val=other).save_to_disk(tmp_path / "y")
    with pytest.raises(UserError, match="kind: z is not a class of the training data, which"):
        source(tmp_path / "y", val_split="val", label_column="kind").open()


def test_rows_without_class_or_image(table: Any, tmp_path: Path) -> None:
    rows = table(label=[0, -1] * 4).add_column("number", range(8))
    whole = rows.cast_column("picture", datasets.Image(decode=False))[0]["picture"]
    broken = [{"bytes": b"x", "path": None}, None, *[whole] * 6]
    rows = rows.remove_columns("picture").add_column("picture", broken, feature=datasets.Image())
    rows.save_to_disk(tmp_path / "x")
    train, _ = source(tmp_path / "x", max_broken_fraction=0.5).open()
    assert train.images.class_names == []
    transform = ImageTransform(resolution=16, resize="shorter_side", crop="center")
    dataset = ImageDataset(train._replace(indices=None), transform, seed=0)
    assert torch.equal(dataset[0]["images"], dataset[2]["images"])
    assert dataset.replaced_names == ["00000000", "00000001"]


def test_a_class_beyond_the_names() -> None:
    table = Table(None, "x train", ["image"], ["label"], ["a"])
    assert table.classes({"label": [0, None, -1]}) == ["a", None, None]
    with pytest.raises(UserError, match="x train: a row has the class 1, but label lists only 1"):
        table.classes({"label": [1]})


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("~/x?.parquet", ("parquet", {"data_files": "/home/me/x?.parquet"})),
        (
            "https://h.org/x.parquet?download=true",
            ("parquet", {"data_files": "https://h.org/x.parquet?download=true"}),
        ),
        ("hf:owner/name", ("owner/name", {})),
        ("s3://b/{0..1}.tar", ("webdataset", {"data_files": ["s3://b/0.tar", "s3://b/1.tar"]})),
    ],
)
def test_places(path: str, arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(kind: str, name: str | None, **options: Any) -> Any:
        options.pop("features", None)
        calls.append((kind, options))
        raise FileNotFoundError

    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    with pytest.raises(UserError, match="cannot be loaded"):
        source(path).open_table("train", streaming=True)
    assert calls == [arguments]


def test_columns_that_are_not_there(table: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table(8).to_parquet(path)
    for role in ("image", "label"):
        with pytest.raises(UserError, match=r"x\.parquet, split train, .*Current .*'picture'"):
            source(path, **{f"{role}_column": "kind"}).open()
    datasets.Dataset.from_dict({"x": [1]}).to_parquet(path)
    with pytest.raises(UserError, match=r"cannot be loaded: .*cast"):
        source(path, image_column="x").open()
    with pytest.raises(UserError, match=r"has no columns of the type Image; it has x\. Set data"):
        source(path).open()


def test_datasets_that_cannot_be_loaded(table: Any, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x.parquet"
    table(8).to_parquet(path)
    with pytest.raises(UserError, match="split test, cannot be loaded: Unknown split"):
        source(path, split="test").open()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"x\.parquet, split train, cannot be loaded: .*Parquet"):
        source(path).open()
    with pytest.raises(UserError, match=r"cannot be loaded: .*nowhere"):
        source(tmp_path / "nowhere.parquet").open()
    with pytest.raises(UserError, match=r"weights\.pandas is neither a folder nor a \.tar"):
        source(tmp_path / "weights.pandas").open()  # some versions of the library unpickle it
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs datasets: pip install 'taming\[datasets\]'"):
        source(path).open()
