"""Bad input: one clear message, before any long work. See test_start.py, test_setting_types.py."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from tiny_commands import (
    TINY_TRANSFORMER,
    TINY_VQGAN,
    Run,
    fails,
    resumed,
    succeeds,
    without_python_settings,
)
from tiny_images import write_images

from taming.cli.saved_config import resume_same_command
from taming.runtime.errors import UserError
from taming.training import execution

TRAIN = (*TINY_VQGAN, "perceptual=none", "data.resolution=16", "data.val_fraction=0.25")


def test_one_broken_file_is_named_and_skipped(run: Run, images: Path) -> None:
    (images / "cats" / "broken.jpg").write_bytes(b"not a picture")
    outcome = succeeds(run("train_vqgan", f"data.path={images}", *TRAIN, "run_dir=run"))
    assert "1 of 17 images are broken and dropped (cats/broken.jpg: not an image" in outcome.err


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["data.resolution=20"], ["20×20", "downsample factor 8"]),
        (["trainer.max_time=soon"], ["soon"]),
        (["model.quantizer.kind=vecto"], ["vecto", "vector"]),
        (["+model.quantizer.size=3"], ["size"]),
        (["adversary.discriminator.num_layers=3"], ["24 pixels", "num_layers"]),
        (["finetune.mode=decoder"], ["needs a model", "finetune.checkpoint=PATH"]),
        (["trainer=gpu"], ["lightning.Trainer: No supported gpu"]),
        (["seed=-1"], ["seed should be", "equal to 0"]),
        (["seed=5000000000"], ["seed should be", "less than 4294967296"]),
        (["callbacks.best.monitor=val/x"], ["monitor"]),
        (["callbacks.best.monitor=val/codebook_usage"], ["callbacks.best.mode=max"]),
        (["training.optimizer.betas=[0.9]"], ["betas"]),
        (["model.quantizer.revive_after=0"], ["model.quantizer.revive_after", "equal to 1"]),
        (["model.quantizer.init=random"], ["model.quantizer.init", "'data' or 'kmeans'"]),
        (["adversary.augmentation=[rotate]"], ["augmentation", "'color', 'translation' or"]),
        (["trainer.devices=foo"], ["devices"]),
        (["data.resolution=[32,32,32]"], ["resolution"]),
    ],
)
def test_settings_of_stage_1(
    run: Run, images: Path, overrides: list[str], parts: list[str]
) -> None:
    fails(run("train_vqgan", f"data.path={images}", *TRAIN, *overrides), *parts)


@pytest.mark.parametrize(
    "overrides",
    [["adversary=none", "adversary.start=0", "adversary.ramp=0"],
     ["experiment=label_map", "adversary.start=0"]],
)  # fmt: skip
def test_a_setting_that_the_chosen_option_does_not_have(run: Run, overrides: list[str]) -> None:
    outcome = run("train_vqgan", "data.path=x", *overrides)
    fails(outcome, f"cannot be combined with {overrides[0]}. Leave out one of them")
    assert "Did you mean" not in outcome.err


def test_run_directory_in_use(run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...]) -> None:
    outcome = run("train_vqgan", *folder_overrides, *TRAIN, f"run_dir={vqgan_run}")
    fails(outcome, "already holds a run", "resume=vqgan")


def test_tokenizers_that_are_none(run: Run, images: Path, transformer_run: Path) -> None:
    for path, message in (
        (images, "neither a model directory"),
        (transformer_run / "metrics.csv", "is damaged, incomplete or of another program"),
    ):
        overrides = (f"data.path={images}", *TINY_TRANSFORMER, f"vqgan={path}")
        fails(run("train_transformer", *overrides), message)


def test_data_that_do_not_fit_the_tokenizer(run: Run, vqgan_run: Path, tmp_path: Path) -> None:
    command = ("train_transformer", f"vqgan={vqgan_run}", *TINY_TRANSFORMER)
    outcome = run(*command, "data=digits", "data.channels=1", "data.resolution=16")
    fails(outcome, "pictures of 1 channels", "pictures of 3 channels")
    write_images(tmp_path / "flat", 8)
    outcome = run(*command, "data.path=flat", "data.val_fraction=0.25", "conditioning=class")
    fails(outcome, "conditioning=class", "one folder per class")


def test_perceptual_weights_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise OSError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr("torch.hub.download_url_to_file", no_network)
    # the folder is empty, too: weights come first
    outcome = run("train_vqgan", "data.path=.", "trainer.max_steps=1")
    fails(outcome, "vgg16", "no network", "perceptual=none", "perceptual=features")


def test_full_disk_while_encoding(
    run: Run,
    vqgan_run: Path,
    folder_overrides: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    overrides = (f"vqgan={vqgan_run}", *folder_overrides, *TINY_TRANSFORMER, "run_dir=stage_2")
    outcome = run("train_transformer", *overrides)
    fails(outcome, "token cache", "No space left", "tokens.cache_dir")
    suffixes = [path.suffix for path in (tmp_path / "outputs" / "tokens").iterdir()]
    assert suffixes in ([], [".lock"])
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # nothing was begun: the same command works once there is room
    succeeds(run("train_transformer", *overrides))


# --- resume -------------------------------------------------------------------------------------


def test_what_cannot_change_on_resume(vqgan_run: Path) -> None:
    for override in (
        "model.base_channels=16", "data=digits", "perceptual=none", "run_dir=other",
        "data.resolution=24", "data.channels=1", "data.val_fraction=0.5", "data.source.labels=none",
        "data.val_path=x", "experiment=digits", "adversary.discriminator.num_layers=2",
        "vqgan=x", "conditioning=none", "condition_tokenizer=x", "condition_cell=4",
        "condition_dropout=0.1", "condition_as=context", "~callbacks.health", "recipe=ours",
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"{override} cannot be combined with resume="):
            resumed(vqgan_run, override)


def test_what_can_change_on_resume(vqgan_run: Path) -> None:
    overrides = ("adversary.weight=0.3", "callbacks.between=null", "data.batch_size=2")
    overrides += ("data.path=moved", "export=best", "training.optimizer.weight_decay=0.1")
    config = resumed(vqgan_run, *overrides, "trainer.max_steps=7")
    assert (config.adversary.weight, config.callbacks.between, config.export) == (0.3, None, "best")
    assert (config.data.source.path, config.data.loader.batch_size) == ("moved", 2)
    assert (config.trainer.max_steps, config.training.optimizer.weight_decay) == (7, 0.1)
    assert config.callbacks.best.dirpath == f"{vqgan_run}/checkpoints"


def test_single_values_can_change_on_resume(tmp_path: Path) -> None:
    saved = {"seed": 3, "keep_checkpoints": 2, "report": True}
    OmegaConf.save(saved, tmp_path / "config_composed.yaml")
    config = resumed(tmp_path, "keep_checkpoints=3", "report=false")
    assert (config.keep_checkpoints, config.report) == (3, False)
    with pytest.raises(UserError, match="seed=4 cannot be combined"):  # the order of the images
        resumed(tmp_path, "seed=4")


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [
        ("data.val_path", None, "images"),
        ("data.val_path", "images", None),
        ("data.source.shuffle_buffer", 10, None),
        ("data.source.split", None, "train"),
        ("data.source.num_val_images", 10, 20),
        ("seed", 0, 1),
    ],
)
def test_the_order_and_the_split_stay_when_the_same_command_goes_on(
    tmp_path: Path, key: str, before: Any, now: Any
) -> None:
    def settings(value: Any) -> DictConfig:
        config = OmegaConf.create({"run_dir": str(tmp_path), "resume": None, "trainer": {}})
        if value is not None or key == "data.val_path":
            OmegaConf.update(config, key, value, force_add=True)
        return config

    OmegaConf.save(settings(before), tmp_path / "config_composed.yaml")
    assert resume_same_command(settings(before)).resume == str(tmp_path)
    with pytest.raises(UserError, match=f"started with {key}={before}, but the command has {now}"):
        resume_same_command(settings(now))


def test_what_the_run_has_not_cannot_be_set_on_resume(run: Run, vqgan_run: Path) -> None:
    with pytest.raises(UserError, match="the run has no logger"):
        resumed(vqgan_run, "logger.wandb.project=x")
    resume = ("train_vqgan", f"resume={vqgan_run}")
    outcome = run(*resume, "data.source.root=x")
    fails(outcome, "no setting data.source.root.", "write +data.source.root=VALUE")
    config = (vqgan_run / "config_composed.yaml").read_bytes()
    outcome = run(*resume, "trainer.max_steps=9", "+data.source.root=x")
    fails(outcome, "unexpected keyword argument 'root'")
    assert (vqgan_run / "config_composed.yaml").read_bytes() == config


def test_a_run_that_is_another_now(
    run: Run, images: Path, vqgan_run: Path, transformer_run: Path
) -> None:
    outcome = run("train_transformer", f"resume={vqgan_run}", "trainer.max_steps=9")
    fails(outcome, "vqgan", "generator is needed")
    fails(run("sample", f"checkpoint={vqgan_run}"), "vqgan", "generator is needed")
    (images / "cats").rename(images / "lions")
    outcome = run("train_transformer", f"resume={transformer_run}", "trainer.max_steps=3")
    fails(outcome, "classes", "same data")


def test_time_is_limited_anew_in_each_session(
    run: Run, vqgan_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how the steps are computed is not timed again: a resumed run keeps it
    monkeypatch.setattr(execution, "seconds_per_batch", None)
    resume = ("train_vqgan", f"resume={vqgan_run}")
    limited = run(*resume, "trainer.max_steps=100000", "trainer.max_time=00:00:00:01")
    assert "out of time before step 100000" in succeeds(limited).out
    step = json.loads((vqgan_run / "result.json").read_text())["step"]
    # what stays the same may be given again
    saved = OmegaConf.load(vqgan_run / "config.yaml")
    settings = saved.trainer.precision, saved.training.compile, saved.training.channels_last
    assert settings == ("32-true", False, False)
    same = f"data.val_fraction={saved.data.val_fraction}"
    unlimited = run(*resume, f"trainer.max_steps={step + 2}", same)
    assert f"{step + 2} steps done" in unlimited.out, unlimited.err


def test_another_package_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "taming").mkdir()
    (tmp_path / "taming" / "__init__.py").touch()
    script = Path(__file__).resolve().parents[2] / "scripts" / "sample.py"
    outcome = subprocess.run(
        [sys.executable, str(script)],
        env={**without_python_settings(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 1
    assert "pip uninstall taming-transformers" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_sharing_needs_a_licence_and_a_whole_name(run: Run) -> None:
    Path("model").mkdir()
    share = ("share", "checkpoint=model")
    fails(run(*share, "repo=me/name"), "settings are missing: license. Add to the command: l")
    fails(run(*share, "repo=name", "license=mit"), "give the repository as owner/name")
