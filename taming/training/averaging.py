"""Exponential moving average of the weights."""

from typing import Annotated, Any

import lightning as L
import torch
from annotated_types import Ge, Lt
from lightning.pytorch.callbacks import WeightAveraging

from taming.quantizers import VectorQuantizer

__all__ = ["WarmEMA", "average_weights"]


class WarmEMA(WeightAveraging):
    """Averages the weights; validation, checkpoints and exports use the average.

    θ̄ ← d θ̄ + (1 − d) θ after each step, with d = min(decay, (1 + n) / (10 + n)) after n updates.
    Lightning's `EMAWeightAveraging` has a constant d, so that the random initial weights dominate
    the average for 1 / (1 − d) steps. It also waits for the GPU once per weight and update. Buffers
    are copied. Codes that the step has moved to a latent are copied too, because the average of
    their old and new places is near no latent.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(use_buffers=False)
        self.decay = decay
        self._swapped = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._device = trainer.strategy.root_device  # the module itself is still on the CPU
        super().setup(trainer, pl_module, stage)

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        num_updates = self._latest_update_step
        if trainer.global_step == num_updates:  # between accumulated batches
            return
        assert self._average_model is not None
        average = self._average_model.module
        decay = min(self.decay, (1 + num_updates) / (10 + num_updates))
        torch._foreach_lerp_(
            list(average.parameters()), [w.detach() for w in pl_module.parameters()], 1 - decay
        )
        for averaged_buffer, buffer in zip(average.buffers(), pl_module.buffers(), strict=True):
            averaged_buffer.copy_(buffer)
        for averaged_part, part in zip(average.modules(), pl_module.modules(), strict=True):
            if isinstance(part, VectorQuantizer):
                codebook: Any = averaged_part.codebook
                codebook.copy_(torch.where(part.moved[:, None], part.codebook, codebook))
        self._latest_update_step = trainer.global_step

    def _swap_models(self, pl_module: L.LightningModule) -> None:
        super()._swap_models(pl_module)
        self._swapped = not self._swapped

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Restores the trained weights after a failed validation, before a checkpoint is saved."""
        if self._swapped:
            self._swap_models(pl_module)


def average_weights(decay: Annotated[float, Ge(0), Lt(1)] | None) -> WarmEMA | None:
    """Returns the callback that averages the weights; None for `decay=None`."""
    return None if decay is None else WarmEMA(decay)
