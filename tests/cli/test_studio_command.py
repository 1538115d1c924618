"""`studio` from the command line, up to the server."""

from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Run, fails, succeeds

pytest.importorskip("gradio", reason="needs Gradio")

from taming import studio


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be served, and how."""
    calls: dict[str, Any] = {}

    def build(*models: Any) -> None:
        calls["models"] = models

    monkeypatch.setattr(studio, "build_studio", build)
    monkeypatch.setattr(studio, "serve", lambda page, **settings: calls.update(settings))
    return calls


def test_a_run_is_shown_and_watched_on_this_machine(
    run: Run, served: dict[str, Any], transformer_run: Path, vqgan_run: Path
) -> None:
    succeeds(run("studio", f"checkpoint={transformer_run}", f"other={vqgan_run}"))
    model, other, watched = served["models"]
    assert model.generator is not None and other.generator is None
    assert watched == transformer_run
    assert served["host"] == "127.0.0.1"
    assert served["password"] is None


def test_a_run_without_a_checkpoint_is_watched(
    run: Run, served: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "metrics.csv").write_text("step,train/loss\n")
    outcome = succeeds(run("studio", "checkpoint=begun"))
    assert "The studio only shows how the training progresses." in outcome.out
    assert served["models"] == (None, None, Path("begun"))


def test_a_password_comes_from_the_environment(
    run: Run, served: dict[str, Any], vqgan_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMING_STUDIO_PASSWORD", "secret")
    succeeds(run("studio", f"checkpoint={vqgan_run}", "host=0.0.0.0"))
    assert served["password"] == "secret"


def test_others_are_not_let_in_without_a_password(run: Run, vqgan_run: Path) -> None:
    fails(run("studio", f"checkpoint={vqgan_run}", "host=0.0.0.0"), "host=0.0.0.0", "password")


def test_what_is_no_model_is_said(run: Run, images: Path) -> None:
    fails(run("studio", f"checkpoint={images}"), "neither a model directory")
