"""Label maps, and pairs: pictures and label maps as conditions, in front and as context."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, composed, fails, succeeds

import taming
from taming.cli.build import build
from taming.generation import SamplingOptions
from taming.tokenizer import CellClasses


@pytest.fixture(autouse=True)
def scenes(tmp_path: Path) -> None:
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


# not square: 16×24 pixels, 2×3 codes
PAIRS = (
    "data=paired", "data.path=scenes", "data.num_classes=4", "data.val_fraction=0.25",
    "data.label_map.unlabelled=null", "data.resolution=[16,24]",
)  # fmt: skip
MAPS = ("experiment=label_map", "data.path=scenes", "size=tiny", "trainer.max_steps=2")
STAGE_2 = ("vqgan=tokenizer", *TINY_TRANSFORMER)


def save_tokenizer(path: str = "tokenizer", **settings: object) -> None:
    """An untrained one, of two by three codes."""
    taming.VQGAN(
        quantizer={"kind": "vector", "codebook_size": 16, "codebook_dim": 8},
        resolution=[16, 24],
        base_channels=8,
        channel_multipliers=[1, 2, 2, 2],
        num_residual_blocks=1,
        latent_channels=8,
        **settings,  # type: ignore[arg-type]
    ).save_pretrained(path)


@pytest.fixture
def tokenizer(run: Run) -> None:
    save_tokenizer()


def test_the_experiment_label_map_builds_at_full_size() -> None:
    config = composed("train_vqgan", "experiment=label_map", "data.path=x", "data.channels=183")
    with torch.device("meta"):
        vqgan = build(config.model)
    assert vqgan.grid_size == (16, 16)
    assert (vqgan.image_channels, vqgan.codebook_size) == (183, 1024)
    assert build(config.perceptual) is None
    assert build(config.adversary) is None
    build(config.training, vqgan=vqgan, perceptual=None, adversary=None)


def test_a_tokenizer_of_label_maps(run: Run, tmp_path: Path) -> None:
    succeeds(run(
        "train_vqgan", *MAPS, "data.resolution=[16,32]", "data.source.subfolder=label",
        "data.channels=5", "data.val_fraction=0.25", "logger=csv", "run_dir=run",
    ))  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    values = {name: value for row in rows for name, value in row.items() if value}
    assert 0 <= float(values["val/mean_iou"]) <= float(values["val/pixel_accuracy"]) <= 1
    assert float(values["val/pixel_loss"]) == float(values["val/reconstruction_loss"])
    assert not {"val/psnr", "val/ssim", "val/perceptual_loss"} & values.keys()
    model = taming.VQGAN.from_pretrained(tmp_path / "run")
    assert model.label_maps
    assert model.resolution == (16, 32)
    indices = torch.zeros(1, *model.grid_size, dtype=torch.int64)
    assert model.decode(indices).shape == (1, 5, *model.resolution)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "settings are missing: data.channels"),
        (["data.channels=5", "data.source.subfolder=image"], "not a label map"),
        (
            ["data.channels=3", "data.source.subfolder=label"],
            "a pixel of value 3, but there are only 3",
        ),
        (
            ["data.channels=5", "data.source.subfolder=label", "training.reconstruction=l1"],
            "experiment=label_map sets both",
        ),
        (["data=image_folder", "data.channels=3"], "data=label_maps belong together"),
    ],
)
def test_label_maps_that_do_not_fit(run: Run, overrides: list[str], message: str) -> None:
    fails(run("train_vqgan", *MAPS, *overrides, "run_dir=run"), message)


@pytest.mark.parametrize("of_maps", [True, False])
def test_tokenizers_of_the_other_kind(run: Run, of_maps: bool) -> None:
    """Three classes are not three channels."""
    save_tokenizer(label_maps=of_maps)
    data = "image_folder" if of_maps else "label_maps"
    kinds = ("label maps", "pictures") if of_maps else ("pictures", "label maps")
    outcome = run(
        "encode_dataset", "vqgan=tokenizer", f"data={data}", "data.path=scenes", "data.channels=3"
    )
    fails(outcome, "trained on {} of 3 channels, and the images are {}".format(*kinds))
    if of_maps:
        outcome = run("evaluate", "checkpoint=tokenizer", "data.path=scenes")
        fails(outcome, "only grey or RGB pictures work here", "3 channels and are label maps")


def test_stage_1_of_pairs_is_trained_on_the_images(run: Run) -> None:
    succeeds(run("train_vqgan", *PAIRS, *TINY_VQGAN, "perceptual=none", "run_dir=tokenizer"))
    trained = taming.VQGAN.from_pretrained("tokenizer")
    assert (trained.image_channels, trained.resolution) == (3, (16, 24))
    assert not trained.label_maps


@pytest.mark.parametrize(
    ("condition_as", "positions"), [("prefix", "rotary_2d"), ("context", "sinusoidal")]
)
def test_label_maps_by_their_cells(
    run: Run, tokenizer: None, condition_as: str, positions: str, tmp_path: Path
) -> None:
    succeeds(run(
        "train_transformer", *STAGE_2, *PAIRS, f"condition_as={condition_as}",
        f"model.positions={positions}", "condition_cell=4", "condition_dropout=0.1",
        "data.label_map.unlabelled=3", "data.label_map.unlabelled_class=0", "run_dir=scenes_gpt",
        "report=true",
    ))  # fmt: skip
    assert "original image" in (tmp_path / "scenes_gpt" / "report.html").read_text()
    assert list((tmp_path / "scenes_gpt" / "grids").glob("samples_*.png"))
    model = taming.ImageGenerator.from_pretrained("scenes_gpt")
    assert isinstance(model.condition_tokenizer, CellClasses)
    assert (model.conditioning.unlabelled, model.conditioning.unlabelled_class) == (3, 0)
    assert model.grid_size == (2, 3) and model.conditioning.grid_size == (4, 6)
    maps = torch.zeros(2, 4, 16, 24)
    maps[:, 0] = 1.0
    assert model.sample(2, maps, seed=0, guidance_scale=2.0).shape == (2, 3, 16, 24)
    larger = SamplingOptions(seed=0, grid_size=(4, 6))
    assert model.sample(2, maps.repeat(1, 1, 2, 2), options=larger).shape == (2, 3, 32, 48)
    succeeds(run("train_transformer", "resume=scenes_gpt", "trainer.max_steps=3"))


def test_label_maps_by_a_tokenizer_of_their_own(run: Run, tokenizer: None) -> None:
    save_tokenizer("maps", image_channels=4, label_maps=True)
    succeeds(
        run("train_transformer", *STAGE_2, *PAIRS, "condition_tokenizer=maps", "run_dir=scenes_gpt")
    )
    model = taming.ImageGenerator.from_pretrained("scenes_gpt")
    assert model.condition_tokenizer.label_maps
    assert model.conditioning.num_codes == 16


def test_pictures_by_a_tokenizer_of_their_own(run: Run, tokenizer: None) -> None:
    depths = (
        *STAGE_2, *PAIRS, "data.condition=image", "data.source.condition_folder=depth",
        "data.num_classes=null", "run_dir=scenes_gpt",
    )  # fmt: skip
    fails(run("train_transformer", *depths), "need a condition_tokenizer")
    pkeep = "training.pkeep=0.9"
    succeeds(run("train_transformer", *depths, "condition_tokenizer=tokenizer", pkeep))


def test_pairs_without_their_conditions(run: Run, tokenizer: None) -> None:
    settings = ("vqgan=tokenizer", *PAIRS, "conditioning=none", "tokens.cache_dir=cache")
    succeeds(run("encode_dataset", *settings))
    assert len(list(Path("cache").glob("*/indices.npy"))) == 2
    assert not list(Path("cache").glob("*/condition_indices.npy"))


def test_an_error_in_a_loaders_worker_is_told_in_a_line(run: Run, tokenizer: None) -> None:
    Image.fromarray(np.full((24, 36), 9, dtype=np.uint8)).save("scenes/label/3.png")
    outcome = run(
        "train_transformer", *STAGE_2, *PAIRS, "data.source.check=none",
        "data.loader.num_workers=1", "run_dir=scenes_gpt",
    )  # fmt: skip
    fails(outcome, "scenes: label/3.png has a pixel of value 9")
    assert "DataLoader" not in outcome.err


@pytest.mark.parametrize(
    ("paired", "settings", "message"),
    [
        (
            True,
            "condition_tokenizer=tokenizer",
            "pictures of 3 channels, and the images are label maps of 4",
        ),
        (True, "condition_cell=5", "is not a multiple of the downsample factor 5"),
        (True, "condition_as=suffix", "condition_as should be 'prefix' or 'context'"),
        (False, "conditioning=image", "need images with condition images"),
        (False, "condition_as=context", "condition_as=context needs condition im"),
        (False, "data.source.labels=none condition_dropout=0.1", "condition_dropout=0.1 needs"),
        (True, "conditioning=class", "needs images with classes"),
        (False, "condition_cell=4", "condition_cell need images with condition"),
        (True, "condition_tokenizer=tokenizer condition_cell=4", "condition_cell, not both"),
    ],
)
def test_what_does_not_fit_is_said_before_any_work(
    run: Run,
    tokenizer: None,
    folder_overrides: tuple[str, ...],
    paired: bool,
    settings: str,
    message: str,
) -> None:
    data = PAIRS if paired else folder_overrides
    outcome = run("train_transformer", *STAGE_2, *data, *settings.split(), "run_dir=refused")
    fails(outcome, message)
    assert not Path("refused").exists()
