"""Weights split among processes: FSDP, with checkpoints that any number of processes can read."""

import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import FSDPStrategy
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

__all__ = ["ShardedStrategy"]


class ShardedStrategy(FSDPStrategy):
    """Weights, gradients and optimizer state split among the processes, in checkpoints too.

    A checkpoint is a directory, see `taming.serialization.sharded`; that of any number of
    processes can be resumed from, and so can the file of one. Lightning's own writes over the
    checkpoint before, in files that run code when they are read, and takes the optimizer's state in
    a file to be in the order of the model's weights, which is not that of its groups.
    """

    def __init__(self, **settings: Any) -> None:
        # they wait while the first one prepares the data
        super().__init__(**{"timeout": timedelta(days=1), **settings})

    def setup(self, trainer: L.Trainer) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, WeightAveraging) for callback in callbacks):
            raise UserError(
                "weights that are split are not averaged: set callbacks.average.decay=null, or "
                "train with trainer=ddp."
            )
        super().setup(trainer)
        for part in self._module.modules():
            if isinstance(part, FrozenNetwork):
                part.to(self.root_device)  # FSDP moves only what it splits

    @property
    def _module(self) -> nn.Module:
        assert self.model is not None
        return self.model

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return get_model_state_dict(self._module)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return get_optimizer_state_dict(self._module, getattr(optimizer, "_optimizer", optimizer))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Writes the checkpoint beside its place, and puts it there when it is whole."""
        files, started = self.checkpoint_io, time.perf_counter()
        assert isinstance(files, WholeFileCheckpointIO)
        path = Path(self.broadcast(filepath))
        unfinished = path.with_suffix(".unfinished")
        error: BaseException | None = None
        try:
            on_first_rank(lambda: remove(unfinished))
            save_sharded_checkpoint(checkpoint, unfinished)
            if self.is_global_zero:
                files.put(unfinished, path)
        except CheckpointException as failed:  # on all ranks
            error = next(iter(failed.failures.values()))[0]
        except OSError as failed:
            error = failed
        if error is not None and self.is_global_zero:
            with suppress(OSError):
                remove(unfinished)
            files.report_failure(path, error)
        files.seconds += time.perf_counter() - started

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads the weights and the optimizer's state; returns the rest."""
        path = Path(self.broadcast(checkpoint_path))
        found: Any = get_state_dict(self._module, self.optimizers)
        weights, optimizer = found
        if path.is_dir():
            tensors = {"weights": weights, "moments": optimizer["state"]}
            rest = load_sharded_checkpoint(path, tensors)
        else:
            rest, _ = read_training_checkpoint(path)
            weights, (saved,) = rest.pop("state_dict"), rest.pop("optimizer_states")
            names = [name for group in optimizer["param_groups"] for name in group["params"]]
            optimizer["state"] = {names[i]: state for i, state in saved["state"].items()}
        set_state_dict(
            self._module,
            self.optimizers,
            model_state_dict=weights,
            optim_state_dict=optimizer,
            options=StateDictOptions(full_state_dict=path.is_file()),
        )
        return rest
