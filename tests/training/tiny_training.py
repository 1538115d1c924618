"""Tiny models, data and runs for the tests beside this file."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import Dataset

from taming.conditioning import ClassLabel, Conditioning
from taming.data import LoaderOptions
from taming.data.module import EndlessDataModule
from taming.discriminators import PatchDiscriminator
from taming.generation import ImageGenerator
from taming.losses import FrozenNetwork
from taming.tokenizer import VQGAN, CellClasses
from taming.training import (
    Adversary,
    Clock,
    EndAfterStep,
    LastCheckpoint,
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
    check_resume,
    model_order,
    train,
)
from taming.transformer import GPT, GPTConfig

STAGES = ["vqgan", "transformer"]
MAX_STEPS = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {
        "accumulate_grad_batches": 2,
        "val_check_interval": 6,  # Lightning counts batches
        "log_every_n_steps": 2,
        "ema_decay": None,
    },
}


# --- data ---------------------------------------------------------------------------------------


class Items(Dataset[dict[str, Any]]):
    """Items in memory; a training item is requested as (index, draw) and counted."""

    block = None

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors
        self.requested: list[int] = []

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, item: Any) -> dict[str, Any]:
        index = item[0] if isinstance(item, tuple) else item
        self.requested.append(index)
        return {name: tensor[index] for name, tensor in self.tensors.items()}


class TinyData(EndlessDataModule):
    """10 items to train and 7 to validate, in batches of 3, 3 and 1."""

    def __init__(self, batch_size: int = 4, **tensors: torch.Tensor) -> None:
        super().__init__(LoaderOptions(batch_size, val_batch_size=3, num_workers=0))
        self.train_dataset = Items(**{name: tensor[:10] for name, tensor in tensors.items()})
        self.val_dataset = Items(**{name: tensor[10:] for name, tensor in tensors.items()})

    def trained_on(self, num_batches: int) -> list[int]:
        """The items of the training's batches; the trainer fetches one or two more."""
        requested = self.train_dataset.requested
        ahead = len(requested) - num_batches * self.batch_size
        assert 0 <= ahead <= 2 * self.batch_size
        return requested[: num_batches * self.batch_size]


def image_data(batch_size: int = 4) -> TinyData:
    generator = torch.Generator().manual_seed(5)
    return TinyData(batch_size, images=torch.rand(17, 3, 16, 16, generator=generator) * 2 - 1)


def token_data(batch_size: int = 4) -> TinyData:
    generator = torch.Generator().manual_seed(5)
    indices = torch.randint(0, 8, (17, 8, 8), generator=generator)
    return TinyData(batch_size, indices=indices, labels=torch.arange(17) % 3)


# --- models -------------------------------------------------------------------------------------


