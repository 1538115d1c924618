import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tiny_data import batches, data_module, equal, files, pair_files, write_pairs

from taming.data import ImageFolder, PictureReader
from taming.data.module import ImageDataModule
from taming.data.readers import BrokenImageError
from taming.data.shard_writer import make_shards
from taming.runtime.errors import UserError


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def opened(path: Path, **settings: Any) -> ImageFolder:
    return ImageFolder(path, PictureReader(), labels="auto", **settings)


def labels(images: ImageFolder) -> list[int | None]:
    return [images.label(i) for i in range(len(images))]


@pytest.mark.parametrize("pattern", ["", "*.tar", "{000000..000003}.tar"])
def test_shards_train_like_their_folder(folder: Path, shards: Path, pattern: str) -> None:
    def module(path: Path, num_workers: int) -> ImageDataModule:
        source = files(path, check="header")
        data = data_module(source, batch_size=4, crop="random", num_workers=num_workers)
        assert data.class_names == ["cat", "dog"]
        return data

    workers = 2 if pattern == "" else 0
    assert equal(batches(module(folder, 0), 4), batches(module(shards / pattern, workers), 4))


def test_shards_hold_the_bytes_mixed(folder: Path, shards: Path) -> None:
    with tarfile.open(shards / "000000.tar") as archive:
        names = archive.getnames()
        assert len({name.split("/")[0] for name in names}) == 2
        for name in names:
            content = archive.extractfile(name).read()  # type: ignore[union-attr]
            if name.endswith(".cls"):
                assert content == (b"0" if name.startswith("cat") else b"1")
            else:
                assert content == (folder / name).read_bytes()


def test_names_with_dots_and_of_several_kinds(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "cat" / "0.png").read_bytes()
    for name in ("a.b.png", "a_b.png", "a.b.JPG"):
        (folder / "cat" / name).write_bytes(whole)
    (folder / "cat").rename(folder / "cat.v1")
    make_shards(folder, tmp_path / "x", shard_size=1)
    (tmp_path / "x" / "._000000.tar").write_bytes(b"of another system")
    found = opened(tmp_path / "x")
    assert (len(found), found.class_names) == (14, ["cat.v1", "dog"])
    names = {found.name(i) for i in range(len(found))}
    assert names >= {"cat.v1/a_b.JPG", "cat.v1/a_b_again2.png"}
    with pytest.raises(UserError, match="holds shards already"):
        make_shards(folder, tmp_path / "x", shard_size=1)


def test_classes_of_other_shards(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole = (folder / "cat" / "0.png").read_bytes()
    write_tar(tmp_path / "a.tar", {"1.png": whole, "1.cls": b"10\n", "2.cls": b"9", "2.png": whole})
    write_tar(tmp_path / "b.tar", {"x/3.png": whole, "x/3.json": b'{"label": 9}', "3.txt": b"?"})
    found = opened(tmp_path / "*.tar")
    assert (found.class_names, labels(found)) == (["9", "10"], [1, 0, 0])
    known = opened(tmp_path / "a.tar", known_classes=["8", "9", "10"])
    assert labels(known) == [2, 1]
    write_tar(tmp_path / "b.tar", {"x/3.png": whole, "x/3.json": b'{"label": null}'})
    assert opened(tmp_path / "*.tar").class_names == []
    assert "are not used, for 1 of 3 images have none, such as x/3.png" in caplog.text
    (tmp_path / "labels.csv").write_text("file_name,label\n1.png,a\n2.png,b\n")
    table = ImageFolder(tmp_path / "a.tar", PictureReader(), labels="labels.csv")
    assert (table.class_names, labels(table)) == (["a", "b"], [0, 1])
    (tmp_path / "preview.png").write_bytes(whole)
    opened(tmp_path)
    assert "images that are files are taken (12), and not those in its .tar" in caplog.text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"1": "animal/cat", "2": "animal/dog"}, (["animal/cat", "animal/dog"], [0, 1])),
        ({"a/1": "0", "b/2": "0"}, (["0"], [0, 0])),
        ({"a/1": "1", "b/2": "0"}, (["a", "b"], [0, 1])),
        ({"a/1": "b", "b/2": "a"}, (["a", "b"], [1, 0])),
    ],
)
def test_classes_of_label_files(
    given: dict[str, str], expected: Any, folder: Path, tmp_path: Path
) -> None:
    image = (folder / "cat" / "0.png").read_bytes()
    members = {f"{name}.png": image for name in given}
    members |= {f"{name}.cls": label.encode() for name, label in given.items()}
    write_tar(tmp_path / "a.tar", members)
    found = opened(tmp_path / "a.tar")
    assert (found.class_names, labels(found)) == expected
    assert opened(tmp_path / "a.tar", known_classes=[]).class_names == []
    with pytest.raises(UserError, match="is not a class of the training data, which has fox"):
        opened(tmp_path / "a.tar", known_classes=["fox"])


