import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_training import Run, run_training, stage

from taming.training import StepProgress


@pytest.fixture
def resume(tmp_path: Path) -> Callable[..., Run]:
    """Trains to step 4, and resumes with a progress callback."""
    run_training(tmp_path, *stage("transformer"), max_steps=4)

    def resumed(max_steps: int = 8, **options: Any) -> Run:
        settings = {"resume": True, "max_steps": max_steps, "callbacks": [StepProgress(**options)]}
        return run_training(tmp_path, *stage("transformer"), enable_progress_bar=True, **settings)

    return resumed


def test_a_log_file_gets_one_line_per_interval(
    resume: Callable[..., Run], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "taming"):
        resume(seconds_between_lines=1e-9)
    messages = [text for text in caplog.messages if "step" in text]
    assert messages[0] == "resumed at step 4"
    line = r"training, step 5/8, loss \d\.\d+, [\d.]+ steps/s, 00:0\d left"
    assert re.fullmatch(line, messages[1]), messages[1]
    assert any(text.startswith("validating: 2/3, step 6/8, loss") for text in messages)
    caplog.clear()
    with caplog.at_level(logging.INFO, "taming"):
        resume(max_steps=12)
    assert "resumed at step 8" in caplog.text
    assert "steps/s" not in caplog.text  # it took less than 30 s
    assert "\r" not in capsys.readouterr().err


def test_a_bar_starts_at_the_resumed_step(
    resume: Callable[..., Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    resume()
    _, first, *_, last = capsys.readouterr().err.split("\r")
    assert "4/8 " in first and "8/8 " in last and "loss=" in last
    assert "v_num" not in first + last
