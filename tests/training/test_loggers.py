import csv
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger
from tiny_models import tiny_generator

from taming.conditioning import Unconditional
from taming.data import TokenDataset
from taming.training import MetricsFile, tracking, wandb_logger
from taming.training.tracking import log_lineage


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_row_per_report_and_one_column_per_metric(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.log_metrics({"train/loss": 1 / 3, "epoch": 0}, 1)
    file.log_metrics({"val/psnr": 20.0}, 1)
    file.log_metrics({"train/loss": 0.25}, 2)
    assert rows(path) == [
        {"step": "1", "train/loss": "0.3333333", "val/psnr": ""},
        {"step": "1", "train/loss": "", "val/psnr": "20"},
        {"step": "2", "train/loss": "0.25", "val/psnr": ""},
    ]


def test_a_resumed_run_repeats_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    for step in range(1, 6):
        file.log_metrics({"train/loss": float(step)}, step)
    resumed = MetricsFile(path)
    for step in range(4, 7):
        resumed.log_metrics({"train/loss": 10.0 * step}, step)
    actual = [(row["step"], row["train/loss"]) for row in rows(path)]
    assert actual == [("1", "1"), ("2", "2"), ("3", "3"), ("4", "40"), ("5", "50"), ("6", "60")]


def test_a_full_disk_only_loses_its_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.log_metrics({"train/loss": 0.5, "val/psnr": 20.0}, 1)
    really_open = Path.open

    def fills_up(self: Path, mode: str = "r", **settings: Any) -> Any:
        if mode == "a":
            with really_open(self, mode) as half:
                half.write("2,0.2")
        if mode in "aw":
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
def test_a_damaged_file_is_continued(tmp_path: Path, damaged: bytes, steps: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,train/loss,val/psnr\r\n1,0.5,\r\n" + damaged)
    MetricsFile(path).log_metrics({"train/loss": 0.125, "test/psnr": 40.0}, 8)
    assert [row["step"] for row in rows(path)] == [*steps, "8"]
    last = {"step": "8", "train/loss": "0.125", "val/psnr": "", "test/psnr": "40"}
    assert rows(path)[-1] == last


def test_wandb_is_offline_unless_requested_and_an_account_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mode(**settings: Any) -> str:
        return wandb_logger(tmp_path, **settings)._wandb_init["mode"]

    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert mode(mode="online") == "offline" and "wandb login" in caplog.text
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)  # logged in, and yet
    assert mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    starts: list[str] = []
    monkeypatch.setattr(wandb, "init", lambda **settings: starts.append(settings["mode"]))
    assert (mode(), mode(mode="disabled"), starts) == ("online", "disabled", ["online"])

    def unreachable(**settings: Any) -> None:
        raise wandb.errors.CommError("no such host\nand more")

    monkeypatch.setattr(wandb, "init", unreachable)
    assert mode() == "offline"
    assert "wandb: no such host. This run is tracked offline" in caplog.text


def test_a_resumed_run_has_the_same_id_in_wandb(tmp_path: Path) -> None:
    starts = [wandb_logger(tmp_path / name)._wandb_init for name in ("a", "a", "b")]
    ids = [start["id"] for start in starts]
    assert ids[0] == ids[1] != ids[2]
    assert all(start["resume"] == "allow" for start in starts)
    assert [start["name"] for start in starts] == ["a", "a", "b"]


def test_a_sweep_uses_the_run_of_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "given")
    assert wandb_logger(tmp_path)._wandb_init["id"] == "given"
    monkeypatch.delenv("WANDB_RUN_ID")  # resumed by hand
    assert wandb_logger(tmp_path)._wandb_init["id"] == "given"


def test_an_online_run_uses_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline runs are in tests/cli/test_tracking.py."""
    calls: list[tuple[str, str]] = []
    run = SimpleNamespace(
        offline=False,
        use_artifact=lambda artifact: calls.append(("use", artifact.type)),
        log_artifact=lambda artifact, aliases: calls.append(("log", artifact.type)),
    )
    monkeypatch.setattr(WandbLogger, "experiment", run)
    artifact = wandb.Artifact("tokens-0", type="tokens")
    monkeypatch.setattr(tracking, "_token_artifact", lambda tokens: artifact)
    tiny_generator(Unconditional()).save_pretrained(tmp_path / "model")
    tokens = TokenDataset.__new__(TokenDataset)
    for artifacts in (False, True):
        log_lineage([wandb_logger(tmp_path, artifacts=artifacts)], tmp_path, None, tokens)
    assert calls == [("use", "tokenizer"), ("use", "tokens"), ("log", "generator")]
