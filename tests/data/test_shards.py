"""WebDataset shards: how they are made, and what the library makes of them."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_data import batches, data_module, equal, files
from tiny_data import table_images as source

from taming.data import ImageDataset, ImageFolder, ImageTransform, LabelMapReader, PictureReader
from taming.data.huggingface import ImageTable, check_shard
from taming.data.shards import make_shards
from taming.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("table_cache")


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def opened(path: Path, known_classes: list[str] | None = None, **settings: Any) -> ImageTable:
    images = source(path, **settings)
    return ImageTable(images.open_table("train"), images, known_classes)


def labels(images: ImageTable) -> list[int | None]:
    return [images.label(i) for i in range(len(images))]


@pytest.mark.parametrize("pattern", ["", "*.tar", "{000000..000003}.tar"])
def test_shards_train_like_their_folder(folder: Path, shards: Path, pattern: str) -> None:
    reference = data_module(files(folder), batch_size=4, crop="random")
    data = data_module(
        source(shards / pattern, val_fraction=0.25),
        batch_size=4,
        crop="random",
        num_workers=2 if pattern == "" else 0,
    )
    assert equal(batches(data, 4), batches(reference, 4))
    assert data.class_names == ["cat", "dog"]
    assert data.train_dataset.name(0) == reference.train_dataset.name(0)


def test_shards_hold_the_bytes_shuffled(folder: Path, shards: Path) -> None:
    with tarfile.open(shards / "000000.tar") as archive:
        names = archive.getnames()
        assert len({name.split("/")[0] for name in names}) == 2
        for name in names:
            content = archive.extractfile(name).read()  # type: ignore[union-attr]
            if name.endswith(".cls"):
                assert content == (b"0" if name.startswith("cat") else b"1")
            else:
                assert content == (folder / name).read_bytes()


def test_names_with_dots_and_several_suffixes(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "cat" / "0.png").read_bytes()
    for name in ("a.b.png", "a_b.png", "a.b.JPG"):
        (folder / "cat" / name).write_bytes(whole)
    (folder / "cat").rename(folder / "cat.v1")
    make_shards(folder, tmp_path / "x", shard_size=1)
    (tmp_path / "x" / "._000000.tar").write_bytes(b"of another system")
    images = opened(tmp_path / "x")
    assert (len(images), images.class_names) == (14, ["cat.v1", "dog"])
    names = {images.name(i) for i in range(len(images))}
    assert names >= {"cat.v1/a_b.JPG", "cat.v1/a_b_again2.png"}
    with pytest.raises(UserError, match="already holds shards"):
        make_shards(folder, tmp_path / "x", shard_size=1)


def test_classes_of_a_table_keep_their_names(folder: Path, tmp_path: Path) -> None:
    lines = [f"{path.relative_to(folder)},{path.stem}" for path in folder.rglob("*.png")]
    (folder / "labels.csv").write_text("\n".join(["file_name,label", *lines]))
    summary = make_shards(folder, tmp_path / "x", shard_size=1, labels="labels.csv")
    assert summary.num_classes == 6
    images = opened(tmp_path / "x")
    assert images.class_names == list("012345")
    assert labels(images) == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]


def test_classes_of_other_shards(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    image = (folder / "cat" / "0.png").read_bytes()
    write_tar(tmp_path / "a.tar", {"1.png": image, "1.cls": b"10\n", "2.cls": b"9", "2.png": image})
    samples = {"./x/3.PNG": image, "./x/3.json": b'{"label": 9, "width": 24}'}
    skipped = {"__meta__": b"", "._a.json": b"?", "._b.png": b"?", "c.txt": b"no image"}
    write_tar(tmp_path / "b.tar", {**samples, **skipped})
    images = opened(tmp_path / "*.tar")
    assert (images.class_names, labels(images)) == (["9", "10"], [1, 0, 0])
    assert [images.name(i) for i in range(3)] == ["1.png", "2.png", "x/3.PNG"]
    assert labels(opened(tmp_path / "a.tar", ["8", "9", "10"])) == [2, 1]
    assert opened(tmp_path / "a.tar", []).class_names == []
    with pytest.raises(UserError, match="is not a class of the training data, which has fox"):
        opened(tmp_path / "a.tar", ["fox"])
    write_tar(tmp_path / "b.tar", {"x/3.png": image, "x/3.json": b'{"label": null}'})
    assert opened(tmp_path / "*.tar").class_names == []
    assert "no classes, because some rows have none" in caplog.text


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"1": "animal/cat", "2": "animal/dog"}, (["animal/cat", "animal/dog"], [0, 1])),
        ({"a/1": "0", "b/2": "0"}, (["0"], [0, 0])),
        ({"a/1": "1", "b/2": "0"}, (["a", "b"], [0, 1])),
        ({"a/1": "b", "b/2": "a"}, (["a", "b"], [1, 0])),
    ],
)
def test_folders_or_label_files(
    classes: dict[str, str], expected: Any, folder: Path, tmp_path: Path
) -> None:
    members = {}
    for name, label in classes.items():
        members[f"{name}.png"] = (folder / "cat" / "0.png").read_bytes()
        members[f"{name}.txt"] = label.encode()
    write_tar(tmp_path / "a.tar", members)
    images = opened(tmp_path / "a.tar", label_column="txt")
    assert (images.class_names, labels(images)) == expected


def test_an_image_with_a_longer_ending(folder: Path, tmp_path: Path) -> None:
    image = (folder / "cat" / "0.png").read_bytes()
    write_tar(tmp_path / "a.tar", {"1.rgb.png": image, "1.seg.png": b"?"})
    with pytest.raises(UserError, match=r"no sample has an image .*image_column to the ending"):
        opened(tmp_path / "a.tar")
    assert opened(tmp_path / "a.tar", image_column="rgb.png").load(0).size == (24, 24)


def test_missing_shards(shards: Path) -> None:
    (shards / "000002.tar").unlink()
    with pytest.raises(UserError, match=r"1 of 4 shards are missing \(.*000002\.tar\)\. Download"):
        opened(shards / "{000000..000003}.tar")
    with pytest.raises(UserError, match=r"1 of 1 shards are missing \(.*x\*\.tar\)"):
        opened(shards / "x*.tar")


def test_folders_of_shards_are_splits(shards: Path) -> None:
    for name, numbers in (("train", "012"), ("val", "3")):
        (shards / name).mkdir()
        for number in numbers:
            (shards / f"00000{number}.tar").rename(shards / name / f"{number}.tar")
    train, val = source(shards, val_split="validation").open()
    assert (len(train.images), len(val.images)) == (9, 2)
    with pytest.raises(UserError, match="cannot be loaded: Unknown split"):
        source(shards, val_split="test").open()


@pytest.mark.parametrize("path", ["", "*.tar", "000000.tar"])
def test_shards_opened_as_a_folder_of_images(shards: Path, path: str) -> None:
    with pytest.raises(UserError, match=r"are \.tar shards\. Add data=huggingface"):
        ImageFolder(shards / path, PictureReader())


def test_a_damaged_shard(shards: Path) -> None:
    path = shards / "000001.tar"
    content = path.read_bytes()
    with tarfile.open(path) as archive:
        second = archive.getmembers()[2].offset
    for damaged in (
        content[: second + 600],
        content[:second],  # cut off between files
        content[:second] + b"x" * 512 + content[second + 512 :],  # a header
        b"\x1f\x8b" + content,  # compressed
        b"",
        content + content,  # two in one
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"shard .*000001\.tar cannot be read \(.*Download or"):
            opened(shards)


def test_whole_shards_are_checked_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def check(path: Path) -> None:
        checked.append(path.name)
        check_shard(path)

    monkeypatch.setattr("taming.data.huggingface.check_shard", check)
    first = opened(shards).fingerprint()
    assert len(checked) == 4
    assert opened(shards).fingerprint() == first
    assert len(checked) == 4
    opened(shards).load(0)
    (shards / "000003.tar").unlink()
    assert opened(shards).fingerprint() != first


def test_a_damaged_image_is_replaced(shards: Path) -> None:
    with tarfile.open(shards / "000001.tar") as archive:
        first = archive.getmembers()[0]
    with (shards / "000001.tar").open("r+b") as file:
        file.seek(first.offset_data)
        file.write(b"x" * 100)
    train, _ = source(shards).open()
    transform = ImageTransform(resolution=16, resize="shorter_side", crop="center")
    dataset = ImageDataset(train._replace(indices=None), transform, seed=0)
    assert [dataset[i]["images"].shape for i in range(11)] == [(3, 16, 16)] * 11
    assert dataset.replaced_names == [first.name]


def test_label_maps_in_shards(tmp_path: Path) -> None:
    Image.new("L", (8, 6), 3).save(tmp_path / "1.png")
    write_tar(tmp_path / "a.tar", {"1.png": (tmp_path / "1.png").read_bytes()})
    train, _ = source(tmp_path / "a.tar", reader=LabelMapReader(5)).open()
    assert train.images.load(0).getpixel((0, 0)) == 3  # type: ignore[union-attr]
