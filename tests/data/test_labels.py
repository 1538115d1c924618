import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tiny_data import zipped

from taming.data import ImageFolder, PictureReader
from taming.data.labels import folder_labels
from taming.runtime.errors import MissingPathError, UserError


@pytest.mark.parametrize(
    ("files", "mode", "known_classes", "expected"),
    [
        ("10/a.png 9/b.png 9/deeper/c.png", "auto", None, (["9", "10"], [1, 0, 0])),
        ("photos/cat/1.png photos/dog/1.png", "auto", None, (["cat", "dog"], [0, 1])),
        ("1.png 2.png", "auto", None, ([], [None, None])),
        ("a/1.png 2.png", "auto", None, ([], [None, None])),
        ("a/1.png a/2.png", "auto", None, ([], [None, None])),
        ("a/1.png a/2.png", "folders", None, (["a"], [0, 0])),
        ("dog/1.png", "auto", ["cat", "dog"], (["cat", "dog"], [1])),
        ("v/dog/1.png v/cat/2.png", "auto", ["cat", "dog", "emu"], (["cat", "dog", "emu"], [1, 0])),
    ],
)
def test_classes_of_folders(files: str, mode: Any, known_classes: Any, expected: Any) -> None:
    assert folder_labels(files.split(), "x", known_classes, required=mode == "folders") == expected


@pytest.mark.parametrize(
    ("files", "mode", "known_classes", "message"),
    [
        ("a/1.png 2.png", "folders", None, r"x: 1 of 2 .*such as 2\.png"),
        ("train/cat/1.png val/cat/2.png", "auto", None, "train, val look like a split.*val_path"),
        ("dog/1.png fox/1.png", "auto", ["cat", "dog"], "x: fox is not a class of the training"),
        ("fox/1.png", "auto", ["cat", "dog"], "x: fox is not a class"),
        ("1.png", "auto", ["cat", "dog"], "x: 1 of 1 images are in no class folder, such as 1"),
    ],
)
def test_folders_that_cannot_be_classes(
    files: str, mode: Any, known_classes: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        folder_labels(files.split(), "x", known_classes, required=mode == "folders")


def test_the_log_names_the_image_that_prevents_classes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        folder_labels(["1.png", "2.png"], "x")
        folder_labels(["cat/1.png", "dog/2.png", "3.png"], "x")
    (message,) = caplog.messages
    assert "x: no classes, because 1 of 3 images are in no class folder, such as 3.png" in message


def labelled(path: Path, labels: str, **settings: Any) -> tuple[list[str], list[int | None]]:
    images = ImageFolder(path, PictureReader(), labels=labels, **settings)
    return images.class_names, [images.label(i) for i in range(len(images))]


def test_empty_known_classes_mean_no_classes(make_folder: Any) -> None:
    assert labelled(make_folder({"cat": 1, "dog": 1}), "auto", known_classes=[]) == ([], [None] * 2)


TABLES = {  # of a/0.png, a/1.png, b/0.png
    "csv": "\ufefflabel,file_name,size\ncat,a/0.png,1\n10,./b/0.png,2\n9,a\\1.png,3\nfox,z.png,4\n",
    "json": json.dumps({"a/0.png": "cat", "b/0.png": 10, "a/1.png": 9, "z.png": "fox"}),
    "style.json": json.dumps({"labels": [["a/0.png", "cat"], ["b/0.png", 10], ["a/1.png", 9]]}),
}


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("place", ["folder", "zip", "elsewhere"])
def test_labels_of_a_table(suffix: str, place: str, make_folder: Any, tmp_path: Path) -> None:
    root = make_folder({"a": 2, "b": 1})
    table = (tmp_path if place == "elsewhere" else root) / f"labels.{suffix}"
    table.write_text(TABLES[suffix], encoding="utf-8")
    path = zipped(root) if place == "zip" else root
    name = str(table) if place == "elsewhere" else table.name
    assert labelled(path, name) == (["9", "10", "cat"], [2, 0, 1])
    assert labelled(path, name, known_classes=["cat", "10", "9"])[1] == [0, 2, 1]
    with pytest.raises(UserError, match=r": 9, 10 is not a class .* has cat\."):
        labelled(path, name, known_classes=["cat"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.csv", "file_name,label\na/0.png,cat\n", r"no label for 1 of 2 .*a/1\.png.*has a/0"),
        ("l.csv", "file_name,label\na/0.png,cat\na/1.png\n", r"has no label for 1 of 2 images"),
        ("l.csv", "name,label\na/0.png,cat\n", "not a table .*its columns are name, label"),
        ("l.csv", "file_name;label\n", r"its columns are file_name;label\)"),
        ("l.csv", "file_name,label\na,b\n./a,c\n", r"not a table .*a is b and c"),
        ("l.csv", "", "has no label for 2 of 2 images.*has nothing"),
        ("l.csv", b"\xff\xfe", "not a table of labels"),
        ("l.json", "{", "not a table of labels .*JSONDecodeError"),
        ("l.json", "3", "not a table of labels"),
        ("l.json", "[" * 100_000, "not a table of labels .*RecursionError"),
        ("l.json", '{"labels": null}', "not a table of labels"),
        ("l.json", '[["a/0.png", 1, 2]]', "not a table of labels"),
        ("l.json", "[[0, 1]]", "not a table of labels"),
    ],
)
def test_tables_that_do_not_fit(name: str, content: Any, message: str, make_folder: Any) -> None:
    root = make_folder({"a": 2})
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        labelled(root, name)


def test_a_table_in_a_damaged_archive(make_folder: Any) -> None:
    path = make_folder({"a": 2}).with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix("") / "a" / "0.png", "a/0.png")
        archive.writestr("labels.csv", "file_name,label\na/0.png,cat\n")
    path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))
    with pytest.raises(UserError, match=r"labels\.csv cannot be read \(Bad CRC-32"):
        labelled(path, "labels.csv")


