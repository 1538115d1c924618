"""Both training commands and sampling, as a user runs them."""

import json
import signal
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from filelock import FileLock
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, fails, succeeds

import taming
from taming.training.metrics_file import read_rows


def test_stage_1_writes_its_run_directory(vqgan_run: Path) -> None:
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "model/config.json"):
        assert (vqgan_run / name).is_file(), name
    result = json.loads((vqgan_run / "result.json").read_text())
    assert result["step"] == 2
    assert 0 < result["metrics"]["val/codebook_usage"] <= 1
    assert list((vqgan_run / "grids").glob("reconstructions_*.png"))
    assert [row["step"] for row in read_rows(vqgan_run / "metrics.csv")][-1] == "2"


def test_model_directory_run_directory_and_checkpoint_agree(vqgan_run: Path) -> None:
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    paths = (vqgan_run, vqgan_run / "model", vqgan_run / "checkpoints" / "last.ckpt")
    grids = [taming.VQGAN.from_pretrained(path).encode(images) for path in paths]
    assert torch.equal(grids[0], grids[1])
    assert torch.equal(grids[0], grids[2])


def sampled(run: Run, checkpoint: Path | str, *overrides: str) -> dict[str, np.ndarray]:
    succeeds(run("sample", f"checkpoint={checkpoint}", "output_dir=out", *overrides))
    with np.load("out/samples.npz") as arrays:
        return dict(arrays)


def test_sampling_writes_pixels_labels_and_pictures(run: Run, transformer_run: Path) -> None:
    one_class = sampled(run, transformer_run, "num_images=5", "classes=dogs", "batch_size=2")
    assert one_class["arr_0"].shape[0] == 5
    assert one_class["arr_1"].tolist() == [1] * 5
    arrays = sampled(run, transformer_run, "num_images=6", "batch_size=4", "write_images=true")
    pixels = arrays["arr_0"]
    assert (pixels.shape, pixels.dtype) == ((6, 16, 16, 3), np.uint8)
    assert arrays["arr_1"].tolist() == [0, 1, 0, 1, 0, 1]
    assert len(list(Path("out/images").glob("*.png"))) == 6
    with Image.open("out/images/000001_dogs.png") as single:
        assert np.array_equal(np.asarray(single), pixels[1])
    with Image.open("out/samples.png") as grid:
        assert grid.width > 16


class Unmapped(L.Callback):
    """No checkpoint is mapped while it trains: removing the file would free no disk."""

    def on_train_start(self, *args: Any) -> None:
        maps = Path("/proc/self/maps")
        assert not maps.exists() or ".ckpt" not in maps.read_text()


def test_resuming_trains_on(
    run: Run, vqgan_run: Path, transformer_run: Path, tmp_path: Path
) -> None:
    unmapped = f"+callbacks.user._target_={__name__}.Unmapped"
    for name, run_dir in (("train_vqgan", vqgan_run), ("train_transformer", transformer_run)):
        succeeds(run(name, f"resume={run_dir}", "trainer.max_steps=4", unmapped))
        assert json.loads((run_dir / "result.json").read_text())["step"] == 4
        steps = [int(row["step"]) for row in read_rows(run_dir / "metrics.csv")]
        assert steps == sorted(steps)
        assert steps[-1] == 4
        run_dir.rename(tmp_path / f"{name}_gone")  # stage 2 needs it no longer


def test_a_run_killed_in_its_export_is_exported_by_resuming_it(run: Run, vqgan_run: Path) -> None:
    whole = taming.VQGAN.from_pretrained(vqgan_run).to_saved().fingerprint()
    metrics = json.loads((vqgan_run / "result.json").read_text())["metrics"]
    for name in ("model/config.json", "result.json"):
        (vqgan_run / name).unlink()
    (vqgan_run / "model.unfinished0").mkdir()
    succeeds(run("train_vqgan", f"resume={vqgan_run}"))
    assert taming.VQGAN.from_pretrained(vqgan_run / "model").to_saved().fingerprint() == whole
    assert not (vqgan_run / "model.unfinished0").exists()
    assert json.loads((vqgan_run / "result.json").read_text())["metrics"] == metrics
    again = run("train_vqgan", f"resume={vqgan_run}")
    assert (again.status, "has completed 2 steps" in again.err) == (2, True)


def test_a_run_directory_is_for_one_process(run: Run, vqgan_run: Path) -> None:
    lock = FileLock(vqgan_run / ".lock")
    with lock:
        second = run("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3")
    assert (second.status, "another process is training in" in second.err) == (2, True)
    succeeds(run("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3"))  # as after a crash
    assert not Path(lock.lock_file).exists()


