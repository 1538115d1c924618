import logging
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_data import zipped

from taming.data import ImageFolder, PictureReader
from taming.data.files import natural_key
from taming.data.readers import BrokenImageError
from taming.runtime.errors import MissingPathError, UserError


def opened(path: Path, check: Any = "full", **settings: Any) -> ImageFolder:
    reader = settings.pop("reader", PictureReader())
    source = ImageFolder(path, reader, **{"labels": "auto", "max_broken_fraction": 0.2, **settings})
    source.drop_broken(check)
    return source


def names(source: ImageFolder) -> list[str]:
    return [source.name(i) for i in range(len(source))]


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


def test_all_images_except_hidden_ones_are_listed(make_folder: Any) -> None:
    root = make_folder({"": 1, "deep/er": 2, ".cache": 1, "__MACOSX": 1})
    (root / "._0.png").write_bytes(b"resource fork")
    (root / "notes.txt").write_text("no image")
    for suffix in ("JPG", "jpeg", "webp", "bmp", "tif", "tiff"):
        Image.new("RGB", (8, 8)).save(root / f"x.{suffix}")
    expected = "0.png deep/er/0.png deep/er/1.png x.JPG x.bmp x.jpeg x.tif x.tiff x.webp"
    assert names(opened(root)) == expected.split()


def test_a_member_that_was_written_again_counts_once(make_folder: Any) -> None:
    archive = zipped(make_folder({"": 2}))
    with zipfile.ZipFile(archive, "a") as whole, pytest.warns(UserWarning, match="Duplicate"):
        whole.writestr("0.png", whole.read("1.png"))
    source = opened(archive)
    assert names(source) == ["0.png", "1.png"]
    assert np.array_equal(np.asarray(source.load(0)), np.asarray(source.load(1)))


