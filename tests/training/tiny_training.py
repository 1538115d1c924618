"""Tiny models, data and runs for the tests beside this file."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader, Dataset

from taming.conditioning import CellClasses, ClassLabel, Conditioning
from taming.data import EndlessBatches
from taming.discriminators import PatchDiscriminator
from taming.generation import ImageGenerator
from taming.training import (
    Adversary,
    EndAfterStep,
    MetricsFile,
    OptimizerConfig,
    ReconstructionGrids,
    SampleGrids,
    TrainingModule,
    TrainingResult,
    TransformerTraining,
    VQGANTraining,
    WholeFileCheckpointIO,
    average_weights,
    train,
)
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN


class Items(Dataset[dict[str, Any]]):
    """Items from memory; a training item is requested as (index, draw) and counted."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors
        self.requested: list[int] = []

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, item: Any) -> dict[str, Any]:
        index = item[0] if isinstance(item, tuple) else item
        self.requested.append(index)
        return {name: tensor[index] for name, tensor in self.tensors.items()}


class FakeData(L.LightningDataModule):
    """The order of `taming.data`'s modules, over items in memory."""

    def __init__(self, items: Items, val_items: Items, batch_size: int) -> None:
        super().__init__()
        self.items = items
        self.val_items = val_items
        self.batch_size = batch_size
        self.start_batch = 0

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        trainer = self.trainer
        assert trainer is not None
        batches = EndlessBatches(
            len(self.items),
            self.batch_size,
            seed=0,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            start_batch=self.start_batch,
        )
        return DataLoader(self.items, batch_sampler=batches, generator=torch.Generator())

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        assert self.trainer is not None
        part = range(self.trainer.global_rank, len(self.val_items), self.trainer.world_size)
        return DataLoader(self.val_items, 3, sampler=part, generator=torch.Generator())

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {"next_batch": self.trainer.global_step * self.trainer.accumulate_grad_batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start_batch = state_dict["next_batch"]

    def trained_on(self, num_batches: int) -> list[int]:
        """The items of the training's batches; the trainer fetches one or two more."""
        ahead = len(self.items.requested) - num_batches * self.batch_size
        assert 0 <= ahead <= 2 * self.batch_size
        return self.items.requested[: num_batches * self.batch_size]


class Recorder(Logger):
    """A logger that keeps everything, and interrupts the run at a report if wanted."""

    name = "recorder"
    version = ""

    def __init__(self, interrupt_at: int | None = None) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.interrupt_at = interrupt_at

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        self.rows.append((int(step), dict(metrics)))
        if step == self.interrupt_at:
            self.interrupt_at = None
            os.kill(os.getpid(), signal.SIGINT)

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


def tiny_adversary(**changes: Any) -> Adversary:
    settings: dict[str, Any] = {
        "start": 2,
        "warmup": 1,
        "ramp": 2,
        "weight": 0.8,
        "adaptive": True,
        "optimizer": OptimizerConfig(learning_rate=1e-3),
    }
    network = PatchDiscriminator(base_channels=4, num_layers=1, norm="batch")
    return Adversary(network, **{**settings, **changes})


def optimizer_config(**changes: Any) -> OptimizerConfig:
    settings = {"learning_rate": 1e-2, "warmup_steps": 2, "schedule": "cosine"}
    return OptimizerConfig(**{**settings, **changes})


def vqgan_training(adversary: Adversary | None = None, **changes: Any) -> VQGANTraining:
    settings = {"optimizer": optimizer_config(), **changes}
    return VQGANTraining(tiny_vqgan(revive_after=3), Gradients(), adversary, **settings)


def image_data(batch_size: int = 4) -> FakeData:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(17, 3, 16, 16, generator=generator) * 2 - 1
    return FakeData(Items(images=images[:10]), Items(images=images[10:]), batch_size)


def transformer_training(
    condition: Conditioning | None = None, positions: str = "sinusoidal", **changes: Any
) -> TransformerTraining:
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
    generator = ImageGenerator(
        tiny_vqgan().eval(),
        transformer,
        condition,
        (8, 8),
        CellClasses(4, 2, 16) if condition.takes_images else None,
    )
    return TransformerTraining(generator, **{"optimizer": optimizer_config(), **changes})


def token_data(batch_size: int = 4) -> FakeData:
    generator = torch.Generator().manual_seed(5)
    indices = torch.randint(0, 8, (17, 8, 8), generator=generator)
    labels = torch.arange(17) % 3
    return FakeData(
        Items(indices=indices[:10], labels=labels[:10]),
        Items(indices=indices[10:], labels=labels[10:]),
        batch_size,
    )


STAGES = ["vqgan", "transformer"]


def stage(kind: str, **changes: Any) -> tuple[Any, FakeData]:
    """The module and the data of a stage, the same at each call."""
    torch.manual_seed(0)
    if kind == "vqgan":  # the discriminator starts at 2, warmup 1, ramp 2
        return vqgan_training(tiny_adversary(), **changes), image_data()
    return transformer_training(**changes), token_data()


def alone(module: Any, step: int = 0, scaler: Any = None) -> Any:
    """The module as after `step` steps of a training, without a trainer."""
    module.trainer = SimpleNamespace(
        global_step=step,
        max_steps=8,
        world_size=1,
        log_every_n_steps=100,
        model=module,
        precision_plugin=SimpleNamespace(scaler=scaler),
    )
    return module.train()


def backward(
    module: TrainingModule, batch: dict[str, torch.Tensor], factor: float = 1.0
) -> dict[str, torch.Tensor]:
    """Adds the gradients of one batch; returns its numbers."""
    loss = module.training_step(batch, 0)["loss"] * factor
    (loss if module.scaler is None else module.scaler.scale(loss)).backward()
    numbers, module._sums, module._counts = module._sums, {}, {}
    return numbers


def tiny_trainer(
    directory: Path,
    module: TrainingModule,
    *,
    save_every: int | None = None,
    monitor: str | None = None,
    mode: str = "min",
    ema_decay: float | None = 0.9,
    palette: list[list[int]] | None = None,
    callbacks: list[L.Callback] | None = None,
    loggers: list[Logger] | None = None,
    **changes: Any,
) -> L.Trainer:
    """A trainer as `configs/` makes it."""
    stage_1 = isinstance(module, VQGANTraining)
    grids: L.Callback = SampleGrids(directory / "grids", num_images=3)
    if stage_1:
        grids = ReconstructionGrids(directory / "grids", num_images=3, palette=palette)
    files: dict[str, Any] = {"dirpath": directory / "checkpoints", "enable_version_counter": False}
    between = (
        [ModelCheckpoint(**files, filename="last", every_n_train_steps=save_every)]
        if save_every
        else []
    )
    best = ModelCheckpoint(
        **files,
        filename="best",
        monitor=monitor or ("val/reconstruction_loss" if stage_1 else "val/loss"),
        mode=mode,
        auto_insert_metric_name=False,
    )
    last = ModelCheckpoint(**files, filename="last", save_on_exception=True)
    everything = [
        average_weights(ema_decay),
        grids,
        *(callbacks or []),
        EndAfterStep(),
        best,
        last,
        *between,
    ]
    settings: dict[str, Any] = {
        "max_steps": 8,
        "max_epochs": -1,
        "accelerator": "cpu",
        "devices": 1,
        "gradient_clip_val": 1.0,
        "val_check_interval": 3,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": 1,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "plugins": [WholeFileCheckpointIO()],
    }
    return L.Trainer(
        callbacks=[callback for callback in everything if callback is not None],
        logger=[MetricsFile(directory / "metrics.csv"), *(loggers or [])],
        **{**settings, **changes},
    )


def run_training(
    directory: Path,
    module: TrainingModule,
    data: FakeData,
    *,
    resume: bool = False,
    export: Any = "last",
    interrupt_at: int | None = None,
    **changes: Any,
) -> tuple[TrainingResult, Recorder]:
    """Trains a module in a run directory, with metrics.csv and a `Recorder`."""
    directory.mkdir(exist_ok=True)
    recorder = Recorder(interrupt_at)
    trainer = tiny_trainer(directory, module, loggers=[recorder], **changes)
    result = train(
        module,
        data,
        trainer,
        run_dir=directory,
        export=export,
        resume_from=directory / "checkpoints" / "last.ckpt" if resume else None,
    )
    return result, recorder
