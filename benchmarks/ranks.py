"""Times a stage's training steps as Lightning runs them, in one process or one a device.

`benchmarks.gpu --devices` starts it, several processes by torchrun; the first prints a line of
JSON.
"""

import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from serve import random_inputs
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.ours import NEVER, token_batch, transformer_training, vqgan_training
from taming.training import EndAfterStep, TrainingModule, data_parallel

WARMUP, ROUNDS = 5, 5


class Clock(L.Callback):
    """Times rounds of steps after a warm-up, and counts the collective calls of the last step.

    Args:
        steps: of a round.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.last = WARMUP + ROUNDS * steps + 1
        self.rounds: list[float] = []
        self.collectives: Counter[str] = Counter()
        self.profiler = profile(activities=[ProfilerActivity.CPU])

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.last - 1:
            self.profiler.start()

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        step = trainer.global_step
        if step == self.last:
            self.profiler.stop()
            for event in self.profiler.key_averages():
                if event.key.startswith("c10d::"):
                    self.collectives[event.key.removeprefix("c10d::").strip("_")] += event.count
            return
        if step < WARMUP or (step - WARMUP) % self.steps:
            return
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if step > WARMUP:
            self.rounds.append((now - self.started) / self.steps)
        self.started = now


class Repeated(IterableDataset[Any]):
    """The same batch for ever."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.batch


def main(measurement: str, settings: dict[str, Any]) -> None:
    """Trains for as many steps as `Clock` needs, and prints what it found."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    inputs = random_inputs(settings)
    module: TrainingModule
    if measurement == "gpt_step":
        module = transformer_training(settings)
        batch = token_batch(module, inputs)
    else:
        module, batch = vqgan_training(settings, measurement), {"images": inputs}
    alone = settings["devices"] == 1
    clock = Clock(settings["steps"])
    trainer = L.Trainer(
        accelerator="gpu" if settings["device"] == "cuda" else "cpu",
        devices=settings["devices"],
        strategy="auto" if alone else data_parallel(discriminator=measurement != "gpt_step"),
        precision="bf16-mixed",
        max_steps=clock.last,
        max_epochs=-1,
        callbacks=[EndAfterStep(), clock],
        plugins=[LightningEnvironment()] if alone else None,
        gradient_clip_val=1.0,
        log_every_n_steps=NEVER,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, DataLoader(Repeated(batch), batch_size=None))
    if trainer.is_global_zero:
        print(json.dumps({"rounds": clock.rounds, "collectives": clock.collectives}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
