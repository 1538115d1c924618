"""Every configuration composes, and every experiment runs a step when made small."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from tiny_commands import (
    TINY_TRAINER,
    TINY_TRANSFORMER,
    TINY_VQGAN,
    Run,
    fails,
    succeeds,
    write_images,
)
from torchvision.models import squeezenet1_1

from taming.cli.app import build, config_directory
from taming.cli.mistakes import leaves
from taming.generation import ImageGenerator
from taming.transformer import GPT
from taming.vqgan import VQGAN

CONFIGS = config_directory()
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


Composed = Callable[..., DictConfig]


@pytest.fixture
def composed() -> Iterator[Composed]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield lambda name, *overrides: compose(name, list(overrides))


def test_both_stages_made_tiny(run: Run, images: Path, tmp_path: Path) -> None:
    """As the README does it: twenty steps, and one validation, at the end."""
    common = (f"data.path={images}", "data.val_fraction=0.25", "size=tiny", "logger=csv")
    for name, *overrides in (
        ("vqgan", "experiment=flowers128", "perceptual=none"),
        ("transformer", "experiment=transformer_flowers64", "vqgan=tiny_vqgan"),
    ):
        outcome = run(f"train_{name}", *overrides, *common, f"run_dir=tiny_{name}")
        assert f"tiny_{name}: 20 steps done" in succeeds(outcome).out
        assert len(list((tmp_path / f"tiny_{name}" / "grids").iterdir())) == 1
    generator = ImageGenerator.from_pretrained("tiny_transformer")
    assert sum(p.numel() for p in generator.parameters()) < 1_000_000


def test_commands_of_the_same_second_write_to_different_places(composed: Composed) -> None:
    """Such as one for each GPU."""
    for name in ("train_vqgan", "train_transformer", "sample", "reconstruct", "evaluate"):
        key = "run_dir" if name.startswith("train") else "output_dir"
        assert composed(name)[key] != composed(name)[key]


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


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Pairs of 16×16: eight pictures, and label maps of a class each."""
    write_images(tmp_path / "scenes" / "image", 8)
    (tmp_path / "scenes" / "label").mkdir()
    for index in range(8):
        one_class = Image.new("L", (16, 16), index)
        one_class.save(tmp_path / "scenes" / "label" / f"{index:03d}.png")
    return tmp_path / "scenes"


# label maps are tested in test_label_map.py
@pytest.mark.parametrize("experiment", [name for name in EXPERIMENTS if name != "label_map"])
def test_experiment_runs_a_step(
    run: Run, experiment: str, images: Path, scenes: Path, weights: Path, vqgan_run: Path
) -> None:
    name = primary(experiment)
    text = (CONFIGS / "experiment" / f"{experiment}.yaml").read_text()
    data = ["data=image_folder", f"data.path={images}", "data.val_fraction=0.25"]
    if "data: paired" in text:
        data = [f"data.path={scenes}", "data.val_fraction=0.25"]
    if name == "train_vqgan":
        overrides = ["size=tiny", "trainer.max_steps=2", "logger=csv"]
        if "data: digits" not in text:  # of the others no data is here: images of our own
            overrides += data
        if "data: fashion_mnist" in text:
            overrides += ["data.channels=1"]
        if "perceptual: features" in text:
            overrides += [f"perceptual.weights={weights}"]
        elif "perceptual: none" not in text:
            overrides += ["perceptual.pretrained=false"]
    else:
        overrides = list(TINY_TRANSFORMER)
        if "data: digits" in text:
            run("train_vqgan", "experiment=digits", *TINY_VQGAN, "run_dir=tokenizer")
            overrides += ["vqgan=tokenizer"]
        else:
            overrides += [f"vqgan={vqgan_run}", *data]
    outcome = run(name, f"experiment={experiment}", *overrides, "run_dir=run")
    assert "2 steps done" in succeeds(outcome).out


@pytest.mark.parametrize(
    "experiment", [name for name in EXPERIMENTS if primary(name) == "train_vqgan"]
)
def test_recipe_builds_at_full_size(composed: Composed, experiment: str) -> None:
    overrides = [] if experiment in ("cifar10", "digits", "fashion_mnist") else ["data.path=x"]
    overrides += ["data.channels=12"] if experiment == "label_map" else []
    overrides += ["+recipe=ours"] if experiment == "comparison" else []
    config = composed("train_vqgan", f"experiment={experiment}", *overrides)
    with torch.device("meta"):
        vqgan = build(config.model)
        adversary = build(config.adversary)
    size = config.data.resolution
    assert vqgan.resolution == ((size, size) if isinstance(size, int) else tuple(size))
    assert vqgan.quantizer.codebook_size == config.model.quantizer.codebook_size
    if experiment == "vqgan_f16_imagenet256":
        sizes = {
            name: sum(p.numel() for p in part.parameters()) for name, part in vqgan.named_children()
        }
        assert sum(sizes.values()) - sizes["quantizer"] == 71_879_555
        assert sizes["quantizer"] == 1024 * 256
        parameters = adversary.discriminator.parameters()
        assert sum(p.numel() for p in parameters) == 2_765_633
    if adversary is not None:
        adversary.discriminator.check_resolution(vqgan.resolution)
        adversary.settle_start(config.trainer.max_steps)
        last = adversary.start + adversary.warmup + adversary.ramp
        assert last <= config.trainer.max_steps  # the adversary's full weight is reached


