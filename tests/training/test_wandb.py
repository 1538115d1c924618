from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger
from tiny_models import tiny_generator

from taming.conditioning import Unconditional
from taming.data import TokenDataset
from taming.training import tracking, wandb_logger
from taming.training.tracking import log_lineage


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
