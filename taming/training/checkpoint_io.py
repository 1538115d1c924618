"""How checkpoints get onto the disk."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

__all__ = ["WholeFileCheckpointIO"]


class WholeFileCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there when it is whole.

    A full disk or a kill so costs the new checkpoint, never the old one. Lightning's own writes to
    the system's directory for temporary files first, which may be small, and copies from there.

    Attributes:
        failure: why the last checkpoint is not on the disk; None if it is. Only the first of
            several processes writes, and the others wait for it: an exception there would leave
            them waiting.
    """

    failure: str | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes `checkpoint` to `path`, or says in `failure` why it cannot."""
        path = Path(path)
        unfinished = path.with_suffix(".unfinished")
        self.failure = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except Exception as error:  # whatever it is, the other processes wait
            self.failure = (str(error) or type(error).__name__).splitlines()[0]
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
