"""Commands run in this process, on small folders of images."""

import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Outcome, Run, write_images

from taming.cli import (
    benchmark,
    compare,
    evaluate,
    import_checkpoint,
    reconstruct,
    sample,
    train_transformer,
    train_vqgan,
)

COMMANDS = {
    "train_vqgan": train_vqgan.main,
    "train_transformer": train_transformer.main,
    "sample": sample.main,
    "compare": compare.main,
    "import_checkpoint": import_checkpoint.main,
    "benchmark": benchmark.main,
    "reconstruct": reconstruct.main,
    "evaluate": evaluate.main,
}


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Run:
    """Runs a command with overrides, in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")

    def call(name: str, *overrides: str) -> Outcome:
        capfd.readouterr()
        caplog.clear()
        caplog.set_level("INFO")
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *overrides])
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as ended:
            COMMANDS[name]()
        code = ended.value.code
        captured = capfd.readouterr()
        return Outcome(
            code if isinstance(code, int) else 0, captured.out, caplog.text + captured.err
        )

    return call


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 16 images of 16×16 in two classes."""
    write_images(tmp_path / "my_images" / "cats", 8, seed=1)
    write_images(tmp_path / "my_images" / "dogs", 8, seed=2)
    return tmp_path / "my_images"


@pytest.fixture
def folder_overrides(images: Path) -> tuple[str, ...]:
    """What makes `data=image_folder` read them."""
    return (
        f"data.path={images}",
        "data.resolution=16",
        "data.val_fraction=0.25",
        "data.crop_scale=[1.0,1.0]",
    )


@pytest.fixture
def vqgan_run(run: Run, folder_overrides: tuple[str, ...], tmp_path: Path) -> Path:
    """A finished stage-1 run on them, with four codes an image."""
    outcome = run(
        "train_vqgan",
        *folder_overrides,
        *TINY_VQGAN,
        "perceptual=none",
        "run_dir=vqgan",
    )
    assert outcome.status == 0, outcome.err
    return tmp_path / "vqgan"


@pytest.fixture
def transformer_run(
    run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...], tmp_path: Path
) -> Path:
    """A finished stage-2 run on it."""
    outcome = run(
        "train_transformer",
        f"vqgan={vqgan_run}",
        folder_overrides[0],
        *folder_overrides[2:],
        *TINY_TRANSFORMER,
        "run_dir=transformer",
    )
    assert outcome.status == 0, outcome.err
    return tmp_path / "transformer"
