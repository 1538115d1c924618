"""Images are encoded ahead, and a training with the same settings encodes none."""

from importlib import import_module
from pathlib import Path

import pytest
from tiny_commands import TINY_TRANSFORMER, Run, fails_before_writing, succeeds
from tiny_images import write_pairs


def forbid_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(*args: object) -> None:
        raise AssertionError("these images are encoded already")

    monkeypatch.setattr(import_module("taming.training.encode_dataset"), "_encode", encoded)


@pytest.mark.parametrize("paired", [False, True])
def test_the_training_finds_the_tokens(
    run: Run,
    vqgan_run: Path,
    folder_overrides: tuple[str, ...],
    tmp_path: Path,
    paired: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = [f"vqgan={vqgan_run}", "data.loader.num_workers=0", "tokens.num_views=3", "seed=5"]
    if paired:
        write_pairs(tmp_path / "scenes", 8)
        overrides += ["data=paired", "data.path=scenes", "data.num_classes=4", "condition_cell=4",
            "data.val_fraction=0.25", "data.label_map.unlabelled=null"]  # fmt: skip
    else:
        overrides += folder_overrides
    outcome = succeeds(run("encode_dataset", *overrides, "tokens.cache_dir=cache"))
    train, val = sorted(Path("cache").glob("[!.]*"), key=lambda path: path.name in outcome.out)
    for path in (train, val):
        assert str(path) in outcome.out
        assert (path / "meta.json").is_file()
        assert (path / "condition_indices.npy").is_file() is paired
    assert ("6 images in 3 views" if paired else "12 images in 3 views") in outcome.out
    assert ("2×2 codes each, 4×4 condition codes each" in outcome.out) is paired

    forbid_encoding(monkeypatch)
    settings = (*overrides, *TINY_TRANSFORMER, "tokens.cache_dir=cache", "run_dir=gpt")
    succeeds(run("train_transformer", *settings))
    assert len(list(Path("cache").glob("[!.]*"))) == 2


def test_without_augmentation_there_is_one_view(
    run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...]
) -> None:
    plain = ("data.transform.crop=center", "data.transform.horizontal_flip=false")
    settings = (f"vqgan={vqgan_run}", *folder_overrides, *plain, "tokens.num_views=2")
    outcome = succeeds(run("encode_dataset", *settings))
    assert "12 images, 2×2 codes each" in outcome.out
    assert "views of an image are equal. Only one is encoded" in outcome.err


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("data.path=. tokens.num_views=null", ("tokens.num_views", "not null")),
        ("data.path=. tokens.batch_size=0", ("tokens.batch_size", "greater than or equal to 1")),
        ("data.path=. trainer.max_steps=3", ("no setting trainer.max_steps",)),
    ],
)
def test_mistakes_are_one_line(
    run: Run, vqgan_run: Path, overrides: str, parts: tuple[str, ...]
) -> None:
    settings = f"vqgan={vqgan_run} tokens.cache_dir=out {overrides}"
    fails_before_writing(run("encode_dataset", *settings.split()), *parts)
