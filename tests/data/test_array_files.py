import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from tiny_data import FRAME, data_module, files, zipped

from taming.data import ArrayReader, BrokenImageError, ImageFolder
from taming.runtime.errors import UserError

SIXTEEN = np.random.default_rng(0).integers(0, 65536, (9, 12, 5)).astype(np.uint16)


def npy(values: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, values, **options)
    file.seek(0)
    return file


def tiff(values: np.ndarray, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "file",
    [
        npy(SIXTEEN),
        npy(np.asfortranarray(SIXTEEN.astype(">u2"))),
        npy(SIXTEEN.transpose(2, 0, 1).astype(np.float64)),
        tiff(SIXTEEN.transpose(2, 0, 1), photometric="minisblack"),  # pages
        tiff(SIXTEEN, photometric="minisblack", planarconfig="contig"),
    ],
)
def test_every_value_is_kept(file: io.BytesIO) -> None:
    reader = ArrayReader(5, [0, 65535])  # type: ignore[arg-type]
    tensor = reader.tensor(reader.read(file, "a"))
    expected = torch.from_numpy(SIXTEEN.astype(np.float32) / 32767.5 - 1).permute(2, 0, 1)
    assert tensor.dtype == torch.float32
    torch.testing.assert_close(tensor, expected, rtol=0, atol=2e-7)


def test_half_precision_does_not_overflow() -> None:
    reader = ArrayReader(1, (-60000, 60000))
    tensor = reader.tensor(reader.read(npy(np.array([[-60000, 0, 60000]], np.float16)), "a"))
    assert tensor.tolist() == [[[-1, 0, 1]]]


def test_one_channel_needs_no_axis() -> None:
    reader = ArrayReader(1, (-1.0, 3.0))
    tensor = reader.tensor(reader.read(npy(np.array([[-1, 0, 1], [2, 3, 3]])), "a"))
    assert tensor.tolist() == [[[-1, -0.5, 0], [0.5, 1, 1]]]


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        (npy(SIXTEEN[..., :4]), UserError, r"a is an array \(9, 12, 4\), and data.channels is 5"),
        (npy(SIXTEEN[0, 0]), UserError, r"a is an array \(5,\)"),
        (npy(SIXTEEN.astype(np.int32) - 9999), UserError, r"from -\d+ to .* Widen it"),
        (npy(np.full((2, 2, 5), np.nan)), BrokenImageError, "not finite"),
        (npy(np.full((2, 2, 5), "x")), BrokenImageError, "an array of <U1, not of numbers"),
        (npy(np.full((2, 2, 5), None), allow_pickle=True), BrokenImageError, "Object arrays"),
        (io.BytesIO(npy(SIXTEEN).getvalue()[:-1]), BrokenImageError, "expected 1080 bytes"),
        (
            io.BytesIO(npy(SIXTEEN).getvalue().replace(b"(9, 12, 5), }", b"(9,12,9999),}")),
            BrokenImageError,
            r"EOF: reading array data",
        ),
        (io.BytesIO(b"II*\0" + bytes(30)), BrokenImageError, "."),
        (io.BytesIO(b""), BrokenImageError, "."),
    ],
)
def test_files_that_do_not_fit(file: io.BytesIO, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ArrayReader(5, (0, 65535)).read(file, "a")


@pytest.mark.parametrize("file", [npy(SIXTEEN), tiff(SIXTEEN[..., 0])])
def test_files_of_too_many_values(file: io.BytesIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taming.data.array_files.MAX_PIXELS", 100)
    with pytest.raises(BrokenImageError, match=r"\d+ values, and at most 100 can be read"):
        ArrayReader(5, (0, 65535)).read(file, "the file")


def test_few_copies_exist_at_once() -> None:
    file = io.BytesIO(npy(np.zeros((1000, 1000), np.float32)).getvalue())
    tracemalloc.start()
    ArrayReader(1, (0, 1)).read(file, "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 13e6  # 4 MB, and twice as many


def test_reversed_limits() -> None:
    with pytest.raises(UserError, match=r"limits is \[1.0, 0.0\]: give"):
        ArrayReader(1, (1, 0))


def test_a_folder_of_arrays_is_cropped_and_resized_like_pictures(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / "numbers" / folder).mkdir(parents=True)
        for number in range(4):
            values = np.random.default_rng(number).random((24, 32, 2))
            np.save(tmp_path / "numbers" / folder / f"{number}.npy", values)
    (tmp_path / "numbers/a/0.npy").write_bytes(b"broken")
    (tmp_path / "numbers/a/x.png").write_bytes(b"a picture")
    for path in (tmp_path / "numbers", zipped(tmp_path / "numbers")):
        data = data_module(files(path, reader=ArrayReader(2, (0, 1))), **FRAME)
        batch = next(iter(data.train_dataloader()))
        assert batch["images"].shape == (3, 2, 12, 16)
        assert (data.channels, data.num_classes, data.label_maps) == (2, 2, False)
        item = data.train_dataset[0]["images"]
        (number,) = data.train_dataset._indices[:1]
        whole = np.array(data.train_dataset.images.load(number).channels[1])
        small = torch.nn.functional.avg_pool2d(torch.from_numpy(whole)[None] * 2 - 1, 2)[0]
        assert (item[1] - small).abs().mean() < 0.15
        assert item.min() < -0.5
    assert len(ImageFolder(tmp_path / "numbers", ArrayReader(2, (0, 1)))) == 8