def tiny_vqgan(kind: str = "vector", **quantizer: Any) -> VQGAN:
    sizes = {} if kind == "finite_scalar" else {"codebook_size": 8, "codebook_dim": 4}
    return VQGAN(
        quantizer={"kind": kind, **sizes, **quantizer},
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


class ByConvolution(nn.Module):
    """A perceptual loss of a frozen network; notes the layout of its weight at each call."""

    layouts: ClassVar[list[torch.memory_format]] = []

    def __init__(self) -> None:
        super().__init__()
        self.frozen = FrozenNetwork(nn.Conv2d(3, 4, 3))

    def forward(self, reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        weight: Any = self.frozen.network.weight
        is_last = weight.is_contiguous(memory_format=torch.channels_last)
        self.layouts.append(torch.channels_last if is_last else torch.contiguous_format)
        return (self.frozen(reconstructions) - self.frozen(images)).square().mean()


def tiny_adversary(
    norm: str = "batch", network: type[PatchDiscriminator] = PatchDiscriminator, **changes: Any
) -> Adversary:
    settings = {"start": 2, "warmup": 1, "ramp": 2, "weight": 0.8, "adaptive": True, **changes}
    settings.setdefault("optimizer", OptimizerConfig(learning_rate=1e-3))
    return Adversary(network(base_channels=4, num_layers=1, norm=norm), **settings)


def optimizer_config(**changes: Any) -> OptimizerConfig:
    settings = {"learning_rate": 1e-2, "warmup_steps": 2, "schedule": "cosine"}
    return OptimizerConfig(**{**settings, **changes})


def vqgan_training(
    adversary: Adversary | None = None, vqgan: VQGAN | None = None, **changes: Any
) -> VQGANTraining:
    settings = {"optimizer": optimizer_config(), **changes}
    vqgan = vqgan or tiny_vqgan(revive_after=3)
    return VQGANTraining(vqgan, Gradients(), adversary, **settings)


def transformer_training(
    condition: Conditioning | None = None, positions: str = "sinusoidal", **changes: Any
) -> TransformerTraining:
    condition = condition or ClassLabel(3, dropout=0.3)
    config = GPTConfig(
        codebook_size=8,
        **condition.transformer_config((8, 8)),
        num_layers=1,
        num_heads=2,
        embed_dim=8,
        positions=positions,
        dropout=0.2,
        order=model_order(changes.get("order", "raster")),
    )
    cells = CellClasses(4, 2, 16) if condition.takes_images else None
    generator = ImageGenerator(tiny_vqgan().eval(), GPT(config), condition, (8, 8), cells)
    return TransformerTraining(generator, **{"optimizer": optimizer_config(), **changes})


def stage(kind: str, **changes: Any) -> tuple[Any, TinyData]:
    """The module and the data of a stage, the same at each call."""
    torch.manual_seed(0)
    if kind == "vqgan":  # the discriminator starts at 2, warmup 1, ramp 2
        return vqgan_training(tiny_adversary(), **changes), image_data()
    return transformer_training(**changes), token_data()


# --- single steps -------------------------------------------------------------------------------


def without_trainer(module: Any, step: int = 0, scaler: Any = None) -> Any:
    """The module as after `step` steps of a training, without a trainer."""
    module.trainer = SimpleNamespace(
        global_step=step,
        max_steps=MAX_STEPS,
        world_size=1,
        log_every_n_steps=100,
        model=module,
        precision_plugin=SimpleNamespace(scaler=scaler),
    )
    module.setup("fit")
    return module.train()


def backward(
    module: TrainingModule, batch: dict[str, torch.Tensor], factor: float = 1.0
) -> dict[str, torch.Tensor]:
    """Adds the gradients of one batch; returns its numbers."""
    loss = module.training_step(batch, 0)["loss"] * factor
    (loss if module.scaler is None else module.scaler.scale(loss)).backward()
    numbers, module._sums, module._counts = module._sums, {}, {}
    return numbers


# --- runs ---------------------------------------------------------------------------------------


class Recorder(Logger):
    """A logger that keeps everything, and sends the run a signal at a report if wanted."""

    name = "recorder"
    version = ""

    def __init__(self, interrupt_at: int | None = None, interrupt_by: int = signal.SIGINT) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.interrupt_at, self.interrupt_by = interrupt_at, interrupt_by

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.rows.append((int(step), dict(metrics)))
        if step == self.interrupt_at:
            self.interrupt_at = None
            os.kill(os.getpid(), self.interrupt_by)

    def column(self, name: str) -> list[tuple[int, float]]:
        return [(step, row[name]) for step, row in self.rows if name in row]


class Run(NamedTuple):
    directory: Path
    module: Any
    data: TinyData
    result: TrainingResult
    recorder: Recorder


def run_training(
    directory: Path,
    module: TrainingModule,
    data: TinyData,
    *,
    resume: bool = False,
    export: Any = "last",
    interrupt_at: int | None = None,
    interrupt_by: int = signal.SIGINT,
    save_every: int = 100,
    monitor: str | None = None,
    ema_decay: float | None = 0.9,
    callbacks: list[L.Callback] | None = None,
    loggers: list[Logger] | None = None,
    **changes: Any,
) -> Run:
    """Trains in a run directory as `configs/` would have it, and with a `Recorder`."""
    stage_1 = isinstance(module, VQGANTraining)
    grids = (ReconstructionGrids if stage_1 else SampleGrids)(directory / "grids", num_images=3)
    kind = "vqgan" if stage_1 else "generator"
    monitor = monitor or ("val/reconstruction_loss" if stage_1 else "val/loss")
    files: dict[str, Any] = {"dirpath": directory / "checkpoints", "enable_version_counter": False}
    average = average_weights(ema_decay)
    callbacks = list(callbacks or [])
    if not any(isinstance(callback, Clock) for callback in callbacks):
        callbacks.insert(0, Clock())
    recorder = Recorder(interrupt_at, interrupt_by)
    settings: dict[str, Any] = {
        "max_steps": MAX_STEPS,
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
    trainer = L.Trainer(
        callbacks=[
            *([] if average is None else [average]),
            grids,
            *callbacks,
            EndAfterStep(),
            ModelCheckpoint(
                **files, filename="best", monitor=monitor, auto_insert_metric_name=False
            ),
            LastCheckpoint(**files, filename="last", save_on_exception=True),
            ModelCheckpoint(**files, filename="last", every_n_train_steps=save_every),
        ],
        logger=[MetricsFile(directory / "metrics.csv"), recorder, *(loggers or [])],
        **{**settings, **changes},
    )
    directory.mkdir(exist_ok=True)
    result = train(
        module,
        data,
        trainer,
        run_dir=directory,
        export=export,
        resume_from=check_resume(directory, kind)[0] if resume else None,
    )
    return Run(directory, module, data, result, recorder)