@pytest.mark.parametrize("option", options("quantizer"))
def test_quantizers(run: Run, folder_overrides: tuple[str, ...], option: str) -> None:
    overrides = [o for o in TINY_VQGAN if not o.startswith("model.quantizer")]
    sizes = {"gumbel": ["model.quantizer.codebook_dim=8"], "finite_scalar": []}
    overrides += sizes.get(option, ["model.quantizer.codebook_size=16"])
    overrides += [f"quantizer={option}", "perceptual=none", "run_dir=run"]
    succeeds(run("train_vqgan", *folder_overrides, *overrides))


def test_metrics_are_added_to_validation(
    run: Run, images: Path, weights: Path, tmp_path: Path
) -> None:
    outcome = run(
        "train_vqgan", f"data.path={images}", "size=tiny", "trainer.max_steps=2", "perceptual=none",
        "adversary=none", "logger=csv", "metrics=[frechet]",
        f"metrics.frechet.features.weights={weights}",
        "metrics.frechet.features.resolution=32", "run_dir=run",
        "callbacks.best.monitor=val/frechet_distance",
    )  # fmt: skip
    assert "frechet_distance" in succeeds(outcome).out
    assert "val/frechet_distance" in (tmp_path / "run" / "metrics.csv").read_text()
    assert "size=tiny" in outcome.out
    again = run("train_vqgan", "resume=run", "trainer.max_steps=3")
    assert "size=tiny" in again.out, again.err


def test_larger_is_better_where_it_is(run: Run, folder_overrides: tuple[str, ...]) -> None:
    overrides = ("perceptual=none", "callbacks.best.monitor=val/codebook_usage", "run_dir=run")
    outcome = run("train_vqgan", *folder_overrides, *TINY_VQGAN, *overrides)
    fails(outcome, "callbacks.best.mode=max")


@pytest.mark.parametrize("mode", ["whole", "decoder", "new_codebook"])
def test_finetuning_and_its_resume(
    run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...], mode: str, tmp_path: Path
) -> None:
    started = run(
        "train_vqgan", *folder_overrides, *TINY_TRAINER, "data.loader.num_workers=0",
        "data.batch_size=4", "perceptual=none", "adversary.discriminator.base_channels=8",
        "adversary.discriminator.num_layers=1", "adversary.start=0", f"finetune.mode={mode}",
        f"finetune.checkpoint={vqgan_run}", "model.quantizer.codebook_size=24", "run_dir=tuned",
    )  # fmt: skip
    assert "begins anew" not in succeeds(started).err
    dropped = "quantizer.codebook_size=24 (finetune.mode=new_codebook takes the quantizer)"
    assert (dropped in started.err) is (mode != "new_codebook")
    before, tuned = (VQGAN.from_pretrained(path) for path in (vqgan_run, tmp_path / "tuned"))
    assert tuned.codebook_size == (24 if mode == "new_codebook" else 16)
    same = torch.equal(before.encoder.conv_in.weight, tuned.encoder.conv_in.weight)
    assert same is (mode == "decoder")
    assert not torch.equal(before.last_layer, tuned.last_layer)
    succeeds(run("train_vqgan", "resume=tuned", "trainer.max_steps=3"))
    assert VQGAN.from_pretrained(tmp_path / "tuned").codebook_size == tuned.codebook_size


ONE_COLOUR = "each of a single colour"


@pytest.mark.parametrize(
    ("count", "overrides", "remark"),
    [
        (1, [], "no image can be held out"),
        (7, ["data.batch_size=16"], "6 training images make less than a batch of 16"),
        (4, ["data.batch_size=1", "model.quantizer.codebook_size=16"], ""),
        (4, ["model.quantizer.codebook_size=4096"], "fewer than the 4096 codes"),
        (8, [], ONE_COLOUR),
    ],
)
def test_unusual_data_is_trained_on_and_remarked_upon(
    run: Run, tmp_path: Path, count: int, overrides: list[str], remark: str
) -> None:
    write_images(tmp_path / "few", count)
    for index in range(count if remark == ONE_COLOUR else 0):
        colour = (index * 20, 0, 90)
        Image.new("RGB", (32, 32), colour).save(tmp_path / "few" / f"{index:03d}.png")
    outcome = run(
        "train_vqgan", "data.path=few", "size=tiny", "trainer.max_steps=2", "perceptual=none",
        "logger=csv", *overrides, "run_dir=run",
    )  # fmt: skip
    assert remark in succeeds(outcome).err
    assert ("note:" in outcome.err) is (remark != "")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_sets_only_what_it_names(composed: Composed, experiment: str) -> None:
    given = ["perceptual.weights=x"] if experiment == "comparison" else []
    config = composed(primary(experiment), f"experiment={experiment}", *given)
    written = OmegaConf.load(CONFIGS / "experiment" / f"{experiment}.yaml")
    assert isinstance(written, DictConfig)
    for key, _ in leaves(OmegaConf.to_container(written), lists=False):
        if not key.startswith("defaults") and key != "metrics.frechet.features.weights":
            assert OmegaConf.select(config, key) == OmegaConf.select(written, key), key


