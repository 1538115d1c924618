"""Ctrl-C and a kill lose nothing."""

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_commands import TINY_VQGAN, Run

PATIENCE = 600  # seconds
ENDLESS = (
    "trainer.max_steps=100000",
    "trainer.val_check_interval=100000",
    "callbacks.between.every_n_train_steps=5",
)


@contextmanager
def started(run_dir: Path, overrides: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """A training that has a checkpoint; killed in the end, if it has not ended by itself."""
    keep = [o for o in TINY_VQGAN if "max_steps" not in o and "val_check_interval" not in o]
    command = "from taming.cli.start import start; start('train_vqgan')"
    arguments = [*overrides, *keep, *ENDLESS, "perceptual=none", f"run_dir={run_dir}"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (run_dir / "checkpoints" / "last.ckpt").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no checkpoint in ten minutes"
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.communicate()


def step_of(run_dir: Path) -> int:
    return torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]


@pytest.mark.slow
def test_interrupted_and_killed_runs_go_on(
    run: Run, folder_overrides: tuple[str, ...], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with started(run_dir, folder_overrides) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, err
    assert "resume=run" in out
    assert (run_dir / "model" / "config.json").is_file()
    interrupted_at = step_of(run_dir)

    killed_dir = tmp_path / "killed"
    with started(killed_dir, folder_overrides):
        pass
    killed_at = step_of(killed_dir)
    assert killed_at % 5 == 0

    for directory, step in ((run_dir, interrupted_at), (killed_dir, killed_at)):
        small = (f"trainer.max_steps={step + 3}", "trainer.log_every_n_steps=1")
        outcome = run("train_vqgan", f"resume={directory}", *small)
        assert outcome.status == 0, outcome.err
        assert step_of(directory) == step + 3
        with (directory / "metrics.csv").open(newline="") as file:
            steps = [int(row["step"]) for row in csv.DictReader(file)]
        assert steps[-4:] == [step + 1, step + 2, step + 3, step + 3]
        assert steps == sorted(steps)
