"""Times the training steps of a stage under Lightning, with one process per device.

`benchmarks.gpu --devices` starts this module. The first process prints a line of JSON.
"""

import json
import logging
import sys
import time
import warnings
from collections import Counter
from itertools import pairwise, repeat
from typing import Any

import lightning as L
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.ours import NEVER, batch_of, transformer_training, vqgan_training
from benchmarks.peers.serve import random_inputs
from taming.training import EndAfterStep, TrainingModule, data_parallel

WARMUP, ROUNDS = 5, 5


class Clock(L.Callback):
    """Times rounds of steps after a warm-up, then profiles one more step.

    Args:
        steps: number of steps in a round.
    """

    def __init__(self, steps: int) -> None:
        self.ends = range(WARMUP, WARMUP + ROUNDS * steps + 1, steps)  # of warm-up and rounds
        self.times: list[float] = []
        self.profiler = profile(activities=[ProfilerActivity.CPU])

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step in self.ends:
            if trainer.strategy.root_device.type == "cuda":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
        if trainer.global_step == self.ends[-1]:
            self.profiler.start()
        elif trainer.global_step == trainer.max_steps:
            self.profiler.stop()


def main(settings: dict[str, Any]) -> None:
    """Trains for as many steps as `Clock` needs and prints the results."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    is_stage_2 = settings["measurement"] == "gpt_step"
    module: TrainingModule
    if is_stage_2:
        module = transformer_training(settings)
    else:
        module = vqgan_training(settings, settings["measurement"])
    clock = Clock(settings["steps"])
    single = settings["devices"] == 1
    strategy = "auto" if single else data_parallel(discriminator=not is_stage_2)
    trainer = L.Trainer(
        accelerator="gpu" if settings["device"] == "cuda" else "cpu",
        devices=settings["devices"],
        strategy=strategy,
        precision="bf16-mixed",
        benchmark=True,
        max_steps=clock.ends[-1] + 1,
        callbacks=[EndAfterStep(), clock],
        gradient_clip_val=1.0,
        log_every_n_steps=NEVER,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, repeat(batch_of(random_inputs(settings))))
    if trainer.is_global_zero:
        rounds = [(end - start) / settings["steps"] for start, end in pairwise(clock.times)]
        collectives: Counter[str] = Counter()
        for event in clock.profiler.key_averages():
            if event.key.startswith("c10d::"):
                collectives[event.key.removeprefix("c10d::").strip("_")] += event.count
        print(json.dumps({"rounds": rounds, "collectives": collectives}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
