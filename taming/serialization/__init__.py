"""Model directories, training checkpoints and hub names; knows no model."""

from taming.serialization.directory import (
    SavedModel,
    check_destination,
    is_model_directory,
    load_config,
    load_model_directory,
    load_weights,
    save_model_directory,
)
from taming.serialization.foreign import ForeignCheckpoint, read_foreign_checkpoint
from taming.serialization.locate import find_model, load_saved_model
from taming.serialization.training_checkpoint import (
    checkpoint_entry,
    load_training_checkpoint,
    read_training_checkpoint,
)

__all__ = [
    "ForeignCheckpoint",
    "SavedModel",
    "check_destination",
    "checkpoint_entry",
    "find_model",
    "is_model_directory",
    "load_config",
    "load_model_directory",
    "load_saved_model",
    "load_training_checkpoint",
    "load_weights",
    "read_foreign_checkpoint",
    "read_training_checkpoint",
    "save_model_directory",
]