def test_a_missing_table(make_folder: Any) -> None:
    with pytest.raises(
        MissingPathError, match=r"labels=folder does not exist .*Give auto, folders"
    ):
        labelled(make_folder({"a": 2}), "folder")


def groups(path: Path, labels: str = "auto", group: str = "video") -> Any:
    return ImageFolder(path, PictureReader(), labels=labels, group=group).groups


def test_groups_of_a_table(make_folder: Any) -> None:
    root = make_folder({"a": 2, "b": 1})
    rows = "file_name,label,video\na/0.png,x,1\na/1.png,y,1\nb/0.png,x,2\n"
    (root / "metadata.csv").write_text(rows)
    (root / "labels.csv").write_text(rows.replace(",2", ",3"))
    assert groups(root) == groups(root, "none") == groups(zipped(root)) == ["1", "1", "2"]
    assert groups(root, "labels.csv") == ["1", "1", "3"]
    images = ImageFolder(root, PictureReader(), group="video")
    images.select([2, 0])
    assert images.groups == ["2", "1"]


def test_tables_without_the_groups(make_folder: Any) -> None:
    root = make_folder({"a": 2})
    with pytest.raises(MissingPathError, match=r"metadata\.csv, which group=video needs, does not"):
        groups(root)
    (root / "metadata.csv").write_text("file_name,label,video\na/0.png,x,1\na/1.png,x,\n")
    with pytest.raises(UserError, match=r"metadata\.csv has no video for 1 of 2 .*a/1\.png"):
        groups(root)
    with pytest.raises(UserError, match=r"not a table of film .*its columns are file_name, label"):
        groups(root, group="film")
    (root / "l.json").write_text('{"a/0.png": "cat", "a/1.png": "cat"}')
    with pytest.raises(UserError, match=r"l\.json is not a table of video .*has no columns"):
        groups(root, "l.json")
