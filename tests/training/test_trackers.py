import csv
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from taming.training import CSVTracker, WandbTracker


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_report_and_a_column_a_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    tracker = CSVTracker(path)
    tracker.metrics({"train/loss": 1 / 3}, 1)
    tracker.metrics({"val/psnr": 20.0}, 1)
    tracker.metrics({"train/loss": 0.25}, 2)
    tracker.finish()
    assert rows(path) == [
        {"step": "1", "train/loss": "0.3333333", "val/psnr": ""},
        {"step": "1", "train/loss": "", "val/psnr": "20"},
        {"step": "2", "train/loss": "0.25", "val/psnr": ""},
    ]


def test_a_resumed_run_repeats_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    tracker = CSVTracker(path)
    for step in range(1, 6):
        tracker.metrics({"train/loss": float(step)}, step)
    resumed = CSVTracker(path, first_step=3)
    for step in range(4, 7):
        resumed.metrics({"train/loss": 10.0 * step}, step)
    assert [(row["step"], row["train/loss"]) for row in rows(path)] == [
        ("1", "1"),
        ("2", "2"),
        ("3", "3"),
        ("4", "40"),
        ("5", "50"),
        ("6", "60"),
    ]


def test_a_full_disk_stops_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = CSVTracker(tmp_path / "metrics.csv")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with caplog.at_level(logging.WARNING, "taming"):
        tracker.metrics({"train/loss": 1.0}, 1)
        tracker.metrics({"train/loss": 1.0}, 2)
    assert len(caplog.messages) == 1
    assert "No space left on device" in caplog.messages[0]