def test_a_process_that_trains_alone_is_the_first_of_its_run(
    run: Run, vqgan_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM numbers its processes even if each of them trains alone."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # as if Lightning were imported only now
    resume = ("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3")
    with FileLock(vqgan_run / ".lock"):
        fails(run(*resume), "another process is training in")
    succeeds(run(*resume))
    assert "max_steps: 3" in (vqgan_run / "config.yaml").read_text()
    assert [row["step"] for row in read_rows(vqgan_run / "metrics.csv")][-1] == "3"


class Signal(L.Callback):
    """A signal in the third step, of a user or of a cluster that needs the machine."""

    def __init__(self, name: str) -> None:
        self.signal = signal.Signals[name]

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 2:
            signal.raise_signal(self.signal)


def signalled(name: str) -> tuple[str, str]:
    return (f"+callbacks.user._target_={__name__}.Signal", f"+callbacks.user.name={name}")


def test_an_interrupted_run_goes_on(run: Run, folder_overrides: tuple[str, ...]) -> None:
    overrides = ("run_dir=run", "trainer.max_steps=100", *signalled("SIGINT"))
    first = run("train_vqgan", *folder_overrides, *TINY_VQGAN, "perceptual=none", *overrides)
    assert first.status == 130, first.err
    assert "train_vqgan.py resume=run" in first.out.splitlines()[-1]
    assert json.loads(Path("run", "result.json").read_text())["step"] == 3
    taming.VQGAN.from_pretrained("run")
    second = run("train_vqgan", "resume=run", "trainer.max_steps=5", *overrides[2:])
    assert "5 steps done" in succeeds(second).out


def test_the_same_command_begins_goes_on_and_leaves_alone(
    run: Run, folder_overrides: tuple[str, ...], transformer_run: Path
) -> None:
    always = (*folder_overrides, *TINY_VQGAN, "quantizer=ema", "perceptual=none", "resume=auto")
    always += ("trainer.max_steps=4", *signalled("SIGUSR1"))
    fails(run("train_vqgan", *always), "resume=auto needs the same directory")
    always += ("run_dir=run",)
    first = run("train_vqgan", *always)
    assert first.status == 128 + signal.SIGUSR1, first.err
    assert not Path("run", "model").exists()
    assert "4 steps done" in succeeds(run("train_vqgan", *always)).out
    assert [int(row["step"]) for row in read_rows(Path("run", "metrics.csv"))][-1] == 4
    for file in Path("run", "checkpoints").iterdir():
        file.unlink()
    done = succeeds(run("train_vqgan", *always))
    assert "run: finished, 4 steps; there is nothing to do" in done.err

    always = ("vqgan=vqgan", *folder_overrides, *TINY_TRANSFORMER, "run_dir=transformer")
    always += ("resume=auto", "trainer.max_steps=3")  # it had two
    fails(
        run("train_transformer", *always, "model.embed_dim=32"),
        "model.embed_dim=16, but the command",
    )
    assert "3 steps done" in succeeds(run("train_transformer", *always)).out


def test_without_conditions(run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...]) -> None:
    """Trained without, or with dropout, which allows both."""
    for override, name in (("conditioning=none", "free"), ("condition_dropout=0.5", "dropped")):
        overrides = (f"vqgan={vqgan_run}", *folder_overrides, *TINY_TRANSFORMER, f"run_dir={name}")
        succeeds(run("train_transformer", *overrides, override))
        generator = taming.ImageGenerator.from_pretrained(name)
        assert generator.sample(2, seed=0).shape == (2, 3, 16, 16)
    assert list(sampled(run, "free", "num_images=2")) == ["arr_0"]


def test_resume_keeps_what_the_run_was_begun_with(
    run: Run, folder_overrides: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()  # of a run that died before its first checkpoint
    (tmp_path / "run" / "config_composed.yaml").write_text("seed: 1\n")
    settings = ("adversary.start=0.5", "trainer.val_check_interval=1", "run_dir=run")
    succeeds(run("train_vqgan", *folder_overrides, *TINY_VQGAN, "perceptual=none", *settings))
    overrides = ("trainer=auto", "logger=none", "trainer.max_steps=6")
    succeeds(run("train_vqgan", "resume=run", *overrides))
    rows = read_rows(Path("run", "metrics.csv"))
    steps = {int(row["step"]) for row in rows if row["val/psnr"]}
    assert steps == {1, 2, 3, 4, 5, 6}  # val_check_interval is still 1
    # half of two steps, not half of six: the discriminator had started
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["adversary_start"] == 1


def test_images_of_other_channels_and_depths(run: Run, tmp_path: Path) -> None:
    for name in ("low", "high"):
        (tmp_path / "numbers" / name).mkdir(parents=True)
        for number in range(8):
            values = np.random.default_rng(number).integers(0, 65536, (16, 16, 4))
            np.save(tmp_path / "numbers" / name / f"{number}.npy", values.astype(np.uint16))
    data = ("data=arrays", "data.path=numbers", "data.limits=[0,65535]", "data.val_fraction=0.25")
    shape = ("data.resolution=16", "data.channels=4")
    refused = run("train_vqgan", *TINY_VQGAN, *data, *shape, "perceptual.pretrained=false")
    assert "Images with 4 channels" in refused.err
    assert "perceptual=none" in refused.err
    first = run(
        "train_vqgan", *TINY_VQGAN, *data, *shape, "perceptual=none", "run_dir=a", "report=true"
    )
    command = succeeds(first).out.strip().splitlines()[-1].split()
    assert command[2:] == [
        "vqgan=a", "data=arrays", "data.path=numbers", "data.val_fraction=0.25",
        "'data.limits=[0,65535]'",
    ]  # fmt: skip
    settings = [argument.strip("'") for argument in command[2:]]
    succeeds(run("train_transformer", *TINY_TRANSFORMER, *settings, "run_dir=b", "report=true"))
    succeeds(run("sample", "checkpoint=b", "num_images=4", "output_dir=c", "write_images=true"))
    with np.load(tmp_path / "c" / "samples.npz") as arrays:
        samples = arrays["arr_0"]
    assert (samples.shape, samples.dtype) == ((4, 16, 16, 4), np.float32)
    assert np.abs(samples).max() <= 1
    assert len(np.unique(samples)) > 1000  # more than bytes could hold
    one = sorted((tmp_path / "c" / "images").iterdir())[0]
    assert np.array_equal(np.load(one), samples[0])
    model = taming.VQGAN.from_pretrained("a")
    assert not model.label_maps
    for name in ("reconstruct", "evaluate"):
        path = "input" if name == "reconstruct" else "data.path"
        refused = run(name, "checkpoint=a", f"{path}=numbers", "output_dir=d")
        assert "4 channels" in refused.err.splitlines()[-1]