def test_a_folder_that_may_not_be_read(make_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(UserError, match="cannot be read: check its permissions"):
        opened(make_folder({"": 1}))


@pytest.mark.parametrize("kind", ["plain", "outer folder", "backslashes"])
def test_a_zip_equals_its_folder(make_folder: Any, kind: str) -> None:
    root = make_folder({"cat": 1, "dog": 2, "__MACOSX": 1})
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        if kind == "backslashes":
            archive.writestr("cat\\", b"")
        for file in sorted(root.rglob("*.png"), reverse=True):
            name = file.relative_to(root).as_posix()
            name = f"my photos/{name}" if kind == "outer folder" else name
            archive.write(file, name.replace("/", "\\") if kind == "backslashes" else name)
    folder, inside = opened(root), opened(path)
    assert [name.removeprefix("my photos/") for name in names(inside)] == names(folder)
    assert names(folder) == ["cat/0.png", "dog/0.png", "dog/1.png"]
    assert folder.class_names == inside.class_names == ["cat", "dog"]
    assert folder.sizes == inside.sizes == opened(path, "header").sizes == [(24, 24)] * 3
    for i, label in enumerate([0, 1, 1]):
        assert folder.label(i) == inside.label(i) == label
        assert np.array_equal(np.asarray(folder.load(i)), np.asarray(inside.load(i)))


def test_a_damaged_zip_member_is_a_broken_file(make_folder: Any) -> None:
    archive = zipped(make_folder({"": 12}))
    with zipfile.ZipFile(archive) as whole:
        place = whole.getinfo("10.png").header_offset + 200
    content = bytearray(archive.read_bytes())
    content[place] ^= 255  # its checksum no longer fits
    archive.write_bytes(content)
    source = opened(archive)
    assert [name for name, _ in source.broken] == ["10.png"]
    assert names(source)[-2:] == ["9.png", "11.png"]  # in natural order


def test_a_file_that_is_too_large_is_broken_before_it_is_read(
    make_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder({"": 5})
    bomb = root / "bomb.png"
    bomb.write_bytes(b"0" * 9000)
    archive = zipped(root)
    monkeypatch.setattr("taming.data.image_folder.MAX_BYTES", 8000)
    for path in root, archive:
        for check in "full", "header":
            assert opened(path, check).broken == [
                ("bomb.png", "0 MiB, and at most 0 MiB can be read")
            ]


def test_a_damaged_zip_directory_is_a_user_error(make_folder: Any) -> None:
    """Versions of the future, names that are no text, extra fields of another length."""
    archive = zipped(make_folder({"": 3}))
    whole = archive.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    random = np.random.default_rng(0)
    kinds = set()
    for _ in range(400):
        content = bytearray(whole)
        for place in random.integers(directory, len(whole), 2):
            content[place] = random.integers(256)
        archive.write_bytes(content)
        try:
            opened(archive)
        except UserError as error:
            kinds.add(type(error.__cause__).__name__)
    assert {"NotImplementedError", "BadZipFile"} <= kinds


def test_links_to_folders_are_followed_but_not_in_circles(make_folder: Any) -> None:
    root = make_folder({"cat": 2})
    (root / "dog").symlink_to(make_folder({"": 1}, "elsewhere"), target_is_directory=True)
    (root / "cat" / "up").symlink_to(root, target_is_directory=True)
    assert names(opened(root)) == ["cat/0.png", "cat/1.png", "dog/0.png"]


def test_links_that_lead_nowhere_are_broken_files(make_folder: Any) -> None:
    root = make_folder({"cat": 2, "dog": 2})
    for link in ("dog/2.jpg", "dog/.3.jpg", "notes"):
        (root / link).symlink_to(root / "annex" / "SHA256-1")
    for check in ("full", "header"):
        source = opened(root, check)
        ((name, why),) = source.broken
        assert name == "dog/2.jpg"
        assert "No such file" in why
        assert len(source) == 4


@pytest.mark.parametrize("as_zip", [False, True])
def test_broken_files_are_dropped_counted_and_named(
    make_folder: Any, caplog: pytest.LogCaptureFixture, as_zip: bool
) -> None:
    root = make_folder({"cat": 6, "dog": 5})
    (root / "cat" / "0.png").write_bytes(b"")
    cut_off(root / "dog" / "4.png")
    with caplog.at_level(logging.WARNING, "taming"):
        source = opened(zipped(root) if as_zip else root)
    assert [name for name, _ in source.broken] == ["cat/0.png", "dog/4.png"]
    assert len(source) == 9
    assert [source.label(i) for i in range(9)] == [0] * 5 + [1] * 4
    assert source.sizes == [(24, 24)] * 9
    (message,) = caplog.messages
    assert "2 of 11 images are broken and dropped (cat/0.png: not an image" in message


def test_too_many_broken_files_stop(make_folder: Any) -> None:
    root = make_folder({"": 10})
    for i in (3, 7):
        cut_off(root / f"{i}.png")
    assert len(opened(root, max_broken_fraction=0.2)) == 8
    with pytest.raises(UserError, match=r"2 of 10 .*3\.png.*7\.png.*broken_fraction is 0\.19"):
        opened(root, max_broken_fraction=0.19)


def test_checks(make_folder: Any) -> None:
    root = make_folder({"": 8})
    for i in range(2):
        Image.effect_noise((64, 64), 50).save(root / f"{i}.jpg")
    cut_off(root / "1.jpg")
    (root / "0.png").write_bytes(b"gone")
    assert [n for n, _ in opened(root, "full").broken] == ["0.png", "1.jpg"]
    assert [n for n, _ in opened(root, "auto").broken] == ["0.png", "1.jpg"]  # a small set
    assert [n for n, _ in opened(root, "header").broken] == ["0.png"]
    assert opened(root, "none").broken == []


def test_a_single_image(tmp_path: Path) -> None:
    path = tmp_path / "picture"  # no suffix
    Image.new("RGBA", (12, 8), (0, 0, 0, 0)).save(path, format="PNG")
    source = opened(path, reader=PictureReader(1))
    assert (len(source), source.name(0), source.sizes) == (1, "picture", [(8, 12)])
    image = source.load(0)
    assert (image.mode, image.getpixel((0, 0))) == ("L", 255)


def test_paths_without_images(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="nowhere does not exist"):
        opened(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no images\. .*\.jpg"):
        opened(tmp_path)
    for name, path, message in (
        ("clip.gif", "", r"holds no images \(but 1 \.gif\)"),
        ("list.txt", "list.txt", r"list\.txt: not an image"),
        ("no.zip", "no.zip", "not a readable zip"),
    ):
        (tmp_path / name).write_text("a")
        with pytest.raises(UserError, match=message):
            opened(tmp_path / path)


def test_fingerprint_follows_the_files_and_how_they_are_read(make_folder: Any) -> None:
    root = make_folder({"cat": 2, "dog": 2})
    base = opened(root).fingerprint()
    assert opened(root, "none").fingerprint() == base
    assert opened(root, labels="none").fingerprint() != base
    assert opened(root, reader=PictureReader(1)).fingerprint() != base
    assert opened(root, reader=PictureReader(3, (0, 0, 0))).fingerprint() != base
    os.utime(root / "cat" / "0.png", (2e9, 2e9))
    touched = opened(root).fingerprint()
    assert touched != base
    (root / "cat" / "1.png").rename(root / "cat" / "2.png")
    assert opened(root).fingerprint() != touched
    in_zip = opened(zipped(root)).fingerprint()
    Image.new("RGB", (24, 24)).save(root / "dog" / "1.png")
    assert opened(zipped(root)).fingerprint() != in_zip


def test_the_result_of_checking_many_files_is_saved(
    make_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, scan_dir = make_folder({"a": 3, "b": 2}), tmp_path / "scans"
    cut_off(root / "a/1.png")
    monkeypatch.setattr("taming.data.image_folder.MANY_FILES", 5)
    checked: list[str] = []
    check_file = ImageFolder._size_or_reason

    def counting(self: ImageFolder, entry: Any, full: bool) -> Any:
        checked.append(entry.name)
        result = check_file(self, entry, full)
        return "cut off" if isinstance(result, str) else result  # Pillow words it differently

    monkeypatch.setattr(ImageFolder, "_size_or_reason", counting)

    def scanned(check: Any = "full", keep: Path | None = scan_dir) -> tuple[int, Any]:
        checked.clear()
        source = ImageFolder(root, PictureReader(), labels="auto", max_broken_fraction=0.5)
        source.drop_broken(check, scan_dir=keep)
        return len(checked), (names(source), source.sizes, source.broken)

    first = scanned()
    assert first[0] == 5
    assert first[1][2] == [("a/1.png", "cut off")]
    assert scanned() == (1, first[1])  # what was broken may have been mended
    assert scanned("header")[0] == 5  # another check
    assert scanned(keep=None)[0] == 5
    scans = list(scan_dir.iterdir())
    for scan in scans:  # a damaged one counts as none
        scan.write_bytes(scan.read_bytes()[:-30])
    assert scanned() == first
    os.utime(root / "b/0.png", ns=(1, 1))  # another file
    assert scanned()[0] == 5
    (root / "b/1.png").unlink()
    assert scanned() == (4, scanned(keep=None)[1])  # few are not kept
    assert len(list(scan_dir.iterdir())) == 3


def test_natural_order() -> None:
    expected = ["10", "a", "b09", "b9", "b10"]
    assert sorted(["b10", "b9", "a", "10", "b09"], key=natural_key) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_an_unmounted_drive_is_not_a_broken_image(make_folder: Any, packed: bool) -> None:
    root = make_folder({"": 2})
    source = opened(zipped(root) if packed else root)
    (root / "0.png").unlink()
    if packed:
        source._files.path.unlink()
        source._files._opened = None  # as of a worker that has not read yet
    else:
        with pytest.raises(BrokenImageError):
            source.load(0)
        (root / "1.png").unlink()  # the place where it was mounted
    with pytest.raises(UserError, match=r"no longer there .*mounted") as caught:
        source.load(1)
    assert not isinstance(caught.value, BrokenImageError)
