"""What the tests of the commands share: small settings, small images."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from tiny_models import tiny_vqgan

from taming.cli import saved_config
from taming.cli.command import CONFIGS
from taming.interop.compvis_vqgan import LAYOUT
from taming.interop.layouts import autoencoder_names
from taming.losses import LPIPSLoss
from taming.tokenizer import VQGAN

# the documented way to make any experiment small
TINY_TRAINER = ("trainer=cpu", "trainer.max_steps=2", "trainer.val_check_interval=2", "logger=csv",
                "report=false")  # fmt: skip
TINY_VQGAN = (
    *TINY_TRAINER,
    "data.batch_size=4",
    "data.loader.num_workers=0",
    "model.base_channels=8",
    "model.num_residual_blocks=1",
    "model.latent_channels=8",
    "model.quantizer.codebook_size=16",
    "adversary.start=0",
    "adversary.warmup=0",
    "adversary.discriminator.base_channels=8",
    "adversary.discriminator.num_layers=1",
)
TINY_TRANSFORMER = (
    *TINY_TRAINER,
    "data.batch_size=4",
    "data.loader.num_workers=0",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.embed_dim=16",
    "callbacks.grids.num_images=4",
)
TINY_EVALUATION = (
    "data.val_fraction=0.25",
    "data.loader.num_workers=0",
    "data.batch_size=4",
    "num_samples=4",
    "batch_size=4",
    "classifier_training.num_steps=2",
    "classifier_training.batch_size=4",
    "classifier_training.base_channels=4",
)


@dataclass
class Outcome:
    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


def composed(name: str, *overrides: str, **options: bool) -> DictConfig:
    """The settings that a command is given."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        return compose(name, list(overrides), **options)


def resumed(run_dir: Path, *overrides: str) -> DictConfig:
    """What a training is built from that resumes a run with these overrides."""
    with pytest.MonkeyPatch.context() as patch:
        job = SimpleNamespace(overrides=SimpleNamespace(task=list(overrides)))
        patch.setattr(saved_config.HydraConfig, "get", lambda: job)
        return saved_config.resume_config(OmegaConf.from_dotlist([f"resume={run_dir}", *overrides]))


def succeeds(outcome: Outcome) -> Outcome:
    assert outcome.status == 0, outcome.err
    return outcome


class UntrainedLPIPS(LPIPSLoss):
    """Stands for LPIPS, whose weights would be downloaded."""

    def __init__(self, backbone: str) -> None:
        super().__init__(backbone=backbone, pretrained=False)


def fails(outcome: Outcome, *parts: str) -> None:
    """It ended with one clear error, whose last line has all the parts."""
    assert outcome.status == 2, outcome.err
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in outcome.err
    for part in parts:
        assert part in last, last


def fails_before_writing(outcome: Outcome, *parts: str) -> None:
    """As `fails`, and nothing was written to `out`."""
    fails(outcome, *parts)
    assert not Path("out").exists()


def without_python_settings() -> dict[str, str]:
    """The environment without what changes how Python starts or what it prints."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


COMPVIS_CONFIG = """
model:
  target: taming.models.vqgan.VQModel
  params:
    embed_dim: 4
    n_embed: 8
    ddconfig: {double_z: false, z_channels: 8, resolution: 16, in_channels: 3, out_ch: 3, ch: 8,
               ch_mult: [1, 2], num_res_blocks: 1, attn_resolutions: [8], dropout: 0.0}
"""


def write_compvis_checkpoint(folder: Path) -> VQGAN:
    """`last.ckpt` and `project.yaml` of a tiny model in the layout of CompVis' code; the model."""
    vqgan = tiny_vqgan(resolution=16, attention_resolutions=[8])
    names = {**autoencoder_names(vqgan, LAYOUT), "quantizer.codebook": "quantize.embedding.weight"}
    weights = {}
    for ours, foreign_names in names.items():
        parts = (
            [foreign_names] if isinstance(foreign_names, str) else foreign_names
        )  # fused here, separate there
        weights |= zip(parts, vqgan.state_dict()[ours].chunk(len(parts)), strict=True)
    weights["loss.perceptual_loss.lin0.model.1.weight"] = torch.zeros(1)
    checkpoint = {"state_dict": weights, "callbacks": {Path: Path("x")}, "epoch": 3}
    torch.save(checkpoint, folder / "last.ckpt")
    (folder / "project.yaml").write_text(COMPVIS_CONFIG)
    return vqgan
