"""Every configuration composes, and every experiment runs a step when made small."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run
from torchvision.models import squeezenet1_1

from taming.cli.app import build, config_directory

CONFIGS = config_directory()
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.fixture
def composed() -> Iterator[object]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield lambda name, *overrides: compose(name, list(overrides))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def primary(experiment: str) -> str:
    return "train_transformer" if experiment.startswith("transformer") else "train_vqgan"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """SqueezeNet weights, random, in torchvision's key names."""
    path = tmp_path / "squeezenet.pth"
    torch.save(squeezenet1_1(weights=None).state_dict(), path)
    return path


# label maps are tested in test_label_map.py
@pytest.mark.parametrize("experiment", [name for name in EXPERIMENTS if name != "label_map"])
def test_experiment_runs_a_step(
    run: Run, experiment: str, images: Path, weights: Path, vqgan_run: Path
) -> None:
    name = primary(experiment)
    tiny = list(TINY_VQGAN if name == "train_vqgan" else TINY_TRANSFORMER)
    text = (CONFIGS / "experiment" / f"{experiment}.yaml").read_text()
    if "data: image_folder" in text:
        tiny += [f"data.path={images}", "data.resolution=16", "data.val_fraction=0.25"]
    if "perceptual: features" in text:
        tiny += [f"perceptual.weights={weights}"]
        # SqueezeNet needs 17 pixels
        tiny = [o for o in tiny if o != "data.resolution=16"] + ["data.resolution=32"]
    if name == "train_transformer":
        if "data: digits" in text:
            run("train_vqgan", "experiment=digits", *TINY_VQGAN, "run_dir=tokenizer")
            tiny += ["vqgan=tokenizer"]
        else:
            tiny += [f"vqgan={vqgan_run}"]
    outcome = run(name, f"experiment={experiment}", *tiny, "run_dir=run")
    assert outcome.status == 0, outcome.err


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_sets_only_what_it_names(composed: object, experiment: str) -> None:
    config = composed(primary(experiment), f"experiment={experiment}")
    written = OmegaConf.load(CONFIGS / "experiment" / f"{experiment}.yaml")
    assert isinstance(written, DictConfig)
    for key in leaves(written):
        if not key.startswith("defaults"):
            assert OmegaConf.select(config, key) == OmegaConf.select(written, key), key


def leaves(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        value = config._get_node(key)
        name = f"{prefix}{key}"
        if isinstance(value, DictConfig):
            yield from leaves(value, f"{name}.")
        else:
            yield name


def test_model_builds_at_full_size(composed: object) -> None:
    for overrides, factor in (((), 8), (("experiment=flowers64",), 4)):
        config = composed("train_vqgan", "data.path=x", *overrides)
        with torch.device("meta"):
            vqgan = build(config.model)
        assert vqgan.downsample_factor == factor
        assert vqgan.grid_size[0] * factor == config.data.resolution
    gpt = composed("train_transformer", "data.path=x").model
    with torch.device("meta"):
        model = build(gpt, codebook_size=1024, num_prefix_ids=11, context_length=256)
    assert sum(p.numel() for p in model.blocks.parameters()) == 12 * (12 * 512**2 + 13 * 512)


@pytest.mark.parametrize("name", ["train_vqgan", "train_transformer"])
@pytest.mark.parametrize("option", options("trainer"))
def test_trainers(composed: object, name: str, option: str) -> None:
    config = composed(name, "data.path=x", f"trainer={option}")
    trainer = build(config.trainer)
    assert trainer.max_steps == 50000
    assert trainer.precision == "auto"
    expected = {"auto": "auto", "cpu": "cpu", "gpu": "gpu", "ddp": "gpu"}[option]
    assert trainer.accelerator == expected
    assert (trainer.devices == -1) is (option == "ddp")


@pytest.mark.parametrize("option", options("perceptual"))
def test_perceptual_losses(composed: object, option: str, weights: Path) -> None:
    extra = {
        "lpips": ["perceptual.pretrained=false"],
        "features": [f"perceptual.weights={weights}"],
    }
    config = composed("train_vqgan", f"perceptual={option}", *extra.get(option, []))
    loss = build(config.perceptual)
    if option == "none":
        assert loss is None
        return
    images = torch.rand(1, 3, 64, 64) * 2 - 1
    assert float(loss(images, images)) == pytest.approx(0, abs=1e-6)
    assert float(loss(-images, images)) > 0


@pytest.mark.parametrize("option", options("logger"))
def test_loggers(run: Run, folder_overrides: tuple[str, ...], option: str, tmp_path: Path) -> None:
    overrides = [o for o in TINY_VQGAN if o != "logger=csv" and not o.startswith("adversary")]
    outcome = run(
        "train_vqgan",
        *folder_overrides,
        *overrides,
        "perceptual=none",
        "adversary=none",
        f"logger={option}",
        "run_dir=run",
    )
    assert outcome.status == 0, outcome.err
    assert (tmp_path / "run" / "metrics.csv").is_file()
    assert (tmp_path / "run" / "wandb").exists() is (option == "wandb")
    assert "discriminator" not in (tmp_path / "run" / "metrics.csv").read_text()


def test_accumulation_and_clipping_are_used(
    run: Run, folder_overrides: tuple[str, ...], vqgan_run: Path
) -> None:
    more = ("trainer.accumulate=2", "trainer.gradient_clip=0.1", "trainer.save_every=1")
    one = run("train_vqgan", *folder_overrides, *TINY_VQGAN, "perceptual=none", *more, "run_dir=a")
    two = run(
        "train_transformer", f"vqgan={vqgan_run}", *folder_overrides, *TINY_TRANSFORMER, *more,
        "run_dir=b",
    )  # fmt: skip
    assert (one.status, two.status) == (0, 0), one.err + two.err
    assert "2 steps done" in one.out
    assert "2 steps done" in two.out


def test_max_time_ends_a_run_with_a_model(
    run: Run, folder_overrides: tuple[str, ...], tmp_path: Path
) -> None:
    overrides = [o for o in TINY_VQGAN if not o.startswith("trainer.max_steps")]
    outcome = run(
        "train_vqgan",
        *folder_overrides,
        *overrides,
        "perceptual=none",
        "trainer.max_steps=100000",
        "trainer.val_every=100000",
        "trainer.max_time=1s",
        "run_dir=run",
    )
    assert outcome.status == 0, outcome.err
    assert (tmp_path / "run" / "model" / "config.json").is_file()
