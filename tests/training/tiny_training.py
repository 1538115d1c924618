"""Tiny models, data and runs for the tests beside this file."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from taming.conditioning import CellClasses, ClassLabel, Conditioning
from taming.data import EndlessDataModule, LoaderOptions
from taming.discriminators import PatchDiscriminator
from taming.training import (
    Adversary,
    CSVTracker,
    OptimizerConfig,
    TrainerConfig,
    TrainingResult,
    TransformerTraining,
    VQGANTraining,
    train,
)
from taming.training.module import TrainingModule
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN


class Items(Dataset[dict[str, Any]]):
    """Items from memory; a training item is asked for as (index, draw) and counted."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, item: Any) -> dict[str, Any]:
        index = item[0] if isinstance(item, tuple) else item
        self.asked.append(index)
        return {name: tensor[index] for name, tensor in self.tensors.items()}


class FakeData(EndlessDataModule):
    def __init__(self, items: Items, val_items: Items, batch_size: int) -> None:
        super().__init__(LoaderOptions(batch_size, val_batch_size=3))
        self.items = items
        self.val_items = val_items

    @property
    def train_dataset(self) -> Items:
        return self.items

    @property
    def val_dataset(self) -> Items:
        return self.val_items

    def num_workers_for(self, dataset: Any) -> int:
        return 0

    def trained_on(self, num_batches: int) -> list[int]:
        """The items of the training's batches, of which the trainer fetches one ahead."""
        assert 0 <= len(self.items.asked) - num_batches * self.batch_size <= self.batch_size
        return self.items.asked[: num_batches * self.batch_size]


class Recorder:
    """A tracker that keeps everything, and interrupts the run after a step if asked to."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.images: list[tuple[str, int]] = []
        self.alerts: list[tuple[str, int]] = []
        self.finished = 0
        self.interrupt_at = interrupt_at

    def metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))
        if step == self.interrupt_at:
            self.interrupt_at = None
            os.kill(os.getpid(), signal.SIGINT)

    def image(self, name: str, image: Image.Image, step: int) -> None:
        self.images.append((name, step))

    def alert(self, text: str, step: int) -> None:
        self.alerts.append((text, step))

    def finish(self) -> None:
        self.finished += 1

    def column(self, name: str) -> list[tuple[int, float]]:
        return [(step, row[name]) for step, row in self.rows if name in row]


def tiny_vqgan(**quantizer: Any) -> VQGAN:
    return VQGAN(
        quantizer={"kind": "vector", "codebook_size": 8, "codebook_dim": 4, **quantizer},
        resolution=16,
        base_channels=4,
        channel_multipliers=[1, 2],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=4,
    )


class Gradients(nn.Module):
    """A perceptual loss: differences of neighbouring pixels."""

    def forward(self, reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        return (reconstructions - images).diff(dim=3).square().mean()


ADVERSARY: dict[str, Any] = {
    "start": 2,
    "warmup": 1,
    "ramp": 2,
    "weight": 0.8,
    "adaptive": True,
    "max_steps": 8,
}


def tiny_adversary(**changes: Any) -> Adversary:
    network = PatchDiscriminator(base_channels=4, num_layers=1, norm="batch")
    return Adversary(
        network, optimizer=OptimizerConfig(learning_rate=1e-3), **{**ADVERSARY, **changes}
    )


def vqgan_training(adversary: Adversary | None = None, **changes: Any) -> VQGANTraining:
    settings: dict[str, Any] = {
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup_steps=2, schedule="cosine"),
        "max_steps": 8,
    }
    return VQGANTraining(
        tiny_vqgan(revive_after=3), Gradients(), adversary, **{**settings, **changes}
    )


def image_data(batch_size: int = 4) -> FakeData:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(17, 3, 16, 16, generator=generator) * 2 - 1
    return FakeData(Items(images=images[:10]), Items(images=images[10:]), batch_size)


def transformer_training(
    condition: Conditioning | None = None, positions: str = "sinusoidal", **changes: Any
) -> TransformerTraining:
    settings: dict[str, Any] = {
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup_steps=2, schedule="cosine"),
        "max_steps": 8,
        "num_samples": 3,
        "ema_decay": 0.9,
    }
    condition = condition or ClassLabel(3, dropout=0.3)
    transformer = GPT(
        GPTConfig(
            codebook_size=8,
            **condition.transformer_config((8, 8)),
            num_layers=1,
            num_heads=2,
            embed_dim=8,
            positions=positions,
            dropout=0.2,
        )
    )
    return TransformerTraining(
        transformer,
        tiny_vqgan().eval(),
        condition,
        (8, 8),
        CellClasses(4, 2, 16) if condition.takes_images else None,
        **{**settings, **changes},
    )


def token_data(batch_size: int = 4) -> FakeData:
    generator = torch.Generator().manual_seed(5)
    indices = torch.randint(0, 8, (17, 8, 8), generator=generator)
    labels = torch.arange(17) % 3
    return FakeData(
        Items(indices=indices[:10], labels=labels[:10]),
        Items(indices=indices[10:], labels=labels[10:]),
        batch_size,
    )


def trainer_config(**changes: Any) -> TrainerConfig:
    settings: dict[str, Any] = {
        "max_steps": 8,
        "val_every": 3,
        "monitor": "val/loss",
        "export": "last",
        "accelerator": "cpu",
        "devices": 1,
        "precision": "32-true",
        "log_every": 1,
    }
    return TrainerConfig(**{**settings, **changes})


def run_training(
    directory: Path,
    module: TrainingModule,
    data: FakeData,
    config: TrainerConfig,
    *,
    resume_from: Path | None = None,
    interrupt_at: int | None = None,
) -> tuple[TrainingResult, Recorder]:
    """Trains a module in a run directory, with metrics.csv and a `Recorder`."""
    directory.mkdir(exist_ok=True)
    recorder = Recorder(interrupt_at)
    first_step = 0
    if resume_from is not None:
        first_step = torch.load(resume_from, weights_only=True)["step"]
    result = train(
        module,
        data,
        config,
        run_dir=directory,
        trackers=[CSVTracker(directory / "metrics.csv", first_step), recorder],
        resume_from=resume_from,
        show=("loss", "pixel_loss"),
    )
    return result, recorder
