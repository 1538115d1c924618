"""The paths in a checkpoint, which may be from anyone.

Lightning's `ModelCheckpoint` restores which files it has written, and deletes them once there are
better ones.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from taming.runtime.process_group import on_first_rank
from taming.serialization import is_checkpoint

__all__ = ["confine_paths"]

log = logging.getLogger("taming")


def confine_paths(states: dict[str, Any], callbacks: Iterable[Callback]) -> None:
    """Moves the paths in the saved states of `ModelCheckpoint`s into their present directories.

    So a run that has moved still knows its best checkpoints. A callback starts without its state if
    a path leads out of its directory or to anything but a `.ckpt`, or if its best checkpoint is
    gone.
    """
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.state_key in states:
            state = states.pop(callback.state_key)
            try:
                assert callback.dirpath is not None  # since `setup`
                moved = _move(state, str(callback.dirpath))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                log.warning(
                    "%s starts without its earlier checkpoints: %s", callback.filename, error
                )
                continue
            best = moved["best_model_path"]
            if not best or on_first_rank(partial(is_checkpoint, Path(best))):
                states[callback.state_key] = moved


def _move(state: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Returns a state of `ModelCheckpoint` whose files are in `directory`."""

    def move(path: str) -> str:
        if not path:
            return ""
        moved = Path(os.path.normpath(Path(directory, os.path.relpath(path, state["dirpath"]))))
        inside = moved.resolve().is_relative_to(Path(directory).resolve())
        if not inside or moved.suffix != ".ckpt":
            raise ValueError(f"{path} is not one of them")
        return str(moved)

    models = {move(path): score for path, score in state["best_k_models"].items()}
    kth = move(state["kth_best_model_path"])
    if kth not in models and kth:
        raise ValueError(f"{kth} is not one of them")
    paths = {name: move(state[name]) for name in ("best_model_path", "last_model_path")}
    changes = {"dirpath": directory, "best_k_models": models, "kth_best_model_path": kth}
    return {**state, **changes, **paths}