@pytest.mark.parametrize(
    ("damaged", "steps", "num_lost"),
    [
        (b"2,0.25,30\r\n3,0.223,0.2,31\r\n4,0.2,32\r\n", "124", 1),  # 4 reports glued to half of 3
        (b"2,0.25\r\n3,0.2,31\r\n", "13", 1),
        (b"2,0.25,30\r\n3,0.2,3", "12", 1),  # 3 of 31: a number too, and the wrong one
        (b"2,0.25,30\r\n" + bytes(300), "12", 1),
        (b"2,0.25,30\r\n" + bytes(200_000) + b"3,0.2,31\r\n\xff\xfe,1,1\r\n", "12", 2),
    ],
)
def test_a_damaged_file_is_gone_on_with(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damaged: bytes,
    steps: str,
    num_lost: int,
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,train/loss,val/psnr\r\n1,0.5,\r\n" + damaged)
    tracker = CSVTracker(path, first_step=7)
    tracker.metrics({"train/loss": 0.125, "test/psnr": 40.0}, 8)
    assert [row["step"] for row in rows(path)] == [*steps, "8"]
    assert rows(path)[-1] == {
        "step": "8", "train/loss": "0.125", "val/psnr": "", "test/psnr": "40"
    }  # fmt: skip
    (message,) = caplog.messages
    assert f"{path}: damaged rows left out: {num_lost} " in message
    assert damaged in (tmp_path / "metrics.damaged.csv").read_bytes()


def test_a_file_that_a_spreadsheet_has_saved_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes("\ufeffstep,train/loss\r\n1,0.5\r\n".encode())
    CSVTracker(path, first_step=7).metrics({"train/loss": 0.125}, 8)
    assert rows(path) == [{"step": "1", "train/loss": "0.5"}, {"step": "8", "train/loss": "0.125"}]


def test_a_file_whose_header_is_gone_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(bytes(24) + b"\r\n1,0.5\r\n2,0.25\r\n")
    CSVTracker(path, first_step=7).metrics({"train/loss": 0.125}, 8)
    assert rows(path) == [{"step": "8", "train/loss": "0.125"}]
    assert "left out: 2 " in caplog.text


def test_a_new_number_after_damage_ends_no_training(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    tracker = CSVTracker(path)
    tracker.metrics({"train/loss": 0.5}, 1)
    path.write_bytes(path.read_bytes() + b"2,0.23,0.2\r\n")
    tracker.metrics({"val/psnr": 20.0}, 3)
    assert [row["step"] for row in rows(path)] == ["1", "3"]


def test_half_a_row_on_a_full_disk_costs_that_row_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.csv"
    tracker = CSVTracker(path)
    tracker.metrics({"train/loss": 0.5, "val/psnr": 20.0}, 1)
    really_open = Path.open

    def fills_up(self: Path, mode: str = "r", **settings: Any) -> Any:
        if mode == "r":
            return really_open(self, mode, **settings)
        if mode == "a":
            with really_open(self, mode) as file:
                file.write("2,0.2")
        raise OSError(28, "No space left on device")

    for step in (2, 5):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", fills_up)
            tracker.metrics({"train/loss": 0.25, "val/psnr": 21.0}, step)
            tracker.metrics({"train/loss": 0.25, "new": 1.0}, step + 1)  # cannot be written, either
        tracker.metrics({"train/loss": 0.125, "new": 2.0}, step + 2)
    assert [(row["step"], row["val/psnr"], row["new"]) for row in rows(path)] == [
        ("1", "20", ""),
        ("4", "", "2"),
        ("7", "", "2"),
    ]
    assert ["No space left" in message for message in caplog.messages] == [True, True]  # once each


class FakeWandb(SimpleNamespace):
    def __init__(self, api_key: str | None = None, broken: str | None = None) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.finished = 0
        self.broken = broken
        self.api = SimpleNamespace(api_key=api_key)
        self.Settings = dict
        self.Image = self.picture

    def init(self, **arguments: Any) -> Any:
        if self.broken == "init":
            raise RuntimeError("service did not start\nlong story")
        self.calls.append(arguments)
        return self

    def define_metric(self, *args: Any, **kwargs: Any) -> None:
        pass

    def picture(self, image: Image.Image) -> Any:
        if self.broken == "image":  # it writes a temporary file
            raise OSError(28, "No space left on device")
        return "image", image.size

    def log(self, values: dict[str, Any]) -> None:
        if self.broken == "log":
            raise BrokenPipeError("connection lost")
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_offline_unless_asked(
    wandb: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb.api.api_key = "someone's"  # logged in, and yet
    WandbTracker(tmp_path, {})
    monkeypatch.setenv("WANDB_MODE", "online")
    WandbTracker(tmp_path, {})
    WandbTracker(tmp_path, {}, mode="disabled")
    assert [call["mode"] for call in wandb.calls] == ["offline", "online", "disabled"]


def test_online_without_an_account_is_offline(
    wandb: FakeWandb, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    WandbTracker(tmp_path, {}, mode="online")
    assert wandb.calls[0]["mode"] == "offline"
    assert "wandb login" in caplog.text


def test_numbers_and_pictures_have_the_runs_step(wandb: FakeWandb, tmp_path: Path) -> None:
    tracker = WandbTracker(tmp_path, {"seed": 3}, name="first")
    tracker.metrics({"train/loss": 0.5}, 7)
    tracker.image("val/samples", Image.new("RGB", (4, 2)), 8)
    tracker.finish()
    assert (wandb.calls[0]["config"], wandb.calls[0]["name"]) == ({"seed": 3}, "first")
    assert wandb.logged == [
        {"train/loss": 0.5, "step": 7},
        {"val/samples": ("image", (4, 2)), "step": 8},
    ]
    assert wandb.finished == 1


def test_a_resumed_run_keeps_its_id(wandb: FakeWandb, tmp_path: Path) -> None:
    for _ in range(2):
        WandbTracker(tmp_path, {})
    assert wandb.calls[0]["id"] == wandb.calls[1]["id"]
    other = tmp_path / "other"
    other.mkdir()
    WandbTracker(other, {})
    assert wandb.calls[2]["id"] != wandb.calls[0]["id"]


@pytest.mark.parametrize("broken", ["init", "log", "image"])
def test_a_failure_of_wandb_stops_no_run(
    wandb: FakeWandb, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    wandb.broken = broken
    tracker = WandbTracker(tmp_path, {})
    for step in (1, 2):
        tracker.metrics({"train/loss": 1.0}, step)
        tracker.image("val/samples", Image.new("RGB", (2, 2)), step)
    tracker.finish()
    assert len(caplog.messages) == 1  # said once
    assert "metrics.csv has the numbers" in caplog.messages[0]
