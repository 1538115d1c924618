"""Every configuration composes, and every experiment runs a step when made small."""

import warnings
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_device import fake_device
from omegaconf import OmegaConf
from PIL import Image
from tiny_commands import TINY_TRAINER, TINY_VQGAN, Run, composed, succeeds
from tiny_images import write_images, write_maps

from taming.cli.build import build
from taming.cli.mistakes import config_directory
from taming.cli.training import build_trainer
from taming.quantizers import build_quantizer
from taming.runtime.nested import leaves
from taming.tokenizer import VQGAN
from taming.transformer import GPT

CONFIGS = config_directory()
ON_FAKE_DEVICE = (
    "trainer=auto", "trainer.strategy={_target_: fake_training.OnFakeDevice}",
    "trainer.max_steps=2", "trainer.log_every_n_steps=2", "trainer.precision=bf16-mixed",
    "training.compile=false",
)  # fmt: skip
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def primary(experiment: str) -> str:
    return "train_transformer" if experiment.startswith("transformer") else "train_vqgan"


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Pairs of 16×16: eight pictures, and label maps of a class each."""
    write_images(tmp_path / "scenes" / "image", 8)
    write_maps(tmp_path / "scenes" / "label", (np.full((16, 16), i, np.uint8) for i in range(8)))
    return tmp_path / "scenes"


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # copies of fake tensors
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_runs_on_a_gpu(
    run: Run, experiment: str, images: Path, scenes: Path, squeezenet: Path, vqgan_run: Path
) -> None:
    """Nothing is forgotten on the CPU, and a step waits for the GPU only where it reports."""
    text = (CONFIGS / "experiment" / f"{experiment}.yaml").read_text()
    name = primary(experiment)
    tiny = ("size=tiny", "trainer.max_steps=1", "logger=csv", "report=false")
    overrides = [f"experiment={experiment}", *tiny, *ON_FAKE_DEVICE, "run_dir=run"]
    if "data: paired" in text:
        overrides += [f"data.path={scenes}", "data.val_fraction=0.25"]
    elif "data: label_maps" in text:
        overrides += [f"data.path={scenes / 'label'}", "data.val_fraction=0.25", "data.channels=12"]
    elif "data: digits" not in text:  # of the others no data is here: images of our own
        overrides += ["data=image_folder", f"data.path={images}", "data.val_fraction=0.25"]
    if name == "train_transformer" and "data: digits" in text:
        succeeds(run("train_vqgan", "experiment=digits", *tiny, "run_dir=tokenizer"))
        overrides += ["vqgan=tokenizer", "model.num_layers=1"]
    elif name == "train_transformer":
        overrides += [f"vqgan={vqgan_run}", "model.num_layers=1"]
    elif "perceptual: features" in text:
        overrides += [f"perceptual.weights={squeezenet}"]
    elif "perceptual: none" not in text:
        overrides += ["perceptual.pretrained=false"]
    if name == "train_vqgan":
        overrides += ["training.channels_last=true"]
    if name == "train_vqgan" and "adversary: none" not in text:
        overrides += ["adversary.start=0", "adversary.warmup=0", "adversary.ramp=0"]
    if experiment == "fashion_mnist":
        overrides += ["data.channels=1"]
    with fake_device() as device:
        assert "2 steps done" in succeeds(run(name, *overrides)).out
    first, reporting = device.step_reads()[:2]
    assert set(first) <= {"quantizers/vector.py _starts_now"}  # until all codes have started
    expected = {"training/module.py _log_training", "training/module.py require_finite"}
    if name == "train_vqgan":
        expected.add("training/vqgan.py training_metrics")
    assert set(reporting) == expected and len(reporting) == len(expected)
    grids = list(Path("run", "grids").iterdir())
    assert len(grids) == 1  # one validation, at the end


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_at_full_size(experiment: str) -> None:
    overrides = {
        "comparison": ["+recipe=ours", "perceptual.weights=x"],
        "label_map": ["data.channels=12"],
    }
    config = composed(
        primary(experiment), f"experiment={experiment}", *overrides.get(experiment, [])
    )
    experiment_config = OmegaConf.load(CONFIGS / "experiment" / f"{experiment}.yaml")
    for key, _ in leaves(OmegaConf.to_container(experiment_config), lists=False):
        if not key.startswith("defaults") and key != "metrics.frechet.features.weights":
            assert OmegaConf.select(config, key) == OmegaConf.select(experiment_config, key), key
    if primary(experiment) == "train_transformer":
        return
    with torch.device("meta"):
        vqgan = build(config.model)
        adversary = build(config.adversary)
    size = config.data.resolution
    assert vqgan.resolution == ((size, size) if isinstance(size, int) else tuple(size))
    quantizer = config.model.quantizer
    sizes = quantizer.levels if "levels" in quantizer else [quantizer.codebook_size]
    assert vqgan.quantizer.codebook_size == prod(sizes)
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
def test_quantizers(option: str) -> None:
    settings = composed("train_vqgan", "data.path=x", f"quantizer={option}").model.quantizer
    quantizer = build_quantizer(OmegaConf.to_container(settings, resolve=True))
    indices = torch.randint(quantizer.codebook_size, (1, 2, 2))
    assert quantizer.lookup(indices).shape == (1, quantizer.codebook_dim, 2, 2)
    assert quantizer.codebook_size in (1000, 1024)


def test_metrics_are_added_to_validation(
    run: Run, images: Path, squeezenet: Path, tmp_path: Path
) -> None:
    outcome = run(
        "train_vqgan", f"data.path={images}", "size=tiny", "trainer.max_steps=2", "perceptual=none",
        "adversary=none", "logger=csv", "report=false", "metrics=[frechet]",
        f"metrics.frechet.features.weights={squeezenet}",
        "metrics.frechet.features.resolution=32", "run_dir=run",
        "callbacks.best.monitor=val/frechet_distance",
    )  # fmt: skip
    assert "frechet_distance" in succeeds(outcome).out
    assert "val/frechet_distance" in (tmp_path / "run" / "metrics.csv").read_text()
    assert "size=tiny" in outcome.out


@pytest.mark.parametrize("mode", ["decoder", "new_codebook"])
def test_finetuning_and_its_resume(
    run: Run, vqgan_run: Path, folder_overrides: tuple[str, ...], mode: str, tmp_path: Path
) -> None:
    started = run(
        "train_vqgan", *folder_overrides, *TINY_TRAINER, "data.loader.num_workers=0",
        "data.batch_size=4", "perceptual=none", "adversary.discriminator.base_channels=8",
        "adversary.discriminator.num_layers=1", "adversary.start=0", f"finetune.mode={mode}",
        f"finetune.checkpoint={vqgan_run}", "model.quantizer.codebook_size=24", "run_dir=tuned",
    )  # fmt: skip
    assert "Training a new one" not in succeeds(started).err
    assert "other settings of `model` have no effect" in started.err  # its shape is another
    before, tuned = (VQGAN.from_pretrained(path) for path in (vqgan_run, tmp_path / "tuned"))
    assert tuned.codebook_size == (24 if mode == "new_codebook" else 16)
    same = torch.equal(before.encoder.conv_in.weight, tuned.encoder.conv_in.weight)
    assert same is (mode == "decoder")
    assert not torch.equal(before.last_layer, tuned.last_layer)
    succeeds(run("train_vqgan", "resume=tuned", "trainer.max_steps=3"))
    assert VQGAN.from_pretrained(tmp_path / "tuned").codebook_size == tuned.codebook_size


def test_unusual_data_is_trained_on_and_remarked_upon(run: Run, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    Image.new("RGB", (32, 32), (20, 0, 90)).save(tmp_path / "few" / "1.png")
    tiny = ("size=tiny", "trainer.max_steps=2", "perceptual=none", "logger=csv", "run_dir=run")
    outcome = succeeds(run("train_vqgan", "data.path=few", *tiny))
    for remark in ("no image can be held out", "has a single colour"):
        assert remark in outcome.err
    assert (tmp_path / "run" / "report.html").is_file(), outcome.err


def test_the_default_model_at_full_size() -> None:
    with torch.device("meta"):
        vqgan = build(composed("train_vqgan").model)
    assert (vqgan.downsample_factor, vqgan.grid_size) == (8, (32, 32))


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
def test_size_presets(option: str) -> None:
    codes, ids, context, positions, expected = SIZES[option]
    overrides = [] if positions is None else [f"model.positions={positions}"]
    model = composed("train_transformer", "data.path=x", f"model={option}", *overrides).model
    shape = {"codebook_size": codes, "num_prefix_ids": ids, "context_length": context}
    with torch.device("meta"):
        gpt = GPT(build(model, **shape, grid_size=[16, 16]))
    assert sum(p.numel() for p in gpt.parameters()) == expected


@pytest.mark.parametrize("option", options("trainer"))
def test_trainers(option: str) -> None:
    for name in ("train_vqgan", "train_transformer"):
        trainer = composed(name, "data.path=x", f"trainer={option}").trainer
        assert trainer.max_steps == 50000
        expected = {"auto": "auto", "cpu": "cpu"}.get(option, "gpu")
        assert trainer.accelerator == expected
        assert (trainer.devices == -1) is (option in ("ddp", "fsdp"))


def test_a_mac_trains_on_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("platform.processor", lambda: "arm")
    with warnings.catch_warnings(action="error"):  # Lightning would advise to use the GPU
        trainer = build_trainer(composed("train_vqgan", "data.path=x"))
    assert trainer.strategy.root_device == torch.device("cpu")


def test_many_loggers(run: Run, folder_overrides: tuple[str, ...], tmp_path: Path) -> None:
    overrides = [o for o in TINY_VQGAN if o != "logger=csv" and not o.startswith("adversary")]
    overrides += ["perceptual=none", "adversary=none", "logger=many", "run_dir=run"]
    succeeds(run("train_vqgan", *folder_overrides, *overrides))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert not (tmp_path / "wandb").exists()
    assert (tmp_path / "run" / "tensorboard").exists()
    assert "discriminator" not in (tmp_path / "run" / "metrics.csv").read_text()
