"""How several processes train one model: data-parallel, or with split weights (FSDP)."""

import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

from taming.losses import FrozenNetwork
from taming.runtime.errors import UserError
from taming.runtime.process_group import on_first_rank
from taming.serialization import (
    load_sharded_checkpoint,
    read_training_checkpoint,
    save_sharded_checkpoint,
)
from taming.training.checkpoints import WholeFileCheckpointIO, remove

__all__ = ["ShardedStrategy", "data_parallel"]

TIMEOUT = timedelta(days=1)  # the other ranks wait while the first one prepares the data


def data_parallel(discriminator: bool, accumulates: bool = False) -> DDPStrategy:
    """Returns data-parallel training, for a stage with or without a discriminator."""
    return DDPStrategy(
        timeout=TIMEOUT,
        # a discriminator joins later, and PyTorch fails if the first batch accumulates
        static_graph=not discriminator and not accumulates,
        gradient_as_bucket_view=True,
        # buffers are computed over all ranks, or, like BatchNorm's, not used in validation
        broadcast_buffers=False,
    )


class ShardedStrategy(FSDPStrategy):
    """Splits weights, gradients and optimizer state among the processes, in checkpoints too.

    `taming.serialization.sharded` describes the checkpoints. Any number of processes can resume
    from one, and from the file of a single process. Lightning's own sharded checkpoints overwrite
    the previous one and contain pickles, which run code when they are read. It also reads the
    optimizer's state of a file in the order of the model's weights, not of its parameter groups.

    Args:
        settings: arguments of Lightning's `FSDPStrategy`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"timeout": TIMEOUT, **settings})

    def setup(self, trainer: L.Trainer) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, WeightAveraging) for callback in callbacks):
            raise UserError(
                "FSDP cannot average the weights that it splits. Set callbacks.average.decay=null, "
                "or train with trainer=ddp."
            )
        super().setup(trainer)
        for part in self._sharded_model.modules():
            if isinstance(part, FrozenNetwork):
                part.to(self.root_device)  # FSDP only moves the weights that it splits

    @property
    def _sharded_model(self) -> nn.Module:
        assert self.model is not None
        return self.model

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return get_model_state_dict(self._sharded_model)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        return get_optimizer_state_dict(self._sharded_model, optimizer)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        files, start = self.checkpoint_io, time.perf_counter()
        assert isinstance(files, WholeFileCheckpointIO)
        path = Path(self.broadcast(filepath))
        unfinished = path.with_suffix(".unfinished")
        error: BaseException | None = None
        try:
            on_first_rank(lambda: remove(unfinished))
            save_sharded_checkpoint(checkpoint, unfinished)
            if self.is_global_zero:
                files.put(unfinished, path)
        except CheckpointException as exception:  # on all ranks
            error = next(iter(exception.failures.values()))[0]
        except OSError as exception:
            error = exception
        if error is not None and self.is_global_zero:
            with suppress(OSError):
                remove(unfinished)
            files.report_failure(path, error)
        files.seconds += time.perf_counter() - start

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads the weights and the optimizer's state; returns the rest of the checkpoint."""
        path = Path(self.broadcast(checkpoint_path))
        states: Any = get_state_dict(self._sharded_model, self.optimizers)
        weights, optimizer = states
        if path.is_dir():
            tensors = {"weights": weights, "moments": optimizer["state"]}
            rest = load_sharded_checkpoint(path, tensors)
        else:
            rest, _ = read_training_checkpoint(path)
            weights, (saved_optimizer,) = rest.pop("state_dict"), rest.pop("optimizer_states")
            names = [name for group in optimizer["param_groups"] for name in group["params"]]
            moments = saved_optimizer["state"].items()
            optimizer["state"] = {names[index]: state for index, state in moments}
        set_state_dict(
            self._sharded_model,
            self.optimizers,
            model_state_dict=weights,
            optim_state_dict=optimizer,
            options=StateDictOptions(full_state_dict=path.is_file()),
        )
        return rest
