"""The model inside a training checkpoint (`.ckpt`), read without running anything from the file.

A training checkpoint is Lightning's, plus one entry, `model`: the finished model as plain data,
with EMA weights where the run has them. Its tensors share storage with the training state, so they
cost no disk space, and whoever reads a model out of a checkpoint need not know how it was trained.
"""

from pathlib import Path
from typing import Any

import torch

from taming.errors import UserError
from taming.serialization.directory import FORMAT_VERSION, SavedModel, check_format_version

__all__ = ["checkpoint_entry", "load_training_checkpoint", "read_training_checkpoint"]

ENTRY = "model"
IMPORT_FIRST = (
    "Checkpoints of CompVis' or LlamaGen's programs are imported by scripts/import_checkpoint.py "
    "first."
)


def checkpoint_entry(model: SavedModel) -> dict[str, Any]:
    """Returns the plain dictionary that goes into a checkpoint under `model`."""
    return {
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "config": model.config,
        "state": model.state,
        "parts": {name: checkpoint_entry(part) for name, part in model.parts.items()},
    }


def _saved_model(entry: dict[str, Any], source: str) -> SavedModel:
    parts = {name: _saved_model(part, source) for name, part in entry["parts"].items()}
    return SavedModel(entry["kind"], dict(entry["config"]), dict(entry["state"]), parts, source)


def read_training_checkpoint(path: Path) -> dict[str, Any]:
    """Loads a `.ckpt` lazily on the CPU with `weights_only=True`, so that no code of it runs.

    Raises:
        UserError: if the file is damaged, holds anything but plain data, or is not this project's.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file makes pickle, zipfile and torch raise anything
        raise _unreadable(path) from error
    entry = checkpoint.get(ENTRY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or "format_version" not in entry:
        raise UserError(
            f"{path} is a checkpoint of another program: it has no `{ENTRY}` entry as this "
            f"project's checkpoints have. {IMPORT_FIRST}"
        )
    check_format_version(entry["format_version"], path)
    return checkpoint


def load_training_checkpoint(path: Path) -> SavedModel:
    """Reads the finished model inside a training checkpoint.

    Raises:
        UserError: see `read_training_checkpoint`.
    """
    entry = read_training_checkpoint(path)[ENTRY]
    try:
        return _saved_model(entry, str(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(path) from error


def _unreadable(path: Path) -> UserError:
    return UserError(
        f"{path} cannot be read as a checkpoint of this project: it is damaged, incomplete or "
        f"of another program. {IMPORT_FIRST}"
    )
