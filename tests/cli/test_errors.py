"""Bad input: one clear message, before any long work."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tiny_commands import (
    TINY_TRANSFORMER,
    TINY_VQGAN,
    Run,
    fails,
    without_python_settings,
    write_images,
)

TRAIN = (*TINY_VQGAN, "perceptual=none", "data.resolution=16")


def test_missing_path(run: Run) -> None:
    fails(run("train_vqgan", "data.path=nowhere", *TRAIN), "nowhere", "does not exist")


def test_values_that_must_be_given(run: Run) -> None:
    fails(run("train_vqgan", *TRAIN), "data.path")
    fails(run("train_transformer", "data.path=x"), "vqgan")
    fails(run("sample"), "checkpoint")


def test_empty_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    fails(run("train_vqgan", "data.path=empty", *TRAIN), "empty", "no images")


def test_one_broken_file_is_named_and_skipped(run: Run, images: Path) -> None:
    (images / "cats" / "broken.jpg").write_bytes(b"not a picture")
    outcome = run(
        "train_vqgan", f"data.path={images}", *TRAIN, "data.val_fraction=0.25", "run_dir=run"
    )
    assert outcome.status == 0, outcome.err
    assert "1 broken files left out: cats/broken.jpg" in outcome.err


def test_resolution_that_does_not_divide(run: Run, images: Path) -> None:
    outcome = run("train_vqgan", f"data.path={images}", *TRAIN, "data.resolution=20")
    fails(outcome, "20×20", "downsample factor 8")


def test_mistyped_override(run: Run, images: Path) -> None:
    path = f"data.path={images}"
    outcome = run("train_vqgan", path, *TRAIN, "trainer.max_step=3")
    fails(outcome, "no setting trainer.max_step. Did you mean trainer.max_steps")
    fails(
        run("train_vqgan", path, *TRAIN, "experiment=flower64"),
        "'experiment/flower64'",
        "flowers64",
    )
    fails(run("train_vqgan", "data.path=my=images"), "data.path=my=images", "two pairs of quotes")


def test_a_setting_that_the_chosen_option_does_not_have(run: Run) -> None:
    outcome = run("train_vqgan", "data.path=x", "adversary=none", "adversary.start=0")
    fails(outcome, "adversary.start does not go with adversary=none: leave out one of them")
    assert "Did you mean" not in outcome.err
    # with two of them, too, and in an experiment's choice
    two = ("adversary.start=0", "adversary.ramp=0")
    fails(run("train_vqgan", "data.path=x", "adversary=none", *two), "go with adversary=none")
    outcome = run("train_vqgan", "data.path=x", "experiment=label_map", "adversary.start=0")
    fails(outcome, "adversary.start does not go with experiment=label_map")


def test_mistyped_value(run: Run, images: Path) -> None:
    path = f"data.path={images}"
    fails(run("train_vqgan", path, *TRAIN, "export=bset"), "bset", "'best' or 'last'")
    fails(run("train_vqgan", path, *TRAIN, "trainer.max_time=soon"), "soon")
    fails(run("train_vqgan", path, *TRAIN, "model.quantizer.kind=vecto"), "vecto", "vector")
    fails(run("train_vqgan", path, *TRAIN, "+model.quantizer.size=3"), "size")


def test_discriminator_too_deep_for_the_images(run: Run, images: Path) -> None:
    outcome = run(
        "train_vqgan", f"data.path={images}", *TRAIN, "adversary.discriminator.num_layers=3"
    )
    fails(outcome, "24 pixels", "num_layers")


def test_run_directory_in_use(run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...]) -> None:
    outcome = run("train_vqgan", *folder_overrides, *TRAIN, f"run_dir={vqgan_run}")
    fails(outcome, "holds a run already", "resume=vqgan")


def test_nothing_to_resume(run: Run, vqgan_run: Path) -> None:
    fails(run("train_vqgan", "resume=nowhere"), "nothing to resume", "nowhere")
    outcome = run("train_vqgan", f"resume={vqgan_run}", "experiment=digits")
    fails(outcome, "experiment=digits", "cannot be combined")


def test_tokenizers_that_are_none(run: Run, images: Path, transformer_run: Path) -> None:
    data = f"data.path={images}"
    outcome = run("train_transformer", data, *TINY_TRANSFORMER, "vqgan=nowhere")
    fails(outcome, "nowhere", "does not exist")
    outcome = run("train_transformer", data, *TINY_TRANSFORMER, f"vqgan={images}")
    fails(outcome, "neither a model directory")
    text = transformer_run / "metrics.csv"
    outcome = run("train_transformer", data, *TINY_TRANSFORMER, f"vqgan={text}")
    fails(outcome, "checkpoint of this project")


def test_channels_that_are_not_the_tokenizers(run: Run, images: Path, vqgan_run: Path) -> None:
    outcome = run(
        "train_transformer", f"vqgan={vqgan_run}", *TINY_TRANSFORMER, "data=digits",
        "data.channels=1", "data.resolution=16",
    )  # fmt: skip
    fails(outcome, "channels=1", "3 channels")


def test_classes_out_of_range(run: Run, transformer_run: Path, vqgan_run: Path) -> None:
    checkpoint = f"checkpoint={transformer_run}"
    fails(run("sample", checkpoint, "classes=[2]"), "class 2", "0 to 1", "cats, dogs")
    fails(run("sample", checkpoint, "classes=[cow]"), "cow")
    fails(run("sample", checkpoint, "classes=[]"), "empty")
    fails(run("sample", f"checkpoint={vqgan_run}"), "vqgan", "generator")


def test_sampling_values_out_of_range(run: Run, transformer_run: Path) -> None:
    checkpoint = f"checkpoint={transformer_run}"
    for override in ("temperature=0", "top_k=0", "top_p=1.5", "num_images=0", "device=abacus"):
        fails(run("sample", checkpoint, override), override.split("=")[0])


def test_conditioning_without_classes(run: Run, vqgan_run: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "flat", 8)
    outcome = run(
        "train_transformer",
        f"vqgan={vqgan_run}",
        "data.path=flat",
        "data.val_fraction=0.25",
        *TINY_TRANSFORMER,
        "conditioning=class",
    )
    fails(outcome, "conditioning=class", "one folder a class")


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
    outcome = run("train_vqgan", "data.path=.", "perceptual=features", "perceptual.weights=no.pth")
    fails(outcome, "no.pth", "does not exist")


def test_no_gpu(run: Run) -> None:
    fails(run("train_vqgan", "data.path=.", *TRAIN, "trainer=gpu"), "no CUDA GPU", "trainer=cpu")
    outcome = run("train_transformer", "data.path=.", "vqgan=.", "trainer=ddp")
    fails(outcome, "no CUDA GPU", "trainer=cpu")


def test_full_disk_while_encoding(
    run: Run,
    vqgan_run: Path,
    folder_overrides: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    outcome = run(
        "train_transformer",
        f"vqgan={vqgan_run}",
        *folder_overrides,
        *TINY_TRANSFORMER,
        "run_dir=stage_2",
    )
    fails(outcome, "token cache", "No space left", "tokens.cache_dir")
    left = [path.suffix for path in (tmp_path / "outputs" / "tokens").iterdir()]
    assert left in ([], [".lock"])
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # nothing was begun: the same command works once there is room
    outcome = run(
        "train_transformer",
        f"vqgan={vqgan_run}",
        *folder_overrides,
        *TINY_TRANSFORMER,
        "run_dir=stage_2",
    )
    assert outcome.status == 0, outcome.err


def test_resume_of_the_other_stage(run: Run, vqgan_run: Path, transformer_run: Path) -> None:
    outcome = run("train_transformer", f"resume={vqgan_run}", "trainer.max_steps=9")
    fails(outcome, "vqgan", "generator is needed")


def test_what_cannot_change_on_resume(run: Run, vqgan_run: Path) -> None:
    for override in ("model.base_channels=16", "data=digits", "perceptual=none", "run_dir=other",
        "data.resolution=24", "data.channels=1", "data.val_fraction=0.5", "data.source.labels=none",
        "data.val_path=x"):  # fmt: skip
        fails(run("train_vqgan", f"resume={vqgan_run}", override), override, "resume=")


def test_what_the_run_has_not_cannot_be_set_on_resume(run: Run, vqgan_run: Path) -> None:
    resume = f"resume={vqgan_run}"
    fails(run("train_vqgan", resume, "logger.wandb.project=x"), "the run has no logger")
    outcome = run("train_vqgan", resume, "data.source.root=x")
    fails(
        outcome,
        "no setting data.source.root.",
        "one of the resumed run, write +data.source.root=VALUE",
    )
    config = (vqgan_run / "config_composed.yaml").read_bytes()
    outcome = run("train_vqgan", resume, "trainer.max_steps=9", "+data.source.root=x")
    fails(outcome, "unexpected keyword argument 'root'")
    assert (vqgan_run / "config_composed.yaml").read_bytes() == config


def test_time_is_limited_anew_in_each_session(run: Run, vqgan_run: Path) -> None:
    resume = f"resume={vqgan_run}"
    limited = run("train_vqgan", resume, "trainer.max_steps=100000", "trainer.max_time=00:00:00:01")
    assert limited.status == 0, limited.err
    assert "out of time before step 100000" in limited.out
    step = json.loads((vqgan_run / "result.json").read_text())["step"]
    unlimited = run("train_vqgan", resume, f"trainer.max_steps={step + 2}")
    assert f"{step + 2} steps done" in unlimited.out, unlimited.err


def test_what_stays_the_same_may_be_given_again_on_resume(run: Run, vqgan_run: Path) -> None:
    saved = OmegaConf.load(vqgan_run / "config.yaml")
    again = f"data.val_fraction={saved.data.val_fraction}"
    outcome = run("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3", again)
    assert outcome.status == 0, outcome.err


@pytest.mark.parametrize("override", ["condition_tokenizer=x", "condition_cell=4",
    "condition_dropout=0.1", "condition_as=context"])  # fmt: skip
def test_conditions_cannot_change_on_resume(run: Run, transformer_run: Path, override: str) -> None:
    config = (transformer_run / "config.yaml").read_bytes()
    outcome = run("train_transformer", f"resume={transformer_run}", "trainer.max_steps=3", override)
    fails(outcome, f"its own configuration: {override} cannot be combined")
    assert (transformer_run / "config.yaml").read_bytes() == config


def test_classes_changed_since_the_run(run: Run, images: Path, transformer_run: Path) -> None:
    (images / "cats").rename(images / "lions")
    outcome = run("train_transformer", f"resume={transformer_run}", "trainer.max_steps=3")
    fails(outcome, "classes", "same data")


@pytest.mark.parametrize("override", ["seed=-1", "callbacks.average.decay=1.5",
    "adversary.weight=-1",
    "callbacks.best.monitor=val/x", "training.optimizer.learning_rate=0",
    "training.reconstruction=l3", "model.quantizer.revive_after=0",
    "trainer.devices=foo", "trainer.strategy=foo", "training.optimizer.weight_decay=-1",
    "training.optimizer.betas=[0.9]", "training.optimizer.betas=[0.9,1.5]",
    "training.optimizer.final_fraction=-2", "data.resolution=[32,32,32]"])  # fmt: skip
def test_values_out_of_range(run: Run, images: Path, override: str) -> None:
    outcome = run("train_vqgan", f"data.path={images}", "data.val_fraction=0.25", *TRAIN, override)
    fails(outcome, override.split("=")[0].rsplit(".", 1)[-1])


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


def test_finetuning_needs_a_model_and_a_mode(run: Run, images: Path) -> None:
    path = f"data.path={images}"
    decoder = run("train_vqgan", path, *TRAIN, "finetune.mode=decoder")
    fails(decoder, "finetune.mode=decoder needs a model", "finetune.checkpoint=PATH")
    unknown = run("train_vqgan", path, *TRAIN, "finetune.mode=encoder", "finetune.checkpoint=.")
    fails(unknown, "finetune.mode is one of whole, decoder, new_codebook", "'encoder'")
