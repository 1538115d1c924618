"""Training on pairs: label maps and pictures as conditions, in front and as context."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, fails

import taming
from taming.conditioning import CellClasses, ImageCondition
from taming.generation import SamplingOptions


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Eight pictures of 24×36, label maps of four classes, and grey depths."""
    for folder in ("image", "label", "depth"):
        (tmp_path / "scenes" / folder).mkdir(parents=True)
    for index in range(8):
        rng = np.random.default_rng(index)
        classes = rng.integers(0, 4, (6, 9), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
        folder = tmp_path / "scenes"
        Image.fromarray(classes).save(folder / "label" / f"{index}.png")
        Image.fromarray(classes * 60).convert("RGB").save(folder / "image" / f"{index}.jpg")
        Image.fromarray(classes * 50).save(folder / "depth" / f"{index}.png")
    return tmp_path / "scenes"


def data(pairs: Path, *more: str) -> list[str]:
    """Not square: 16×24 pixels, 2×3 codes."""
    return [
        "data=paired", f"data.path={pairs}", "data.num_classes=4", "data.val_fraction=0.25",
        "data.label_map.unlabelled=null", "data.resolution=[16,24]", *more,
    ]  # fmt: skip


@pytest.fixture
def tokenizer(run: Run) -> str:
    """An untrained one, of two by three codes."""
    taming.VQGAN(
        quantizer={"kind": "vector", "codebook_size": 16, "codebook_dim": 8},
        resolution=[16, 24],
        base_channels=8,
        channel_multipliers=[1, 2, 2, 2],
        num_residual_blocks=1,
        latent_channels=8,
    ).save_pretrained("tokenizer")
    return "vqgan=tokenizer"


def test_stage_1_is_trained_on_the_images(run: Run, pairs: Path) -> None:
    outcome = run(
        "train_vqgan", *data(pairs), *TINY_VQGAN, "perceptual=none", "run_dir=tokenizer"
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    trained = taming.VQGAN.from_pretrained("tokenizer")
    assert (trained.image_channels, trained.grid_size) == (3, (2, 3))
    assert not trained.label_maps


@pytest.mark.parametrize(
    ("condition_as", "positions"), [("prefix", "rotary_2d"), ("context", "sinusoidal")]
)
def test_label_maps_by_their_cells(
    run: Run, pairs: Path, tokenizer: str, condition_as: str, positions: str, tmp_path: Path
) -> None:
    outcome = run(
        "train_transformer", tokenizer, *data(pairs), *TINY_TRANSFORMER,
        f"condition_as={condition_as}", f"model.positions={positions}", "condition_cell=4",
        "condition_dropout=0.1", "data.label_map.unlabelled=3", "data.label_map.unlabelled_class=0",
        "run_dir=scenes_gpt",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert list((tmp_path / "scenes_gpt" / "grids").glob("samples_*.png"))
    model = taming.ImageGenerator.from_pretrained("scenes_gpt")
    assert isinstance(model.condition_tokenizer, CellClasses)
    assert (model.conditioning.unlabelled, model.conditioning.unlabelled_class) == (3, 0)
    assert model.grid_size == (2, 3) and model.conditioning.grid_size == (4, 6)
    maps = torch.zeros(2, 4, 16, 24)
    maps[:, 0] = 1.0
    assert model.sample(2, maps, seed=0, guidance_scale=2.0).shape == (2, 3, 16, 24)
    larger = maps.repeat(1, 1, 2, 2)
    assert model.sample(2, larger, options=SamplingOptions(seed=0, grid_size=(4, 6))).shape == (
        2,
        3,
        32,
        48,
    )
    resumed = run("train_transformer", "resume=scenes_gpt", "trainer.max_steps=3")
    assert resumed.status == 0, resumed.err


def test_runs_are_resumed_that_did_not_keep_how_maps_were_read(
    run: Run, pairs: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        config = ImageCondition.config
        without = {"unlabelled", "unlabelled_class"}
        older.setattr(
            ImageCondition,
            "config",
            lambda self: {k: v for k, v in config(self).items() if k not in without},
        )
        outcome = run(
            "train_transformer", tokenizer, *data(pairs), *TINY_TRANSFORMER, "run_dir=old"
        )
    assert outcome.status == 0, outcome.err
    outcome = run("train_transformer", "resume=old", "trainer.max_steps=3")
    assert outcome.status == 0, outcome.err
    model = taming.ImageGenerator.from_pretrained("old")
    assert model.conditioning.unlabelled is None


def test_label_maps_by_a_tokenizer_of_their_own(
    run: Run, pairs: Path, tokenizer: str, tmp_path: Path
) -> None:
    outcome = run(
        "train_vqgan", "experiment=label_map", f"data.path={pairs}", "size=tiny",
        "trainer.max_steps=2",
        "data.source.subfolder=label", "data.channels=4", "data.label_map.unlabelled=null",
        "data.resolution=[16,24]", "model.channel_multipliers=[1,2,2,2]", "data.val_fraction=0.25",
        "model.quantizer.codebook_size=16", "logger=csv", "run_dir=maps",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    outcome = run(
        "train_transformer", tokenizer, *data(pairs), *TINY_TRANSFORMER,
        "condition_tokenizer=maps", "run_dir=scenes_gpt",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    model = taming.ImageGenerator.from_pretrained("scenes_gpt")
    assert model.condition_tokenizer.label_maps
    assert model.conditioning.num_codes == 16


def test_pictures_by_a_tokenizer_of_their_own(run: Run, pairs: Path, tokenizer: str) -> None:
    depths = data(
        pairs, "data.condition=image", "data.source.condition_folder=depth", "data.num_classes=null"
    )
    refused = run("train_transformer", tokenizer, *depths, *TINY_TRANSFORMER, "run_dir=x")
    assert refused.status != 0
    assert "need a condition_tokenizer" in refused.err
    outcome = run(
        "train_transformer", tokenizer, *depths, *TINY_TRANSFORMER,
        "condition_tokenizer=tokenizer", "training.pkeep=0.9", "run_dir=scenes_gpt",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err


def test_an_error_in_a_loaders_worker_is_told_in_a_line(
    run: Run, pairs: Path, tokenizer: str
) -> None:
    Image.fromarray(np.full((24, 36), 9, dtype=np.uint8)).save(pairs / "label" / "3.png")
    outcome = run(
        "train_transformer", tokenizer, *data(pairs), *TINY_TRANSFORMER, "data.source.check=none",
        "data.loader.num_workers=1", "run_dir=scenes_gpt",
    )  # fmt: skip
    fails(outcome, "scenes: label/3.png has a pixel of value 9")
    assert "DataLoader" not in outcome.err


def test_what_does_not_fit_is_said_before_any_work(
    run: Run, pairs: Path, tokenizer: str, folder_overrides: tuple[str, ...]
) -> None:
    for overrides, message in (
        ([*data(pairs), "condition_tokenizer=tokenizer"], "is of pictures, and the conditions"),
        ([*data(pairs), "condition_cell=5"], "does not divide by the cell size 5"),
        ([*data(pairs), "condition_as=suffix"], "condition_as is prefix or context"),
        ([*folder_overrides, "conditioning=image"], "needs images with condition images"),
        ([*folder_overrides, "condition_as=context"], "condition_as=context is for condition im"),
        (
            [*data(pairs), "conditioning=none", "condition_as=context"],
            "condition_as=context is for condition images",
        ),
        (
            [*data(pairs), "conditioning=none", "condition_dropout=0.1"],
            "condition_dropout=0.1 leaves out the condition",
        ),
        (
            [*folder_overrides, "data.source.labels=none", "condition_dropout=0.1"],
            "condition_dropout=0.1 leaves out the condition",
        ),
        ([*data(pairs), "conditioning=class"], "needs images with classes"),
        ([*folder_overrides, "condition_cell=4"], "condition_cell=4 is for condition images"),
        (
            [*data(pairs), "conditioning=none", "condition_tokenizer=tokenizer"],
            "condition_tokenizer=tokenizer is for condition images",
        ),
        (
            [*data(pairs), "condition_tokenizer=tokenizer", "condition_cell=4"],
            "a condition_tokenizer or a condition_cell, not both",
        ),
    ):
        outcome = run(
            "train_transformer", tokenizer, *overrides, *TINY_TRANSFORMER, "run_dir=refused"
        )
        assert outcome.status != 0
        assert message in outcome.err, outcome.err
        assert not Path("refused").exists()


def test_pairs_without_their_conditions(run: Run, pairs: Path, tokenizer: str) -> None:
    outcome = run(
        "train_transformer", tokenizer, *data(pairs), *TINY_TRANSFORMER, "conditioning=none",
        "run_dir=free",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert taming.ImageGenerator.from_pretrained("free").condition_tokenizer is None