def test_pairs_in_shards(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", count=4)
    with tarfile.open(tmp_path / "pairs.tar", "w") as archive:
        archive.add(pairs, ".")
    train, _ = pair_files(tmp_path / "pairs.tar").open()
    assert train.conditions is not None
    assert len(train.images) == len(train.conditions) == 4


def test_validation_shards_that_are_training_shards_too(shards: Path) -> None:
    with pytest.raises(UserError, match=r"are also in data\.path"):
        files(shards, val_path=shards / "00000[2-3].tar").open()
    files(shards / "00000[0-1].tar", val_path=shards / "00000[2-3].tar").open()


def test_missing_shards(shards: Path) -> None:
    (shards / "000002.tar").unlink()
    with pytest.raises(UserError, match=r"1 of 4 shards are missing \(000002\.tar\)\. Fetch them"):
        opened(shards / "{000000..000003}.tar")
    with pytest.raises(UserError, match="does not exist"):
        opened(shards / "x*.tar")


@pytest.mark.parametrize(
    "damage", ["cut off", "cut off between files", "a header", "compressed", "empty"]
)
def test_a_corrupt_shard(shards: Path, damage: str) -> None:
    path = shards / "000001.tar"
    content = path.read_bytes()
    with tarfile.open(path) as archive:
        second = archive.getmembers()[2].offset
    path.write_bytes(
        {
            "cut off": content[: second + 600],
            "cut off between files": content[:second],
            "a header": content[:second] + b"x" * 512 + content[second + 512 :],
            "compressed": b"\x1f\x8b" + content,
            "empty": b"",
        }[damage]
    )
    with pytest.raises(UserError, match=r"the shard .*000001\.tar cannot be read \(.*fetch or"):
        opened(shards)


def test_archives_in_a_row_are_all_read(shards: Path) -> None:
    paths = sorted(shards.glob("*.tar"))
    names = [opened(shards).name(index) for index in range(11)]
    (shards.parent / "all.tar").write_bytes(b"".join(path.read_bytes() for path in paths))
    assert [opened(shards.parent / "all.tar").name(index) for index in range(11)] == names


def test_a_damaged_image_and_a_vanished_shard(shards: Path) -> None:
    with tarfile.open(shards / "000001.tar") as archive:
        first = archive.getmembers()[0]
    with (shards / "000001.tar").open("r+b") as file:
        file.seek(first.offset_data)
        file.write(b"x" * 100)
    found = opened(shards)
    found.drop_broken("full")
    assert (len(found), found.broken) == (10, [(first.name, "not an image of a known format")])
    (shards / "000003.tar").unlink()
    data = data_module(files(shards))
    assert len(data.train_dataset) + len(data.val_dataset) == 8


def test_one_sample_with_two_images(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "cat" / "0.png").read_bytes()
    write_tar(tmp_path / "a.tar", {"1.png": whole, "1.seg.png": whole})
    with pytest.raises(UserError, match=r"1\.png in .* and 1\.seg\.png in .* are one sample"):
        opened(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", {"1.png": whole})
    write_tar(tmp_path / "b.tar", {"1.png": whole})
    with pytest.raises(UserError, match=r"1\.png in .*a\.tar and 1\.png in .*b\.tar are one"):
        opened(tmp_path / "*.tar")


def test_missing_shards_are_told_from_broken_images(shards: Path) -> None:
    images, paths = opened(shards / "*.tar"), sorted(shards.glob("*.tar"))
    first = next(i for i, entry in enumerate(images._entries) if entry.archive == 0)
    paths[0].unlink()
    with pytest.raises(BrokenImageError):
        images.load(first)
    for path in paths[1:]:
        path.unlink()
    with pytest.raises(UserError, match=r"no longer there .*mounted"):
        images.load(first)
