import csv
import logging
from pathlib import Path
from typing import Any

import pytest

from taming.training import MetricsFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_row_per_report_and_one_column_per_metric(path: Path) -> None:
    file = MetricsFile(path)
    file.log_metrics({"train/loss": 1 / 3, "epoch": 0}, 1)
    file.log_metrics({"val/psnr": 20.0}, 1)
    file.log_metrics({"train/loss": 0.25}, 2)
    assert rows(path) == [
        {"step": "1", "train/loss": "0.3333333", "val/psnr": ""},
        {"step": "1", "train/loss": "", "val/psnr": "20"},
        {"step": "2", "train/loss": "0.25", "val/psnr": ""},
    ]


def test_a_resumed_run_repeats_no_row(path: Path) -> None:
    file = MetricsFile(path)
    for step in range(1, 6):
        file.log_metrics({"train/loss": float(step)}, step)
    resumed = MetricsFile(path)
    for step in range(4, 7):
        resumed.log_metrics({"train/loss": 10.0 * step}, step)
    actual = [(row["step"], row["train/loss"]) for row in rows(path)]
    assert actual == [("1", "1"), ("2", "2"), ("3", "3"), ("4", "40"), ("5", "50"), ("6", "60")]


def test_a_full_disk_only_loses_its_rows(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MetricsFile(path)
    file.log_metrics({"train/loss": 0.5, "val/psnr": 20.0}, 1)
    really_open = Path.open

    def fills_up(self: Path, mode: str = "r", **settings: Any) -> Any:
        if mode == "a":
            with really_open(self, mode) as half:
                half.write("2,0.2")
        if mode in "awx":
            raise OSError(28, "No space left on device")
        return really_open(self, mode, **settings)

    with caplog.at_level(logging.WARNING, "taming"), monkeypatch.context() as patch:
        patch.setattr(Path, "open", fills_up)
        file.log_metrics({"train/loss": 0.25, "val/psnr": 21.0}, 2)
        file.log_metrics({"train/loss": 0.25, "new": 1.0}, 3)  # cannot be written, either
    file.log_metrics({"train/loss": 0.125, "new": 2.0}, 4)
    file.log_metrics({"train/loss": 0.125, "new": 3.0}, 5)
    assert ["No space left" in message for message in caplog.messages] == [True, True]
    actual = [(row["step"], row["val/psnr"], row["new"]) for row in rows(path)]
    assert actual == [("1", "20", ""), ("4", "", "2"), ("5", "", "3")]


@pytest.mark.parametrize(
    ("damaged", "steps"),
    [
        (b"2,0.25\r\n3,0.223,0.2,31\r\n4,0.2,32\r\n", "14"),  # too few, and glued to half a row
        (b"2,0.25,30\r\n3,0.2,3", "12"),  # 3 of 31: a number too, and the wrong one
        (b"2,0.25,30\r\n" + bytes(200_000) + b"3,0.2,31\r\n\xff\xfe,1,1\r\n", "12"),
    ],
)
def test_a_damaged_file_is_continued(path: Path, damaged: bytes, steps: str) -> None:
    path.write_bytes(b"step,train/loss,val/psnr\r\n1,0.5,\r\n" + damaged)
    MetricsFile(path).log_metrics({"train/loss": 0.125, "test/psnr": 40.0}, 8)
    assert [row["step"] for row in rows(path)] == [*steps, "8"]
    last = {"step": "8", "train/loss": "0.125", "val/psnr": "", "test/psnr": "40"}
    assert rows(path)[-1] == last
