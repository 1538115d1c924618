"""The experiment `label_map`: at full size on the meta device, and a step of it made small."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from PIL import Image
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, fails

from taming.cli.app import build, config_directory
from taming.vqgan import VQGAN

CONFIG = config_directory() / "experiment" / "label_map.yaml"


@pytest.fixture
def label_maps(tmp_path: Path) -> Path:
    """Eight label maps of four classes, 24×36, beside pictures."""
    (tmp_path / "scenes" / "label").mkdir(parents=True)
    (tmp_path / "scenes" / "image").mkdir()
    for index in range(8):
        rng = np.random.default_rng(index)
        classes = rng.integers(0, 4, (6, 9), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(classes).save(tmp_path / "scenes" / "label" / f"{index}.png")
        Image.new("RGB", (36, 24)).save(tmp_path / "scenes" / "image" / f"{index}.jpg")
    return tmp_path / "scenes"


def overrides(path: Path) -> list[str]:
    return ["experiment=label_map", f"data.path={path}", "size=tiny", "trainer.max_steps=2"]


def test_it_builds_at_full_size() -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose(
            "train_vqgan", ["experiment=label_map", "data.path=x", "data.channels=183"]
        )
    with torch.device("meta"):
        vqgan = build(config.model)
    assert vqgan.grid_size == (16, 16)
    assert (vqgan.image_channels, vqgan.codebook_size) == (183, 1024)
    assert build(config.perceptual) is None
    assert build(config.adversary) is None
    build(config.training, vqgan=vqgan, perceptual=None, adversary=None)


@pytest.mark.parametrize("resolution", [None, (16, 32)])
def test_it_runs_a_step(
    run: Run, label_maps: Path, tmp_path: Path, resolution: tuple[int, int] | None
) -> None:
    size = [] if resolution is None else [f"data.resolution=[{resolution[0]},{resolution[1]}]"]
    outcome = run(
        "train_vqgan", *overrides(label_maps), *size, "data.source.subfolder=label",
        "data.channels=5", "data.val_fraction=0.25", "logger=csv", "run_dir=run",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    found = {name: value for row in rows for name, value in row.items() if value}
    assert 0 <= float(found["val/mean_iou"]) <= float(found["val/pixel_accuracy"]) <= 1
    assert float(found["val/pixel_loss"]) == float(found["val/reconstruction_loss"])
    assert not {"val/psnr", "val/ssim", "val/perceptual_loss"} & found.keys()
    height, width = resolution or (32, 32)
    model = VQGAN.from_pretrained(tmp_path / "run")
    assert model.label_maps
    assert model.resolution == (height, width)
    assert model.decode(torch.zeros(1, *model.grid_size, dtype=torch.int64)).shape == (
        1, 5, height, width
    )  # fmt: skip


def test_mistakes_are_one_line(run: Run, label_maps: Path) -> None:
    for more, message in (
        ([], "must be given: data.channels"),
        (["data.channels=5"], "not a label map"),
        (
            ["data.channels=3", "data.source.subfolder=label"],
            "has a pixel of value 3, and there are 3 classes",
        ),
        (["data.channels=5", "perceptual.pretrained=true"], "pretrained"),
        (["data.channels=5", "training.reconstruction=l1"], "experiment=label_map sets both"),
        (["data=image_folder", "data.channels=3"], "data=label_maps go together"),
        (["data.channels=3", "training.reconstruction=l1"], "data=label_maps go together"),
    ):
        outcome = run("train_vqgan", *overrides(label_maps), *more, "run_dir=run")
        assert outcome.status != 0
        assert message in outcome.err


@pytest.mark.parametrize("of_maps", [True, False])
def test_tokenizers_of_the_other_kind(run: Run, label_maps: Path, of_maps: bool) -> None:
    """Three classes are not three channels."""
    VQGAN(
        quantizer={"kind": "vector", "codebook_size": 16, "codebook_dim": 4},
        resolution=16,
        base_channels=8,
        channel_multipliers=[1, 1],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=8,
        label_maps=of_maps,
    ).save_pretrained("tokenizer")
    data = "image_folder" if of_maps else "label_maps"
    kinds = ("label maps", "pictures") if of_maps else ("pictures", "label maps")
    for more in ([], ["data.channels=3"]):
        for command, tiny in (("train_transformer", TINY_TRANSFORMER), ("encode_dataset", ())):
            outcome = run(
                command, "vqgan=tokenizer", f"data={data}", f"data.path={label_maps}", *tiny, *more
            )
            fails(outcome, "trained on {}, and the data are {}".format(*kinds))
    if of_maps:
        for choice in ("image_folder", "label_maps"):
            outcome = run(
                "evaluate", "checkpoint=tokenizer", f"data={choice}", f"data.path={label_maps}"
            )
            fails(outcome, "evaluate measures pictures only")


def test_stage_1_on_paired_data(run: Run, label_maps: Path, tmp_path: Path) -> None:
    """One data set for both stages: the first takes the images alone."""
    outcome = run(
        "train_vqgan", "data=paired", f"data.path={label_maps}", "data.num_classes=4", *TINY_VQGAN,
        "data.resolution=[16,24]", "data.val_fraction=0.25", "perceptual=none", "run_dir=run",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert "2 steps done" in outcome.out
    model = VQGAN.from_pretrained(tmp_path / "run")
    assert (model.image_channels, model.resolution, model.label_maps) == (3, (16, 24), False)
