"""How checkpoints get onto the disk."""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

__all__ = ["WholeFileCheckpointIO"]

log = logging.getLogger("taming")


class WholeFileCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there when it is whole.

    A full disk or a kill costs the new checkpoint, never the old one, and does not end the
    training. Lightning's own writes to the system's directory for temporary files first, which may
    be small, and copies from there.

    Attributes:
        failures: by file, why its latest checkpoint is not on the disk.
    """

    def __init__(self) -> None:
        self.failures: dict[Path, str] = {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes `checkpoint` to `path`, or warns why it cannot."""
        path = Path(path)
        unfinished = path.with_suffix(".unfinished")
        self.failures.pop(path, None)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except (OSError, RuntimeError) as error:  # torch's word for a full disk
            reason = (str(error) or type(error).__name__).splitlines()[0]
            kept = f" The earlier {path.name} is intact." if path.exists() else ""
            self.failures[path] = (
                f"the checkpoint {path} could not be written ({reason}).{kept} Is the disk full? "
                "Free some space."
            )
            log.warning("%s Training goes on.", self.failures[path])
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