def test_model_builds_at_full_size(composed: Composed) -> None:
    config = composed("train_vqgan", "data.path=x")
    with torch.device("meta"):
        vqgan = build(config.model)
    assert vqgan.downsample_factor == 8
    assert vqgan.grid_size == (32, 32)
    gpt = composed("train_transformer", "data.path=x").model
    with torch.device("meta"):
        model = GPT(build(gpt, codebook_size=1024, num_prefix_ids=11, context_length=256))
    assert sum(p.numel() for p in model.blocks.parameters()) == 12 * (12 * 512**2 + 13 * 512)


# codes, prefix ids, context, positions, weights in all
SIZES = {
    "gpt": (1024, 1, 256, None, 38_878_720),
    "gpt_nano": (1024, 1, 256, None, 183_264),
    "gpt_micro": (1024, 1, 256, None, 1_055_616),
    "gpt_mini": (1024, 1, 256, None, 3_062_976),
    # minGPT has one table for prefix and tokens: without the start id's row of its own here it is
    # 304,932,864; and the one for ImageNet without its 1001 rows 1,410,640,896
    "gpt_305m": (1024, 1, 512, "learned", 304_932_864 + 1024),
    "gpt_1410m": (16384, 1001, 256, "learned", 1_410_640_896 + 1001 * 1536),
    # LlamaGen's own, the class rows included
    "llamagen_111m": (16384, 1001, 256, None, 110_888_448),
    "llamagen_343m": (16384, 1001, 256, None, 342_910_976),
    "llamagen_775m": (16384, 1001, 256, None, 774_699_520),
}


@pytest.mark.parametrize("option", [name for name in options("model") if name != "vqgan"])
def test_size_presets(composed: Composed, option: str) -> None:
    codes, ids, context, positions, expected = SIZES[option]
    chosen = [] if positions is None else [f"model.positions={positions}"]
    model = composed("train_transformer", "data.path=x", f"model={option}", *chosen).model
    shape = {"codebook_size": codes, "num_prefix_ids": ids, "context_length": context}
    with torch.device("meta"):
        gpt = GPT(build(model, **shape, grid_size=[16, 16]))
    assert sum(p.numel() for p in gpt.parameters()) == expected


@pytest.mark.parametrize("name", ["train_vqgan", "train_transformer"])
@pytest.mark.parametrize("option", options("trainer"))
def test_trainers(composed: Composed, name: str, option: str) -> None:
    trainer = composed(name, "data.path=x", f"trainer={option}").trainer
    assert trainer.max_steps == 50000
    expected = {"auto": "auto", "cpu": "cpu", "gpu": "gpu", "ddp": "gpu", "fsdp": "gpu"}[option]
    assert trainer.accelerator == expected
    assert (trainer.devices == -1) is (option in ("ddp", "fsdp"))


@pytest.mark.parametrize("option", options("perceptual"))
def test_perceptual_losses(composed: Composed, option: str, weights: Path) -> None:
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
    overrides += ["perceptual=none", "adversary=none", f"logger={option}", "run_dir=run"]
    succeeds(run("train_vqgan", *folder_overrides, *overrides))
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert bool(files) is (option in ("wandb", "many"))
    assert not (tmp_path / "wandb").exists()
    assert (tmp_path / "run" / "tensorboard").exists() is (option in ("tensorboard", "many"))
    assert "discriminator" not in (tmp_path / "run" / "metrics.csv").read_text()


def test_accumulation_clipping_and_max_time_are_used(
    run: Run, folder_overrides: tuple[str, ...], vqgan_run: Path, tmp_path: Path
) -> None:
    more = (
        "trainer.accumulate_grad_batches=2",
        "trainer.gradient_clip_val=0.1",
        "callbacks.between.every_n_train_steps=1",
    )
    one = ("train_vqgan", *folder_overrides, *TINY_VQGAN, "perceptual=none", *more, "run_dir=a")
    two = ("train_transformer", f"vqgan={vqgan_run}", *folder_overrides, *TINY_TRANSFORMER, *more)
    assert "2 steps done" in succeeds(run(*one)).out
    assert "2 steps done" in succeeds(run(*two, "run_dir=b")).out
    longer = ("trainer.max_steps=100000", "trainer.val_check_interval=100000", "run_dir=c")
    succeeds(run(*one, *longer, "trainer.max_time=00:00:00:01"))
    assert (tmp_path / "c" / "model" / "config.json").is_file()
