"""Commands run in this process, on small folders of images."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Outcome, Run
from tiny_images import write_images

FOLDER_OVERRIDES = (
    "data.resolution=16",
    "data.val_fraction=0.25",
    "data.transform.crop_scale=[1.0,1.0]",
)


def status(patch: pytest.MonkeyPatch, name: str, *overrides: str) -> int:
    """Runs a command; its exit status."""
    patch.setenv("WANDB_MODE", "offline")
    patch.setattr(torch.cuda, "is_available", lambda: False)  # results are compared with a CPU's
    patch.setattr(torch.cuda, "device_count", lambda: 0)
    patch.setattr(sys, "argv", [f"{name}.py", *overrides])
    patch.setattr(sys, "path", sys.path.copy())
    GlobalHydra.instance().clear()
    try:
        import_module(f"taming.cli.{name}").main()
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code
    return 0


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Run:
    """Runs a command with overrides, in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *overrides: str) -> Outcome:
        capfd.readouterr()
        caplog.clear()
        caplog.set_level("INFO")
        code = status(monkeypatch, name, *overrides)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, caplog.text + captured.err)

    return call


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 16 images of 16×16 in two classes."""
    return write_classes(tmp_path)


@pytest.fixture
def folder_overrides(images: Path) -> tuple[str, ...]:
    """What makes `data=image_folder` read them."""
    return (f"data.path={images}", *FOLDER_OVERRIDES)


@pytest.fixture
def vqgan_run(run: Run, images: Path, finished_vqgan: Path, tmp_path: Path) -> Path:
    """A finished stage-1 run on them, with four codes an image."""
    return shutil.copytree(finished_vqgan, tmp_path / "vqgan")


@pytest.fixture
def transformer_run(vqgan_run: Path, finished_transformer: Path, tmp_path: Path) -> Path:
    """A finished stage-2 run on it."""
    return shutil.copytree(finished_transformer, tmp_path / "transformer")


# trained once, with paths relative to the folder, so that a copy is as if trained where it lies


@pytest.fixture(scope="session")
def finished_vqgan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    data = f"data.path={write_classes(folder).name}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        overrides = (data, *FOLDER_OVERRIDES, *TINY_VQGAN, "perceptual=none", "run_dir=vqgan")
        assert status(patch, "train_vqgan", *overrides) == 0
    return folder / "vqgan"


@pytest.fixture(scope="session")
def finished_transformer(finished_vqgan: Path) -> Path:
    folder = finished_vqgan.parent
    settings = ("vqgan=vqgan", "data.path=my_images", *FOLDER_OVERRIDES[1:], *TINY_TRANSFORMER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert status(patch, "train_transformer", *settings, "run_dir=transformer") == 0
    return folder / "transformer"


def write_classes(folder: Path) -> Path:
    write_images(folder / "my_images" / "cats", 8, seed=1)
    write_images(folder / "my_images" / "dogs", 8, seed=2)
    return folder / "my_images"
